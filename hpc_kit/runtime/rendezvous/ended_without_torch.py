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


def record_end_without_torch(world: World, environ: Mapping[str, str]) -> None:
    """Record in the run folder that this rank has ended successfully and has not met the other ranks.

    The ranks of a launch may run several programs in turn. So the record contains the number of such ends of this rank.
    Without a run folder, or with a full disk, nothing is recorded.
    """
    folder = _folder(environ)
    if folder is None or world.world_size == 1:
        return
    ends = _count_ends(folder, world, environ) + 1
    launch = _launch(world, environ)
    note = {"rank": world.rank, "host": this_node_name(environ), "launch": launch}
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        _write(folder / f"rank-{world.rank}", {"ends": ends, "launch": launch})
        _write(folder / f"program-{ends}", note)


class EndedRankCheck:
    """Checks from time to time, while this rank waits, whether another rank has ended without importing torch."""

    def __init__(self, world: World, environ: Mapping[str, str]) -> None:
        self._world, self._launch = world, _launch(world, environ)
        folder = _folder(environ)
        # After n programs without torch, this rank is in the next one: earlier ends of other ranks mean nothing.
        self._file = folder / f"program-{_count_ends(folder, world, environ) + 1}" if folder else None
        self._interval = max(_POLL_SECONDS, world.world_size / _CHECKS_PER_SECOND)
        self._next_check = time.monotonic() + self._interval  # ranks that meet immediately never read the file

    def __call__(self) -> None:
        """Read the note if the last check was long enough ago.

        Raises:
            RendezvousError: A rank of this launch has ended this program without importing torch.
        """
        now = time.monotonic()
        if self._file is None or now < self._next_check:
            return
        self._next_check = now + self._interval
        note = _read(self._file)
        if note.get("launch") == self._launch:
            raise RendezvousError(
                f"rank {note['rank']} has ended without importing torch, and rank {self._world.rank} imports it",
                found=f"rank {note['rank']} on {note['host']} ended with exit code 0, and the ranks cannot meet",
                remedy="import torch on all ranks, also on those that do not use it; or on none",
            )


def _folder(environ: Mapping[str, str]) -> Path | None:
    run = environ.get(RUN_VARIABLE)
    return Path(run, ENDED_WITHOUT_TORCH) if run else None


def _launch(world: World, environ: Mapping[str, str]) -> str:
    """Return a text of this launch in this attempt of the job. All attempts have the same run folder."""
    attempt = environ.get("HPC_KIT_ATTEMPT") or environ.get("SLURM_RESTART_COUNT", "0")
    return f"{world.key}, attempt {attempt}"


def _count_ends(folder: Path, world: World, environ: Mapping[str, str]) -> int:
    """Return how many programs of this launch this rank has ended without importing torch."""
    own = _read(folder / f"rank-{world.rank}")
    return int(own["ends"]) if own.get("launch") == _launch(world, environ) else 0


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a file; nothing if it does not exist."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content).encode(), lasting=False)
