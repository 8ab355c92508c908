"""A training without torch: each rank computes a chaotic series, saves it, and goes on from its newest whole save.

One wrong or missing step changes all later values. The ranks do not wait for each other.

Variables: HANDLED, signals that request a stop; CODE, the exit code after one; SAVE_SECONDS, the length of a save.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zlib
from pathlib import Path

KEPT = 3


def find_rank() -> int:
    """Return the rank that the launcher gave."""
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return int(next((os.environ[name] for name in names if name in os.environ), "0"))


def next_loss(loss: float) -> float:
    """Return the loss of the next step."""
    return 3.9 * loss * (1 - loss)


def first_loss(rank: int) -> float:
    """Return the loss before the first step."""
    return 0.2 + rank / 100


class Saves:
    """The saves of one rank: files with a step, a loss and a checksum."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self.draft = folder / f".rank-{rank}.draft"
        folder.mkdir(exist_ok=True)

    def files(self) -> list[Path]:
        """Return the files, oldest first."""
        found = self.folder.glob(f"rank-{self.rank}-*")
        return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))

    def write(self, step: int, loss: float) -> None:
        """Write one file, whole or not at all. A full disk keeps the old files."""
        body = json.dumps([step, loss.hex()])
        try:
            with self.draft.open("w") as file:
                file.write(f"{zlib.crc32(body.encode())}\n")
                file.flush()
                time.sleep(float(os.environ.get("SAVE_SECONDS", "0.02")))
                file.write(body)
                file.flush()
                if not self.draft.is_symlink():
                    os.fsync(file.fileno())
        except OSError as error:
            print(f"rank {self.rank}: not saved: {error}", flush=True)
            return
        self.draft.rename(self.folder / f"rank-{self.rank}-{step}")
        for old in self.files()[:-KEPT]:
            old.unlink()

    def read(self) -> tuple[int, float]:
        """Return step and loss of the newest whole file."""
        for path in reversed(self.files()):
            if state := read_save(path):
                return state
            print(f"rank {self.rank}: {path.name} is damaged", flush=True)
        return 0, first_loss(self.rank)


def read_save(path: Path) -> tuple[int, float] | None:
    """Return step and loss of a file; None if it is damaged."""
    try:
        checksum, body = path.read_text().split("\n")
        if int(checksum) != zlib.crc32(body.encode()):
            return None
        step, loss = json.loads(body)
        return step, float.fromhex(loss)
    except (OSError, ValueError):
        return None


def main() -> int:
    """Run the steps that are missing; return the exit code."""
    requested: list[int] = []
    for name in os.environ.get("HANDLED", "USR1 TERM").split():
        signal.signal(getattr(signal, f"SIG{name}"), lambda number, _: requested.append(number))
    if "IGNORED" in os.environ:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    rank, steps, seconds = (
        find_rank(),
        int(os.environ.get("STEPS", "40")),
        float(os.environ.get("SECONDS_A_STEP", "0.15")),
    )
    name = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    saves, losses = Saves(Path(f"saved{name}"), rank), Path(f"losses{name}")
    losses.mkdir(exist_ok=True)
    step, loss = saves.read() if "--resume" in sys.argv else (0, first_loss(rank))
    attempt, host = os.environ.get("HPC_KIT_ATTEMPT", "1"), os.environ.get("SLURMD_NODENAME", "")
    Path(losses, f"process-{rank}").write_text(f"{os.getpid()} {os.getppid()} {host}")
    with Path(losses, f"rank-{rank}").open("a", buffering=1) as log:
        while step < steps and not requested:
            time.sleep(seconds)
            step, loss = step + 1, next_loss(loss)
            log.write(f"{attempt} {step} {loss.hex()} {time.time():.2f}\n")
            if step % 5 == 0:
                saves.write(step, loss)
    if step < steps:
        saves.write(step, loss)
        return int(os.environ.get("CODE", "138"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
