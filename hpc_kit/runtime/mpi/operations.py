"""The collectives of one group, in the order in which every rank asks for them."""

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
    """Does the whole operation; told whether somebody waits for it and does nothing else."""
    from types import ModuleType


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


_WRONG = ("ERR_RANK", "ERR_ROOT", "ERR_TAG")
"""Found before anything is sent: no other rank is touched by it."""


_MISFITS = ("ERR_TRUNCATE", "ERR_COUNT", "ERR_ARG", "ERR_TYPE", "ERR_BUFFER")


class MpiErrors:
    """The errors of one MPI."""

    def __init__(self, module: ModuleType) -> None:
        self.mpi_error: type[Exception] = module.Exception
        self._wrong = {getattr(module, name) for name in _WRONG}
        self._misfits = {getattr(module, name) for name in _MISFITS}

    def describe(self, what: str, error: Exception) -> DistBackendError | ValueError:
        """The error to raise: a ValueError breaks no group, and only that of a lost rank goes for a victim's."""
        kind: int = error.Get_error_class()  # type: ignore[attr-defined]
        if kind in self._wrong:
            return ValueError(f"mpi: {what}: {error}")
        if kind in self._misfits:
            return size_mismatch(what, str(error))
        return DistBackendError(f"mpi: {what}: {error}\n  remote process exited, or its network failed")


def size_mismatch(what: str, found: str) -> DistBackendError:
    """The error of ranks that do not do the same."""
    return DistBackendError(
        f"mpi: {what}: {found}\n"
        "  the ranks' tensors do not fit one another: each rank must give the same sizes and types, in the same order"
    )


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
