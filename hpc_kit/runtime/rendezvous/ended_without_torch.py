"""Ranks that end without importing torch leave a note in the run folder, so that no rank waits for them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import RendezvousError
from hpc_kit.run_files import ENDED_WITHOUT_TORCH, RUN_VARIABLE, write_whole
from hpc_kit.runtime.rendezvous.network import this_node_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.runtime.world import World

_POLL_SECONDS = 1.0
_CHECKS_PER_SECOND = 200
"""Checks of all ranks together, which is little work for the metadata server of a shared file system."""


def record_end_without_torch(world: World, environ: Mapping[str, str]) -> None:
    """Record in the run folder that this rank has ended successfully and has not met the other ranks.

    One file is enough for any number of ranks. Without a run folder, or with a full disk, nothing is recorded.
    """
    folder = environ.get(RUN_VARIABLE)
    if folder and world.world_size > 1:
        note = {"rank": world.rank, "host": this_node_name(environ), "launch": world.key}
        with suppress(OSError):
            write_whole(Path(folder, ENDED_WITHOUT_TORCH), json.dumps(note).encode(), lasting=False)


class EndedRankCheck:
    """Checks from time to time, while this rank waits, whether another rank has ended without importing torch."""

    def __init__(self, world: World, environ: Mapping[str, str]) -> None:
        folder = environ.get(RUN_VARIABLE)
        self._world = world
        self._file = Path(folder, ENDED_WITHOUT_TORCH) if folder else None
        self._interval = max(_POLL_SECONDS, world.world_size / _CHECKS_PER_SECOND)
        self._next_check = time.monotonic() + self._interval  # ranks that meet immediately never read the file

    def __call__(self) -> None:
        """Read the note if the last check was long enough ago.

        Raises:
            RendezvousError: A rank of this launch has ended without importing torch.
        """
        now = time.monotonic()
        if self._file is None or now < self._next_check:
            return
        self._next_check = now + self._interval
        try:
            note = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return
        # A requeued job has the same run folder, and another launch.
        if note["launch"] == self._world.key:
            raise RendezvousError(
                f"rank {note['rank']} has ended without importing torch, and rank {self._world.rank} imports it",
                found=f"rank {note['rank']} on {note['host']} ended with exit code 0, and the ranks cannot meet",
                remedy="import torch on all ranks, also on those that do not use it; or on none",
            )
