"""The collectives of one group, in the order in which every rank asks for them."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from torch import distributed as dist

from hpc_kit.runtime.mpi.buffers import stream_events
from hpc_kit.runtime.mpi.work import CALLBACK_THREADS, NO_TIMEOUT, Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    import torch
    from torch import Tensor

    Run = Callable[[bool], None]
    """Does the whole operation; told whether somebody waits for it and does nothing else."""


_CALLBACKS = 5.0
"""Seconds that a group's end waits for the callbacks of its futures."""


def run_after_events(recorded: Sequence[torch.cuda.Event], run: Run) -> Run:
    """The same, once what the caller had asked of its GPUs is done; the thread in which it runs has other streams."""
    if not recorded:
        return run

    def run_after(eager: bool) -> None:
        for event in recorded:
            event.synchronize()
        run(eager)

    return run_after


class Operation(Pending):
    """A collective in line."""

    def __init__(self, line: OperationQueue, run: Run, tensors: list[Tensor]) -> None:
        super().__init__(tensors)
        self.run = run
        self._line = line

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until it is done, and help: an operation that nobody has begun is done here."""
        if not self.done:
            seconds = timeout.total_seconds()
            if seconds > 0:
                # Whoever brings an operation keeps to the time-out of the group.
                self._await(seconds)
            else:
                self._line.run_until(self)
        self._is_told()
        if self.error is not None:
            raise self.error
        return True


class OperationQueue:
    """Operations in line: one is done at a time, by a thread of their own or by whoever waits.

    An operation that its caller waits for is done in the caller's thread, without a hop: it costs microseconds.
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
        """Do an operation and come back when it is done, and all that were asked for before it."""
        if self._waiting or not self._turn.acquire(blocking=False):
            self.enqueue(run, tensors).wait()
            return
        try:
            self._do(run, eager=True)
        finally:
            self._turn.release()

    def enqueue(self, run: Run, tensors: Sequence[Tensor]) -> Operation:
        """Put an operation into the line; a thread begins it as soon as it is the first."""
        operation = Operation(self, run_after_events(stream_events(tensors), run), list(tensors))
        self._waiting.append(operation)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="hpc_kit_mpi", daemon=True)
            self._thread.start()
        self._wake.release()
        return operation

    def run_until(self, operation: Operation) -> None:
        """Do what stands in line, up to an operation; or wait while another thread does it."""
        while not operation.done:
            with self._turn:
                while not operation.done:
                    self._next(eager=True)

    def is_idle(self) -> bool:
        """Whether nothing is asked for or under way."""
        return not self._waiting and not self._turn.locked()

    def close(self) -> None:
        """Do what is left, what callbacks ask for too, and end the thread."""
        CALLBACK_THREADS.wait_until_idle(_CALLBACKS)
        self._closed = True
        self._wake.release()
        if self._thread is not None:
            self._thread.join()
            CALLBACK_THREADS.wait_until_idle(_CALLBACKS)

    def fail(self, error: BaseException, *, harmless: bool = False) -> None:
        """Nothing can be done in this group any more: MPI would wait for ever at the process's end.

        Args:
            error: Why.
            harmless: No rank waits for this one: the process may end as ever.
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
        except BaseException as error:  # noqa: BLE001 (whoever waits for it gets it)
            error_of_it: BaseException | None = error
        else:
            error_of_it = None
        self._waiting.popleft()
        operation.finished(error_of_it)

    def raise_if_broken(self) -> None:
        """Nothing after what failed could match.

        Raises:
            DistBackendError: Something has failed.
        """
        if self.broken is not None:
            raise dist.DistBackendError(f"mpi: the group is broken since an earlier operation failed: {self.broken}")

    def _do(self, run: Run, *, eager: bool) -> None:
        if self.broken is not None:
            self.raise_if_broken()
        try:
            run(eager)
        except (dist.DistBackendError, KeyboardInterrupt) as error:
            # The other ranks are in the middle of it, or gone: nothing after it could match.
            self.fail(error)
            raise
