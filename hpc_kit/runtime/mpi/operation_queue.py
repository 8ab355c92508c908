"""Queues the collectives of a group, which run one at a time and in the same order on every rank."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from torch.distributed import DistBackendError

from hpc_kit.runtime.mpi.buffers import stream_events
from hpc_kit.runtime.mpi.work import CALLBACK_THREADS, NO_TIMEOUT, Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    import torch
    from torch import Tensor

    Run = Callable[[bool], None]
    """Runs the whole operation. The argument is true if the caller only waits for it."""

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

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for completion. An operation that has not started runs in the waiting thread."""
        if not self.done:
            seconds = timeout.total_seconds()
            if seconds > 0:
                # The thread that runs an operation observes the time-out of the group.
                self.wait_for_thread(seconds)
            else:
                self._queue.run_until(self)
        self.wait_for_future()
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
