"""The meeting that this process is in, from its warnings to its goodbye."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpc_kit.runtime import notice, rendezvous
from hpc_kit.runtime.exports import exported, for_libraries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpc_kit.runtime.rendezvous import Meeting
    from hpc_kit.runtime.world import World

_current: list[Meeting] = []


def current() -> Meeting | None:
    """The meeting made by `python -m hpc_kit.runtime`, or by an outer `distributed()`."""
    return _current[-1] if _current else None


@contextmanager
def met(world: World, timeout: float | None) -> Iterator[Meeting]:
    """Meet the other ranks, with torch's names set inside; at the end leave, but not after a failure: no rank waits.

    Raises:
        RendezvousError: Not all ranks came in time.
    """
    notice.warn(world)
    meeting = rendezvous.meet(world, timeout=timeout)
    _current.append(meeting)
    try:
        with exported(for_libraries(meeting, os.environ)):
            yield meeting
    finally:
        _current.remove(meeting)
    meeting.leave()
