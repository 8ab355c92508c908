"""Waiting for MPI without being lost in it: every wait ends, with the answer or at its time-out."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from torch.distributed import DistBackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

Answer = TypeVar("Answer")

_SPINS = 2000
"""Tests, of less than a microsecond each, before the CPU is offered to others."""
_SLEEPS_AFTER, _SHORT = 0.05, 0.00005
"""Seconds of waiting after which it sleeps between two tests, and how long."""
_LATE_AFTER, _LONG = 1.0, 0.0005
"""The same for what takes longer than a rank's turn on a shared core."""


class Deadline:
    """How long one collective may take, and how eagerly it is waited for."""

    __slots__ = ("_default", "_name", "_options", "_start", "_tensors", "spins")

    def __init__(
        self, name: str, tensors: Sequence[Tensor], default: float, *, options: Any = None, eager: bool = True
    ) -> None:
        self._name = name
        self._tensors = tensors
        self._default = default
        self._options = options
        self.spins = _SPINS if eager else 0
        self._start = 0.0

    @property
    def seconds(self) -> float:
        """The time-out: the one chosen for this operation, or the group's."""
        given = 0.0 if self._options is None else self._options.timeout.total_seconds()
        return given if given > 0 else self._default

    @property
    def what(self) -> str:
        """What is waited for, in words."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)
        return f"{self._name} of {size} bytes" if self._tensors else self._name

    def finish(self, request: Any) -> None:
        """Wait for a request, or for all of a list.

        Raises:
            DistBackendError: MPI has lost a rank, or the time-out has passed.
        """
        for _ in range(self.spins):
            if _done(request):
                return
        while not _done(request):
            self.pause()

    def pause(self) -> None:
        """Leave the CPU to others for a moment.

        Raises:
            DistBackendError: The time-out has passed.
        """
        now = time.monotonic()
        self._start = self._start or now
        waited = now - self._start
        seconds = self.seconds
        if waited > seconds:
            raise DistBackendError(
                f"mpi: {self.what} timed out waiting for the other ranks after {seconds:g} s\n"
                "  a rank is late or has gone: its log tells why; HPC_KIT_TIMEOUT=SECONDS, or "
                f"init_process_group(timeout=...), waits longer"
            )
        if waited < _SLEEPS_AFTER:
            os.sched_yield()
        else:
            time.sleep(_SHORT if waited < _LATE_AFTER else _LONG)


def _done(request: Any) -> bool:
    if isinstance(request, list):
        return not request or bool(request[0].Testall(request))
    return bool(request.Test())


def run_with_timeout(make: Callable[[], Answer], seconds: float, what: str) -> Answer:
    """What `make` returns; MPI's own waits have no end where a rank never comes.

    Raises:
        DistBackendError: It took too long.
    """
    answers: list[Answer] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(make())
        except BaseException as error:  # noqa: BLE001 (told to the thread that waits)
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not answers:
        raise DistBackendError(f"mpi: timed out waiting {seconds:g} s for {what}")
    return answers[0]
