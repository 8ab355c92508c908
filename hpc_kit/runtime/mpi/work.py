"""Handles of what was asked for: torch waits by them, or by their futures."""

from __future__ import annotations

import threading
import time
import traceback
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

NO_TIMEOUT = timedelta(0)
"""What torch gives for a time-out that nobody has chosen."""


class CallbackThreads:
    """Threads that complete futures: what hangs on a future runs there, and may wait for another collective.

    There is always one that is free: a call that waits keeps no other from being told.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._guard = threading.Lock()
        self._free = self._busy = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Make the call soon, on a thread of its own."""
        with self._guard:
            self._busy += 1
            is_new = self._free == 0
            self._free -= not is_new
        self._calls.put(call)
        if is_new:
            threading.Thread(target=self._serve, name="hpc_kit_mpi_told", daemon=True).start()

    def wait_until_idle(self, seconds: float) -> None:
        """Wait until no call is under way, or so long: a thread in torch at the interpreter's end aborts it."""
        until = time.monotonic() + seconds
        while self._busy and time.monotonic() < until:
            time.sleep(0.0005)

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            try:
                call()
            except Exception:  # noqa: BLE001 (nobody waits for this thread: it tells, and is there for the next call)
                traceback.print_exc()
            finally:
                del call  # it holds the tensors of a call that is over
                with self._guard:
                    self._busy -= 1
                    self._free += 1


CALLBACK_THREADS = CallbackThreads()


class Pending(dist.Work):
    """What was asked for without waiting."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self.done = False
        self.error: BaseException | None = None
        self._tensors = tensors
        self._future: torch.futures.Future[list[Tensor]] | None = None
        self._awaited: threading.Event | None = None
        self._guard = threading.Lock()

    def finished(self, error: BaseException | None) -> None:
        """Say that it is done, or why it is not."""
        with self._guard:
            self.error, self.done = error, True
            future = self._future
            if self._awaited is not None:
                self._awaited.set()
        if future is not None:
            CALLBACK_THREADS.submit(lambda: self._tell(future))

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of its tensors; DistributedDataParallel waits for it and for nothing else."""
        with self._guard:
            if self._future is None:
                self._future = torch.futures.Future()
                told = not self.done
            else:
                told = True
        if not told:
            self._tell(self._future)
        return self._future

    def _await(self, seconds: float) -> None:
        """Wait while others do it.

        Raises:
            DistBackendError: They have not, in this time; it goes on, and may be waited for again.
        """
        with self._guard:
            if self.done:
                return
            self._awaited = self._awaited or threading.Event()
        if not self._awaited.wait(seconds):
            raise dist.DistBackendError(f"mpi: timed out waiting {seconds:g} s for an operation")

    def _is_told(self) -> None:
        """Whoever has waited for it finds its future done, too; what hangs on that may still run."""
        while self._future is not None and not self._future.done():
            time.sleep(0)

    def _tell(self, future: torch.futures.Future[list[Tensor]]) -> None:
        if self.error is None:
            future.set_result(self._tensors)
        else:
            future.set_exception(RuntimeError(str(self.error)))  # type: ignore[arg-type]

    def is_completed(self) -> bool:
        """Whether it is done, well or not."""
        return self.done

    def is_success(self) -> bool:
        """Whether it is done, and well."""
        return self.done and self.error is None

    def exception(self) -> BaseException | None:
        """Why it failed."""
        return self.error

    def result(self) -> list[Tensor]:
        """The tensors that it has filled."""
        return self._tensors

    def synchronize(self) -> None:
        """Wait until it is done."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait until it is done: what is on the CPU has no stream."""
        self.wait()


class CombinedWork(dist.Work):
    """Several as one; without any, what is done already."""

    def __init__(self, works: Sequence[dist.Work] = ()) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until all are done."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all are done."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all are done, and well."""
        return all(work.is_success() for work in self._works)
