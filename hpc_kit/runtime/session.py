"""The meeting that this process is in, from its warnings to its goodbye."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpc_kit.runtime import notice
from hpc_kit.runtime.mpi import backend, facts
from hpc_kit.runtime.rendezvous import meeting as rendezvous
from hpc_kit.runtime.torch_environment import environment_set, torch_variables, unset_rank_variables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpc_kit.runtime.rendezvous.meeting import Meeting
    from hpc_kit.runtime.world import World

_current: list[Meeting] = []


def current_meeting() -> Meeting | None:
    """The meeting made by `python -m hpc_kit.runtime`, or by an outer `distributed()`."""
    return _current[-1] if _current else None


@contextmanager
def joined_ranks(
    world: World, timeout: float | None, program: Path | None = None, *, starts_ranks: bool = False
) -> Iterator[Meeting]:
    """Meet the other ranks, with torch's names set inside; at the end leave, but not after a failure: no rank waits.

    Args:
        world: Who this process is.
        timeout: Seconds to wait for the others; 300 by default.
        program: What this process is about to run; what it runs by default.
        starts_ranks: The program starts its own ranks: RANK, WORLD_SIZE and LOCAL_RANK are not set.

    Raises:
        HpcKitError: There is no torch.
        ContradictoryEnvironment: The nodes do not run the same.
        RendezvousError: Not all ranks came in time.
    """
    notice.require_torch()
    notice.print_warnings(world)
    world = facts.world_from_mpi(world, rendezvous.DEFAULT_TIMEOUT if timeout is None else timeout)
    meeting = rendezvous.meet(world, timeout=timeout, program=program)
    backend.install(current_meeting, started_by_mpi=world.launcher == "mpi")
    _current.append(meeting)
    try:
        variables = torch_variables(meeting, os.environ)
        with environment_set(unset_rank_variables(variables) if starts_ranks else dict(variables)):
            yield meeting
    finally:
        _current.remove(meeting)
    meeting.leave()
