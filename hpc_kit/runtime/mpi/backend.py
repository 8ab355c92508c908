"""`init_process_group("mpi")` on a torch that was built without MPI.

torch keeps a place for a process group of MPI's, which its wheels leave empty; this fills it. Nothing of MPI is touched
before a group is made.
"""

from __future__ import annotations

import functools
import os
import warnings
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed import ProcessGroup

    from hpc_kit.runtime.rendezvous.meeting import Meeting

BACKEND = "mpi"


class _Asked:
    """What torch was asked for while it makes a group: at the place that it keeps for MPI it does not tell the time."""

    timeout = timedelta(minutes=30)
    meeting: Callable[[], Meeting | None] | None = None


def install(meeting: Callable[[], Meeting | None] | None = None, *, shown: bool = False) -> None:
    """Fill the place, once; a torch that was built with MPI keeps its own.

    Args:
        meeting: Tells, when a group is made, the meeting that this process is in.
        shown: Whether `is_mpi_available()` says so. Programs ask it for which backend to take (accelerate does), and
            mean a world of MPI: only where MPI has started the ranks.
    """
    from torch.distributed import distributed_c10d as c10d

    _Asked.meeting = meeting or _Asked.meeting
    # Names of torch's own, private ones: there is no other place from which init_process_group("mpi") takes its class.
    if not is_ours():
        if c10d.is_mpi_available():
            return
        c10d.ProcessGroupMPI = Creator  # type: ignore[misc,assignment]
        c10d._new_process_group_helper = _noting(c10d._new_process_group_helper)  # noqa: SLF001
        # Who says its rank as well has the same one.
        warnings.filterwarnings("ignore", "For MPI backend, world_size")
    c10d._MPI_AVAILABLE = c10d._MPI_AVAILABLE or shown  # noqa: SLF001


def is_ours() -> bool:
    """Whether `mpi` means the group of this package."""
    from torch.distributed import distributed_c10d as c10d

    return getattr(c10d, "ProcessGroupMPI", None) is Creator


def _noting(make: Any) -> Any:
    """The function of torch's own, with what it was asked for written down."""

    @functools.wraps(make)
    def noting(
        size: int, rank: int, ranks: list[int], backend: str, store: Any, name: str, *rest: Any, **named: Any
    ) -> Any:
        if BACKEND not in str(backend):
            return make(size, rank, ranks, backend, store, name, *rest, **named)
        _refuse_beside_another(str(backend))
        _Asked.timeout = named.get("timeout") or _Asked.timeout
        with _available():
            return make(size, rank, ranks, backend, _store(store), name, *rest, **named)

    return noting


def _refuse_beside_another(backend: str) -> None:
    """Torch lets a group written in Python stand for all devices, and drops the other backends without a word."""
    if ":" in backend:
        raise SpecError(
            "the backend mpi cannot be one of several backends of a group",
            found=f"backend {backend!r}",
            remedy='"mpi" alone, which takes tensors on GPUs too, through the host; or a group of its own beside it:\n'
            'dist.new_group(backend="nccl")',
        )


@contextmanager
def _available() -> Iterator[None]:
    """Torch looks before it makes a group: also where the program was not to be led to this backend."""
    from torch.distributed import distributed_c10d as c10d

    before = c10d._MPI_AVAILABLE  # noqa: SLF001
    c10d._MPI_AVAILABLE = True  # noqa: SLF001
    try:
        yield
    finally:
        c10d._MPI_AVAILABLE = before  # noqa: SLF001


def _store(store: Any) -> Any:
    """The store of the ranks' meeting, where torch has only a placeholder: groups of other backends need one."""
    from torch.distributed.distributed_c10d import Store

    meeting = _meeting()
    return meeting.part("group") if type(store) is Store and meeting is not None else store


def _meeting() -> Meeting | None:
    return _Asked.meeting() if _Asked.meeting is not None else None


class Creator:
    """Stands where torch looks for its own class."""

    @staticmethod
    def create(ranks: Sequence[int]) -> ProcessGroup:
        """The group of these ranks of the world, or of all where none is named.

        Raises:
            HpcKitError: MPI has not started the ranks, mpi4py finds no library of it, or takes one thread at a time.
        """
        from hpc_kit.runtime.launchers import resolve
        from hpc_kit.runtime.mpi import library

        meeting = _meeting()
        module = library.load(meeting.world if meeting is not None else resolve(os.environ))
        library.refuse_one_thread(module)
        from hpc_kit.runtime.mpi import creation

        return creation.group(module, ranks, _Asked.timeout)
