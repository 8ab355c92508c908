"""torch's `Work` objects for operations of the backend mpi, the queue of collectives, and the threads of futures.

Collectives of a group run one at a time and in the same order on every rank.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch.distributed import DistBackendError

from hpc_kit.runtime.mpi.buffers import stream_events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Run = Callable[[bool], None]
    """Runs the whole operation. The argument is true if the caller only waits for it."""

NO_TIMEOUT = timedelta(0)
"""torch's value for a time-out that was not given."""


class CallbackThreads:
    """Threads that complete futures. Callbacks of a future run there and may wait for another collective.

    One thread is always free, so a callback that waits does not delay other futures. The threads of an executor would
    delay the end of the interpreter, and run nothing in exit handlers.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._guard = threading.Lock()
        self._free = self._busy = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Run the call soon on one of the threads, or now where no thread can be started."""
        with self._guard:
            self._busy += 1
            is_new = self._free == 0
            self._free -= not is_new
        if is_new:
            try:
                threading.Thread(target=self._serve, name="hpc_kit_mpi_callbacks", daemon=True).start()
            except RuntimeError:  # in exit handlers, since Python 3.12
                self._run(call)
                return
        self._calls.put(call)

    def wait_until_idle(self, seconds: float) -> None:
        """Wait until no call runs, at most `seconds`. A thread inside torch would abort the interpreter at its end."""
        until = time.monotonic() + seconds
        while self._busy and time.monotonic() < until:
            time.sleep(0.0005)

    def _serve(self) -> None:
        while True:
            self._run(self._calls.get())
            with self._guard:
                self._free += 1

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 (nobody waits for the result of a callback)
            traceback.print_exc()
        with self._guard:
            self._busy -= 1


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
            CALLBACK_THREADS.submit(lambda: self._complete(future))

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return a future of the tensors. DistributedDataParallel waits only for this future."""
        with self._guard:
            is_new = self._future is None
            future = self._future = torch.futures.Future() if self._future is None else self._future
            is_late = is_new and self.done
        if is_late:
            self._complete(future)
        return future

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for completion. After the caller's own time-out, the operation can be waited for again.

        Raises:
            DistBackendError: A rank is lost, or the time-out has passed.
        """
        if not self.done:
            self.wait_within(timeout.total_seconds())
        while self._future is not None and not self._future.done():  # its callbacks may still run
            time.sleep(0)
        if self.error is not None:
            raise self.error
        return True

    def wait_within(self, seconds: float) -> None:
        """Wait for completion, for `seconds`; 0 is the time-out of the group."""
        raise NotImplementedError

    def wait_for_thread(self, seconds: float) -> None:
        """Wait for completion by another thread.

        Raises:
            DistBackendError: It did not complete in time. It continues and can be waited for again.
        """
        with self._guard:
            if self.done:
                return
            self._awaited = self._awaited or threading.Event()
        if not self._awaited.wait(seconds):
            raise DistBackendError(f"mpi: timed out waiting {seconds:g} s for an operation")

    def _complete(self, future: torch.futures.Future[list[Tensor]]) -> None:
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


_CALLBACK_SECONDS = 5.0
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

    def __init__(self, queue: OperationQueue, run: Run, tensors: list[Tensor]) -> None:
        super().__init__(tensors)
        self.run = run
        self._queue = queue

    def wait_within(self, seconds: float) -> None:
        """An operation that has not started runs in the waiting thread, which observes the time-out of the group."""
        if seconds > 0:
            self.wait_for_thread(seconds)
        else:
            self._queue.run_until(self)


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
        CALLBACK_THREADS.wait_until_idle(_CALLBACK_SECONDS)
        self._closed = True
        self._wake.release()
        if self._thread is not None:
            self._thread.join()
            CALLBACK_THREADS.wait_until_idle(_CALLBACK_SECONDS)

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
            failure: BaseException | None = error
        else:
            failure = None
        self._waiting.popleft()
        operation.finished(failure)

    def raise_if_broken(self) -> None:
        """Raise an error if an earlier operation failed, because later ones could not match those of other ranks.

        Raises:
            DistBackendError: An earlier operation failed.
        """
        if self.broken is not None:
            raise DistBackendError(f"mpi: the group is broken since an earlier operation failed: {self.broken}")

    def _do(self, run: Run, *, eager: bool) -> None:
        self.raise_if_broken()
        try:
            run(eager)
        except (DistBackendError, KeyboardInterrupt) as error:
            # Other ranks are in the middle of this operation or gone, so later operations could not match.
            self.fail(error)
            raise
