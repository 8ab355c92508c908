"""torch's `Work` objects for operations of the backend mpi, and the threads that complete their futures."""

from __future__ import annotations

import threading
import time
import traceback
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch.distributed import DistBackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

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
            threading.Thread(target=self._serve, name="hpc_kit_mpi_callbacks", daemon=True).start()

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
            CALLBACK_THREADS.submit(lambda: self._complete(future))

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return a future of the tensors. DistributedDataParallel waits only for this future."""
        with self._guard:
            if self._future is None:
                self._future = torch.futures.Future()
                is_completed_later = not self.done
            else:
                is_completed_later = True
        if not is_completed_later:
            self._complete(self._future)
        return self._future

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

    def wait_for_future(self) -> None:
        """Wait until the future is completed, too. Its callbacks may still run."""
        while self._future is not None and not self._future.done():
            time.sleep(0)

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
