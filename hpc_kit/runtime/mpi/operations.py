"""Queues the collectives of a group, in the same order on every rank, and waits for them with time-outs."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed as dist
from torch.distributed import DistBackendError

from hpc_kit.runtime.mpi.buffers import stream_events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    import torch
    from torch import Tensor

    Run = Callable[[bool], None]
    """Runs the whole operation. The argument is true if the caller only waits for it."""
    from types import ModuleType


NO_TIMEOUT = timedelta(0)
"""torch's value for a time-out that was not given."""


class CallbackThreads:
    """Threads that complete futures. Callbacks of a future run there and may wait for another collective.

    One thread is always free, so a callback that waits does not delay other futures.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._guard = threading.Lock()
        self._free = self._busy = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Run the call soon on one of the threads."""
        with self._guard:
            self._busy += 1
            is_new = self._free == 0
            self._free -= not is_new
        self._calls.put(call)
        if is_new:
            threading.Thread(target=self._serve, name="hpc_kit_mpi_told", daemon=True).start()

    def wait_until_idle(self, seconds: float) -> None:
        """Wait until no call runs, at most `seconds`. A thread inside torch would abort the interpreter at its end."""
        until = time.monotonic() + seconds
        while self._busy and time.monotonic() < until:
            time.sleep(0.0005)

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            try:
                call()
            except Exception:  # noqa: BLE001 (this thread prints the error and continues with the next call)
                traceback.print_exc()
            finally:
                del call  # a finished call would keep its tensors alive
                with self._guard:
                    self._busy -= 1
                    self._free += 1


CALLBACK_THREADS = CallbackThreads()


class Pending(dist.Work):
    """An asynchronous operation, torch's Work."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self.done = False
        self.error: BaseException | None = None
        self._tensors = tensors
        self._future: torch.futures.Future[list[Tensor]] | None = None
        self._awaited: threading.Event | None = None
        self._guard = threading.Lock()

    def finished(self, error: BaseException | None) -> None:
        """Mark the operation as completed or failed."""
        with self._guard:
            self.error, self.done = error, True
            future = self._future
            if self._awaited is not None:
                self._awaited.set()
        if future is not None:
            CALLBACK_THREADS.submit(lambda: self._tell(future))

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return a future of the tensors. DistributedDataParallel waits only for this future."""
        with self._guard:
            if self._future is None:
                self._future = torch.futures.Future()
                is_completed_later = not self.done
            else:
                is_completed_later = True
        if not is_completed_later:
            self._tell(self._future)
        return self._future

    def _await(self, seconds: float) -> None:
        """Wait for completion by another thread.

        Raises:
            DistBackendError: It did not complete in time. It continues and can be waited for again.
        """
        with self._guard:
            if self.done:
                return
            self._awaited = self._awaited or threading.Event()
        if not self._awaited.wait(seconds):
            raise dist.DistBackendError(f"mpi: timed out waiting {seconds:g} s for an operation")

    def _is_told(self) -> None:
        """Wait until the future is completed, too. Its callbacks may still run."""
        while self._future is not None and not self._future.done():
            time.sleep(0)

    def _tell(self, future: torch.futures.Future[list[Tensor]]) -> None:
        if self.error is None:
            future.set_result(self._tensors)
        else:
            future.set_exception(RuntimeError(str(self.error)))  # type: ignore[arg-type]

    def is_completed(self) -> bool:
        """Return whether the operation has completed or failed."""
        return self.done

    def is_success(self) -> bool:
        """Return whether the operation has completed without an error."""
        return self.done and self.error is None

    def exception(self) -> BaseException | None:
        """Return the error, or None."""
        return self.error

    def result(self) -> list[Tensor]:
        """Return the output tensors."""
        return self._tensors

    def synchronize(self) -> None:
        """Wait for completion."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait for completion; CPU tensors have no stream."""
        self.wait()


class CombinedWork(dist.Work):
    """Several operations as one. An empty one is completed."""

    def __init__(self, works: Sequence[dist.Work] = ()) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for all operations."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Return whether all operations have completed or failed."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all operations have completed without an error."""
        return all(work.is_success() for work in self._works)


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


_WRONG = ("ERR_RANK", "ERR_ROOT", "ERR_TAG")
"""Errors that MPI finds before anything is sent, so no other rank is affected."""


_MISFITS = ("ERR_TRUNCATE", "ERR_COUNT", "ERR_ARG", "ERR_TYPE", "ERR_BUFFER")


class MpiErrors:
    """Conversion of the errors of one MPI library."""

    def __init__(self, module: ModuleType) -> None:
        self.mpi_error: type[Exception] = module.Exception
        self._wrong = {getattr(module, name) for name in _WRONG}
        self._misfits = {getattr(module, name) for name in _MISFITS}

    def describe(self, what: str, error: Exception) -> DistBackendError | ValueError:
        """Return the exception to raise.

        A ValueError leaves the group usable. Only the loss of a rank counts as peer loss.
        """
        kind: int = error.Get_error_class()  # type: ignore[attr-defined]
        if kind in self._wrong:
            return ValueError(f"mpi: {what}: {error}")
        if kind in self._misfits:
            return size_mismatch(what, str(error))
        return DistBackendError(f"mpi: {what}: {error}\n  remote process exited, or its network failed")


def size_mismatch(what: str, found: str) -> DistBackendError:
    """Return the error for ranks whose tensors do not match."""
    return DistBackendError(
        f"mpi: {what}: {found}\n"
        "  the ranks' tensors do not fit one another: each rank must give the same sizes and types, in the same order"
    )


_CALLBACKS = 5.0
"""Seconds that the end of a group waits for callbacks of its futures."""


def run_after_events(recorded: Sequence[torch.cuda.Event], run: Run) -> Run:
    """Return `run` preceded by a wait for the caller's GPU work. The thread that runs it has other streams."""
    if not recorded:
        return run

    def run_after(eager: bool) -> None:
        for event in recorded:
            event.synchronize()
        run(eager)

    return run_after


