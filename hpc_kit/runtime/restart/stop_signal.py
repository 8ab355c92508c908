"""The signal that asks a training to save and end, such as SIGUSR1 two minutes before the time limit."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Self

from hpc_kit.errors import JobFailed, SpecError

Handler = Callable[[int, FrameType | None], Any] | int | None

STOP_SIGNAL_VARIABLE = "HPC_KIT_STOP_SIGNAL"
"""Environment variable, set by the script: the signals that ask for a stop, such as `USR1` or `USR1,TERM`."""

LEAD_VARIABLE = "HPC_KIT_RESTART_LEAD"
"""Environment variable, set by the script of a job with [restart]: seconds between the stop signal and the end of the
job."""


class TrainingStopped(JobFailed):
    """The training ended before its last step because it was asked to."""

    exit_status: ClassVar[int] = 128 + signal.SIGUSR1
    """The status of a program that SIGUSR1 kills, so that both look alike to Slurm."""

    @classmethod
    def at_step(cls, done: int, steps: int, checkpoint: Path | None) -> TrainingStopped:
        """Return the error with the number of steps that are done and the newest checkpoint."""
        names = " or ".join(number.name for number in stop_signals(os.environ))
        reached = f"step {done} of {steps}"
        found = f"{reached}; the newest checkpoint is {checkpoint}" if checkpoint else f"{reached}; nothing is saved"
        remedy = f"--resume {checkpoint}" if checkpoint else "--checkpoint PATH keeps what was trained"
        return cls(f"the training stopped because of {names}", found=found, remedy=remedy)


def stop_signals(environ: Mapping[str, str]) -> list[signal.Signals]:
    """Return the signals that ask for a stop: those of HPC_KIT_STOP_SIGNAL, or SIGUSR1; with [restart] SIGTERM, too.

    Slurm sends SIGTERM to a job that it preempts or requeues, and SIGKILL after `KillWait`, by default 30 s later.

    Raises:
        SpecError: A name is unknown, or no program can handle the signal.
    """
    text = environ.get(STOP_SIGNAL_VARIABLE, "").strip() or "USR1"
    numbers: list[signal.Signals] = []
    for word in re.split(r"[\s,]+", text):
        number = signal.Signals.__members__.get(f"SIG{word.upper().removeprefix('SIG')}")
        if number is None or number in {signal.SIGKILL, signal.SIGSTOP}:
            raise SpecError(
                "this is no signal that a program can handle",
                found=f"{STOP_SIGNAL_VARIABLE}={text}",
                remedy="a name such as USR1, or several: USR1,TERM",
            )
        numbers.append(number)
    return numbers if LEAD_VARIABLE not in environ else list(dict.fromkeys([*numbers, signal.SIGTERM]))


class StopSignal:
    """A flag that is set when this process receives a stop signal.

    The handler only sets the flag, and calls the handler that was installed before. A forked process, such as a worker
    of a DataLoader, inherits the handler: there, the signal has no effect, but for SIGTERM, which ends that process.

    Args:
        environ: Environment with HPC_KIT_STOP_SIGNAL.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.requested = False
        """True after the signal came. A plain attribute: a lock could block a handler that interrupts another one."""
        self._numbers, self._pid = stop_signals(environ), os.getpid()
        self._previous: dict[int, Handler] = {}

    def __enter__(self) -> Self:
        # Python delivers signals to its main thread only. Ray runs a rank in another thread.
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                self._previous[number] = signal.getsignal(number)
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            # A handler that was installed later is left in place. None: a handler of C code, which cannot come back.
            if signal.getsignal(number) == self._handle and previous is not None:
                signal.signal(number, previous)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and os.getpid() != self._pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.requested = True
        previous = self._previous.get(number)
        if callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)
