"""All ranks agree on the step at which they stop."""

from __future__ import annotations

import time
from typing import Any, cast

import torch
from torch import distributed as dist

_LATEST = 1.0
"""Seconds after which all ranks know of a stop signal, unless a step takes longer."""

_SLOW_STEP = _LATEST / 2
"""A rank that waits for the answer in the same step loses about a millisecond. From this duration on, this is cheap."""

_MOST_STEPS = 50


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
        """Return whether all ranks stop now. Each rank calls this once after each step.

        Args:
            done: Steps that are done.
            requested: This rank was asked to stop.
        """
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
