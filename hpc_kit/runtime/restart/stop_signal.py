"""The signal that asks a training to save and end, such as SIGUSR1 two minutes before the time limit.

All ranks agree on the step at which they stop.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Self, cast

import torch
from torch import distributed as dist

from hpc_kit.errors import JobFailed, SpecError

Handler = Callable[[int, FrameType | None], Any] | int | None

STOP_SIGNAL_VARIABLE = "HPC_KIT_STOP_SIGNAL"
"""Environment variable, set by the script: the signals that ask for a stop, such as `USR1` or `USR1,TERM`."""

LEAD_VARIABLE = "HPC_KIT_RESTART_LEAD"
"""Environment variable, set by the script of a job with [restart]: seconds between the stop signal and the end of the
job."""

_LATEST = 1.0
"""Seconds after which all ranks know of a stop signal, unless a step takes longer."""

_SLOW_STEP = _LATEST / 2
"""A rank that waits for the answer in the same step loses about a millisecond. From this duration on, this is cheap."""

_MOST_STEPS = 50


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


class StopAgreement:
    """Decides in the same step on all ranks whether to stop, with one message of two numbers every few steps.

    The message (an all-reduce: whether a rank was asked to stop, and the duration of its step) travels while the next
    step computes, and its answer is read after that step. So no rank waits for it. If steps are slow, the answer is
    read in the same step. All ranks have the same answer, and so the same number of steps until the next message.

    Args:
        every: Steps between two messages, whose answers are read in the same step. None: chosen from the duration of a
            step.
        group: A group of all ranks for messages between CPUs. Default: the default group, or this process alone.
    """

    def __init__(self, every: int | None = None, group: dist.ProcessGroup | None = None) -> None:
        self.every, self.group = every, group
        self.step_seconds = 0.0
        """Duration of the latest steps on the slowest rank; 0 before the second step."""
        self._steps, self._next = 0, 1
        self._sent: tuple[Any, torch.Tensor] | None = None
        self._last_message: tuple[int, float] | None = None

    @property
    def seconds_late(self) -> float:
        """The longest time between a stop signal and the step that answers it."""
        if self.every:
            return self.every * self.step_seconds
        return self.step_seconds if self._is_slow else (self._interval + 1) * self.step_seconds

    def is_stop(self, done: int, requested: bool) -> bool:
        """Return whether all ranks stop after `done` steps. Each rank calls this once after each step."""
        self._steps += 1
        if self.every:
            if done % self.every:
                return False
            self._send(requested)
            return self._receive()
        if self._sent and self._receive():
            return True
        if self._steps < self._next:
            return False
        self._send(requested)
        # Also at the first step, whose duration is not known, and without other ranks.
        return self._receive() if self._is_slow or not dist.is_initialized() else False

    @property
    def _is_slow(self) -> bool:
        return self.step_seconds >= _SLOW_STEP or not self.step_seconds

    @property
    def _interval(self) -> int:
        if not self.step_seconds:
            return 1
        return max(1, min(int(_LATEST / self.step_seconds) - 1, _MOST_STEPS))

    def _send(self, requested: bool) -> None:
        now = time.monotonic()
        steps, then = self._last_message or (self._steps - 1, now)  # the time before the first step is unknown
        self._last_message = self._steps, now
        seconds = (now - then) / (self._steps - steps)
        values = torch.tensor([float(requested), seconds], dtype=torch.float64)
        work = None
        if dist.is_initialized():
            work = dist.all_reduce(values, dist.ReduceOp.MAX, self.group, async_op=True)
        self._sent = work, values

    def _receive(self) -> bool:
        work, values = cast("tuple[Any, torch.Tensor]", self._sent)
        self._sent = None
        if work is not None:
            work.wait()
        requested, self.step_seconds = values.tolist()
        self._next = cast("tuple[int, float]", self._last_message)[0] + self._interval
        return bool(requested)