class Operation(Pending):
    """A collective in the queue."""

    def __init__(self, line: OperationQueue, run: Run, tensors: list[Tensor]) -> None:
        super().__init__(tensors)
        self.run = run
        self._line = line

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for completion. An operation that has not started runs in the waiting thread."""
        if not self.done:
            seconds = timeout.total_seconds()
            if seconds > 0:
                # The thread that runs an operation observes the time-out of the group.
                self._await(seconds)
            else:
                self._line.run_until(self)
        self._is_told()
        if self.error is not None:
            raise self.error
        return True


class OperationQueue:
    """Runs queued operations one at a time, in its own thread or in a waiting one.

    An operation that its caller waits for runs in the caller's thread. A change of threads would cost microseconds.
    """

    def __init__(self, on_break: Callable[[], object]) -> None:
        self._on_break = on_break
        self._waiting: deque[Operation] = deque()
        self._turn = threading.Lock()
        self._wake = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._closed = False
        self.broken: BaseException | None = None

    def run_in_caller(self, run: Run, tensors: Sequence[Tensor]) -> None:
        """Run all queued operations and then this one, and return after its completion."""
        if self._waiting or not self._turn.acquire(blocking=False):
            self.enqueue(run, tensors).wait()
            return
        try:
            self._do(run, eager=True)
        finally:
            self._turn.release()

    def enqueue(self, run: Run, tensors: Sequence[Tensor]) -> Operation:
        """Queue an operation, which a thread starts when it is the first in the queue."""
        operation = Operation(self, run_after_events(stream_events(tensors), run), list(tensors))
        self._waiting.append(operation)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="hpc_kit_mpi", daemon=True)
            self._thread.start()
        self._wake.release()
        return operation

    def run_until(self, operation: Operation) -> None:
        """Run queued operations up to this one, or wait while another thread runs it."""
        while not operation.done:
            with self._turn:
                while not operation.done:
                    self._next(eager=True)

    def is_idle(self) -> bool:
        """Return whether no operation is queued or running."""
        return not self._waiting and not self._turn.locked()

    def close(self) -> None:
        """Run the queued operations and those that callbacks add, and end the thread."""
        CALLBACK_THREADS.wait_until_idle(_CALLBACKS)
        self._closed = True
        self._wake.release()
        if self._thread is not None:
            self._thread.join()
            CALLBACK_THREADS.wait_until_idle(_CALLBACKS)

    def fail(self, error: BaseException, *, harmless: bool = False) -> None:
        """Make the group unusable. MPI_Finalize would wait without end, so the process must end by MPI_Abort.

        Args:
            error: The reason.
            harmless: No rank waits for this one, so the process may end normally.
        """
        if self.broken is None:
            self.broken = error
            if not harmless:
                self._on_break()

    def _serve(self) -> None:
        while True:
            self._wake.acquire()
            with self._turn:
                if self._waiting:
                    self._next(eager=False)
                elif self._closed:
                    return

    def _next(self, *, eager: bool) -> None:
        operation = self._waiting[0]
        try:
            self._do(operation.run, eager=eager)
        except BaseException as error:  # noqa: BLE001 (raised in the waiting thread)
            error_of_it: BaseException | None = error
        else:
            error_of_it = None
        self._waiting.popleft()
        operation.finished(error_of_it)

    def raise_if_broken(self) -> None:
        """Raise an error if an earlier operation failed, because later ones could not match those of other ranks.

        Raises:
            DistBackendError: An earlier operation failed.
        """
        if self.broken is not None:
            raise dist.DistBackendError(f"mpi: the group is broken since an earlier operation failed: {self.broken}")

    def _do(self, run: Run, *, eager: bool) -> None:
        if self.broken is not None:
            self.raise_if_broken()
        try:
            run(eager)
        except (dist.DistBackendError, KeyboardInterrupt) as error:
            # Other ranks are in the middle of this operation or gone, so later operations could not match.
            self.fail(error)
            raise
