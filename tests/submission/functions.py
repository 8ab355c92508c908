"""Functions that the tests of the executor run in jobs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from submitit.helpers import Checkpointable, DelayedSubmission


def rank() -> int:
    return int(os.environ["SLURM_PROCID"])


def add(a: int, b: int) -> tuple[int, int]:
    """The sum, and who says so."""
    print(f"rank {rank()} adds")
    return rank(), a + b


def fail_on_rank(bad: int) -> int:
    """One rank raises, the others wait for it for ever."""
    if rank() == bad:
        raise ValueError(f"bad sample on rank {bad}")
    time.sleep(60)
    return rank()


def kill_itself() -> None:
    os.kill(os.getpid(), 9)


def read_variables() -> dict[str, str]:
    names = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "HPC_KIT_RUN", "SUBMITIT_EXECUTOR", "SLURM_JOB_NAME")
    return {name: os.environ.get(name, "") for name in names}


class Counter(Checkpointable):
    """Goes on where it was when it is requeued."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempts = 0

    def __call__(self) -> int:
        self.attempts += 1
        (self.folder / f"attempt-{self.attempts}").touch()
        if self.attempts == 1:
            time.sleep(60)
        return self.attempts

    def checkpoint(self) -> DelayedSubmission:
        return DelayedSubmission(self)
