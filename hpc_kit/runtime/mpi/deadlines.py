"""Time-outs of MPI calls, and the conversion of MPI's errors to torch's."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from torch.distributed import DistBackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from torch import Tensor

Answer = TypeVar("Answer")

_SPINS = 2000
"""Number of tests, of less than a microsecond each, before the CPU is yielded."""

_SLEEPS_AFTER, _SHORT = 0.05, 0.00005
"""Seconds of waiting after which the thread sleeps between tests, and the length of a sleep."""

_LATE_AFTER, _LONG = 1.0, 0.0005
"""The same for waits that are longer than a rank's time slice on a shared core."""


class Deadline:
    """Time-out of one collective, and the polling of its completion."""

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
        """The time-out of this operation, or of the group."""
        given = 0.0 if self._options is None else self._options.timeout.total_seconds()
        return given if given > 0 else self._default

    @property
    def what(self) -> str:
        """Description of the operation for messages."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)
        return f"{self._name} of {size} bytes" if self._tensors else self._name

    def finish(self, request: Any) -> None:
        """Wait for one MPI request or a list of them.

        Raises:
            DistBackendError: MPI lost a rank, or the time-out has passed.
        """
        for _ in range(self.spins):
            if _done(request):
                return
        while not _done(request):
            self.pause()

    def pause(self) -> None:
        """Yield the CPU for a moment.

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
                "  a rank is late or has gone: read its log; HPC_KIT_TIMEOUT=SECONDS, or "
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
    """Return the result of `make`, with a time-out. MPI's own waits for an absent rank do not end.

    Raises:
        DistBackendError: The time-out has passed.
    """
    answers: list[Answer] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(make())
        except BaseException as error:  # noqa: BLE001 (raised in the waiting thread)
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not answers:
        raise DistBackendError(f"mpi: timed out waiting {seconds:g} s for {what}")
    return answers[0]


_WRONG_ARGUMENTS = ("ERR_RANK", "ERR_ROOT", "ERR_TAG")
"""Errors that MPI finds before anything is sent, so no other rank is affected."""

_SIZE_MISMATCHES = ("ERR_TRUNCATE", "ERR_COUNT", "ERR_ARG", "ERR_TYPE", "ERR_BUFFER")
"""Errors that MPI finds when the tensors of two ranks do not match. The other rank is affected, too."""


class MpiErrors:
    """Conversion of the errors of one MPI library."""

    def __init__(self, module: ModuleType) -> None:
        self.mpi_error: type[Exception] = module.Exception
        self._wrong_arguments = {getattr(module, name) for name in _WRONG_ARGUMENTS}
        self._size_mismatches = {getattr(module, name) for name in _SIZE_MISMATCHES}

    def describe(self, what: str, error: Exception) -> DistBackendError | ValueError:
        """Return the exception to raise.

        A ValueError leaves the group usable. Only the loss of a rank counts as peer loss.
        """
        kind: int = error.Get_error_class()  # type: ignore[attr-defined]
        if kind in self._wrong_arguments:
            return ValueError(f"mpi: {what}: {error}")
        if kind in self._size_mismatches:
            return size_mismatch(what, str(error))
        return DistBackendError(f"mpi: {what}: {error}\n  remote process exited, or its network failed")


def size_mismatch(what: str, found: str) -> DistBackendError:
    """Return the error for ranks whose tensors do not match."""
    return DistBackendError(
        f"mpi: {what}: {found}\n"
        "  the ranks' tensors do not fit one another: each rank must give the same sizes and types, in the same order"
    )
