"""The signal that asks a training to save and end, such as `signal = "USR1@120"` in the job file."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Self

from hpc_kit.errors import JobFailed

Handler = Callable[[int, FrameType | None], Any] | int | None


class TrainingStopped(JobFailed):
    """The training ended before its last step because it was asked to."""

    exit_status: ClassVar[int] = 128 + signal.SIGUSR1
    """The status of a program that SIGUSR1 kills, so that both look alike to Slurm."""

    @classmethod
    def at_step(cls, step: int, steps: int, checkpoint: Path | None) -> TrainingStopped:
        """Return the error with the step and the checkpoint to resume from."""
        reached = f"step {step} of {steps}"
        found = f"{reached} is in {checkpoint}" if checkpoint else f"{reached}; nothing is saved"
        remedy = f"--resume {checkpoint}" if checkpoint else "--checkpoint PATH keeps what was trained"
        return cls("the training stopped because of SIGUSR1", found=found, remedy=remedy)


class StopSignal:
    """A context manager whose `requested` becomes true when this process receives SIGUSR1."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._previous: Handler = None

    @property
    def requested(self) -> bool:
        """True after the signal came."""
        return self._requested.is_set()

    def __enter__(self) -> Self:
        # Python delivers signals to its main thread only. Ray runs a rank in another thread.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGUSR1, lambda *_: self._requested.set())
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGUSR1, self._previous)
