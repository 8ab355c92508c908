"""The making of a group: its communicator, and what works on it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from hpc_kit.runtime import first_failure
from hpc_kit.runtime.mpi.buffers import Datatypes
from hpc_kit.runtime.mpi.collectives import Collectives
from hpc_kit.runtime.mpi.faults import Faults
from hpc_kit.runtime.mpi.operations import Line
from hpc_kit.runtime.mpi.point_to_point import Messages
from hpc_kit.runtime.mpi.process_group import MpiGroup
from hpc_kit.runtime.mpi.shared_memory import SharedMemory
from hpc_kit.runtime.mpi.waiting import in_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from types import ModuleType


def group(module: ModuleType, ranks: Sequence[int], timeout: timedelta) -> MpiGroup:
    """The group of these ranks of the world, or of all where none is named.

    Args:
        module: `mpi4py.MPI`.
        ranks: Who takes part; nobody else does.
        timeout: How long to wait for them, and how long each collective may take.

    Raises:
        DistBackendError: Not all of them came in time.
    """
    comm, shared = in_time(lambda: _communicator(module, ranks), timeout.total_seconds(), "the ranks of a new group")
    types, faults = _types(module), Faults(module)
    line = Line(lambda: first_failure.ends_by(module.COMM_WORLD.Abort, at_exit=True))
    collectives = Collectives(comm, types, module.IN_PLACE, shared)
    return MpiGroup(collectives, Messages(comm, module, types, line, faults), line, faults, timeout=timeout)


_types = functools.cache(Datatypes)


def _communicator(module: ModuleType, ranks: Sequence[int]) -> tuple[Any, SharedMemory | None]:
    """A communicator of these ranks, and their shared memory."""
    world = module.COMM_WORLD
    comm = world.Create_group(world.group.Incl(ranks or range(world.size)))
    comm.Set_errhandler(module.ERRORS_RETURN)
    return comm, SharedMemory.of(comm, module)
