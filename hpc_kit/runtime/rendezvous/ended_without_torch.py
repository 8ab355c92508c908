"""Ranks that end without importing torch leave a note in the run folder, so that no rank waits for them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_kit.errors import RendezvousError
from hpc_kit.run_files import ENDED_WITHOUT_TORCH, RUN_VARIABLE, write_whole
from hpc_kit.runtime.rendezvous.network import this_node_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.runtime.world import World

_POLL_SECONDS = 1.0
_CHECKS_PER_SECOND = 200
"""Checks of all ranks together, which is little work for the metadata server of a shared file system."""


class EndsWithoutTorch:
    """The ends of this rank and of other ranks before they have met. Without a run folder, nothing is noted or found.

    The ranks of a launch may run several programs one after another, so each rank counts its ends. After n programs
    without torch, it is in the next one, and earlier ends of other ranks mean nothing.
    """

    def __init__(self, world: World, environ: Mapping[str, str]) -> None:
        self._world, self._host, run = world, this_node_name(environ), environ.get(RUN_VARIABLE)
        self._folder = Path(run, ENDED_WITHOUT_TORCH) if run and world.world_size > 1 else None
        # All attempts of a job have the same run folder.
        attempt = environ.get("HPC_KIT_ATTEMPT") or environ.get("SLURM_RESTART_COUNT", "0")
        self._launch = f"{world.key}, attempt {attempt}"
        own = self._read(f"rank-{world.rank}")
        self._program = 1 + (int(own["ends"]) if own.get("launch") == self._launch else 0)
        self._interval = max(_POLL_SECONDS, world.world_size / _CHECKS_PER_SECOND)
        self._next_check = time.monotonic() + self._interval  # ranks that meet immediately never read the file

    def record(self) -> None:
        """Note that this rank has ended its program successfully, unless the disk is full."""
        note = {"rank": self._world.rank, "host": self._host, "launch": self._launch}
        with suppress(OSError):
            if self._folder is not None:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                for name, content in (
                    (f"rank-{self._world.rank}", {"ends": self._program, "launch": self._launch}),
                    (f"program-{self._program}", note),
                ):
                    write_whole(self._folder / name, json.dumps(content).encode(), lasting=False)

    def check(self) -> None:
        """Read the note of other ranks if the last check was long enough ago.

        Raises:
            RendezvousError: A rank of this launch has ended this program without importing torch.
        """
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + self._interval
        note = self._read(f"program-{self._program}")
        if note.get("launch") == self._launch:
            raise RendezvousError(
                f"rank {note['rank']} has ended without importing torch, and rank {self._world.rank} imports it",
                found=f"rank {note['rank']} on {note['host']} ended with exit code 0, and the ranks cannot meet",
                remedy="import torch on all ranks, also on those that do not use it; or on none",
            )

    def _read(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            if self._folder is not None:
                content = json.loads((self._folder / name).read_bytes())
        return content
