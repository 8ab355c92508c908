"""What an error of MPI means: a wrong call, a rank that is gone, or tensors that do not fit one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed import DistBackendError

if TYPE_CHECKING:
    from types import ModuleType

_WRONG = ("ERR_RANK", "ERR_ROOT", "ERR_TAG")
"""Found before anything is sent: no other rank is touched by it."""
_MISFITS = ("ERR_TRUNCATE", "ERR_COUNT", "ERR_ARG", "ERR_TYPE", "ERR_BUFFER")


class MpiErrors:
    """The errors of one MPI."""

    def __init__(self, module: ModuleType) -> None:
        self.mpi_error: type[Exception] = module.Exception
        self._wrong = {getattr(module, name) for name in _WRONG}
        self._misfits = {getattr(module, name) for name in _MISFITS}

    def describe(self, what: str, error: Exception) -> DistBackendError | ValueError:
        """The error to raise: a ValueError breaks no group, and only that of a lost rank goes for a victim's."""
        kind: int = error.Get_error_class()  # type: ignore[attr-defined]
        if kind in self._wrong:
            return ValueError(f"mpi: {what}: {error}")
        if kind in self._misfits:
            return size_mismatch(what, str(error))
        return DistBackendError(f"mpi: {what}: {error}\n  remote process exited, or its network failed")


def size_mismatch(what: str, found: str) -> DistBackendError:
    """The error of ranks that do not do the same."""
    return DistBackendError(
        f"mpi: {what}: {found}\n"
        "  the ranks' tensors do not fit one another: each rank must give the same sizes and types, in the same order"
    )
