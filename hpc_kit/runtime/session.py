"""The meeting that this process is in, from its warnings to its goodbye."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpc_kit.runtime import notice, on_demand
from hpc_kit.runtime.mpi import backend, facts
from hpc_kit.runtime.rendezvous import meeting as rendezvous
from hpc_kit.runtime.torch_environment import exported, for_libraries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpc_kit.runtime.rendezvous.meeting import Meeting
    from hpc_kit.runtime.world import World

_current: list[Meeting] = []


def current() -> Meeting | None:
    """The meeting made by `python -m hpc_kit.runtime`, or by an outer `distributed()`."""
    return _current[-1] if _current else None


@contextmanager
def met(world: World, timeout: float | None, program: Path | None = None, *, offers: bool = False) -> Iterator[Meeting]:
    """Meet the other ranks, with torch's names set inside; at the end leave, but not after a failure: no rank waits.

    Args:
        world: Who this process is.
        timeout: Seconds to wait for the others; 300 by default.
        program: What this process is about to run; what it runs by default.
        offers: Whether a process that nobody has launched has torch's names only where it takes them.

    Raises:
        HpcKitError: There is no torch.
        ContradictoryEnvironment: The nodes do not run the same.
        RendezvousError: Not all ranks came in time.
    """
    notice.need_torch()
    notice.warn(world)
    world = facts.asked(world, rendezvous.DEFAULT_TIMEOUT if timeout is None else timeout)
    meeting = rendezvous.meet(world, timeout=timeout, program=program)
    backend.install(current, shown=world.launcher == "mpi")
    _current.append(meeting)
    try:
        variables = for_libraries(meeting, os.environ)
        taken = on_demand.of(variables, world) if offers else {}
        with (
            exported({name: value for name, value in variables.items() if name not in taken}),
            on_demand.offered(taken),
        ):
            yield meeting
    finally:
        _current.remove(meeting)
    meeting.leave()
