"""A training that is told to end, such as by `signal = "USR1@120"` in the job: it saves and ends at the next line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from hpc_kit.errors import JobFailed


class Stopped(JobFailed):
    """It ended before its last step, as it was told to."""

    exit_status: ClassVar[int] = 128 + signal.SIGUSR1
    """As of a program that does not heed the signal."""

    @classmethod
    def at(cls, step: int, steps: int, checkpoint: Path | None) -> Stopped:
        """With what is left of it."""
        kept = (
            f"step {step} of {steps} is in {checkpoint}" if checkpoint else f"step {step} of {steps}; nothing is saved"
        )
        remedy = f"--resume {checkpoint}" if checkpoint else "--checkpoint PATH keeps what was trained"
        return cls("the training was told to stop, by SIGUSR1", found=kept, remedy=remedy)


@contextmanager
def heard() -> Iterator[threading.Event]:
    """What is set once this rank has got the signal; only Python's main thread, where Ray runs no rank, can hear it."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = signal.signal(signal.SIGUSR1, lambda *_: told.set())
    try:
        yield told
    finally:
        signal.signal(signal.SIGUSR1, before)
