"""What an error of MPI means: a rank that is gone, or tensors that do not fit one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed import DistBackendError

if TYPE_CHECKING:
    from types import ModuleType

_MISFITS = ("ERR_TRUNCATE", "ERR_COUNT", "ERR_ARG", "ERR_TYPE", "ERR_BUFFER")


class Faults:
    """The errors of one MPI."""

    def __init__(self, module: ModuleType) -> None:
        self.mpi_error: type[Exception] = module.Exception
        self._misfits = {getattr(module, name) for name in _MISFITS}

    def told(self, what: str, error: Exception) -> DistBackendError:
        """The error to raise; only that of a lost rank says so, for `failure.is_victim` goes by it."""
        if error.Get_error_class() in self._misfits:  # type: ignore[attr-defined]
            return misfit(what, str(error))
        return DistBackendError(f"mpi: {what}: {error}\n  remote process exited, or its network failed")


def misfit(what: str, found: str) -> DistBackendError:
    """The error of ranks that do not do the same."""
    return DistBackendError(
        f"mpi: {what}: {found}\n"
        "  the ranks' tensors do not fit one another: each rank must give the same sizes and types, in the same order"
    )
