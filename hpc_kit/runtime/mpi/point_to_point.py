"""Send and receive between two ranks. A message starts immediately and progresses without a waiting caller."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from torch import distributed as dist

from hpc_kit.runtime.mpi.buffers import copy_to_device, host_copy, stream_events
from hpc_kit.runtime.mpi.deadlines import Deadline
from hpc_kit.runtime.mpi.work import Pending

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from torch import Tensor

    from hpc_kit.runtime.mpi.buffers import Datatypes
    from hpc_kit.runtime.mpi.deadlines import MpiErrors
    from hpc_kit.runtime.mpi.work import OperationQueue

_SEND, _RECEIVE = "a message to send", "a message to receive"
_PAUSE = 0.0002
"""Seconds between two polls of messages without a waiting caller."""


class PendingMessage(Pending):
    """A message in progress."""

    def __init__(
        self, owner: Messages, what: str, request: Any, tensor: Tensor, host: Tensor, status: Any, seconds: float
    ) -> None:
        super().__init__([tensor])
        self._owner = owner
        self._request = request
        self._what = what
        self._events = [] if status is None else stream_events([tensor])
        self._host = host
        self._status = status
        self._seconds = seconds
        self._testing = threading.Lock()

    def Test(self) -> bool:  # noqa: N802 (as an MPI.Request)
        """Return whether the message has been sent or received."""
        # One thread at a time may test an MPI request. A second thread returns and tests again later.
        if not self.done and self._testing.acquire(blocking=False):
            try:
                if not self.is_completed() and self._request.Test(self._status):
                    self._complete_receive()
            except self._owner.errors.mpi_error as error:
                self.finished(self._owner.describe_error(self._what, error))
            finally:
                self._testing.release()
        return self.done

    def _complete_receive(self) -> None:
        if self._status is not None:
            for event in self._events:
                event.synchronize()
            copy_to_device(self._tensors[0], self._host)
        self.finished(None)

    def wait_within(self, seconds: float) -> None:
        """Wait for the message. The group's own time-out makes the group unusable."""
        try:
            Deadline(self._what, self._tensors, seconds if seconds > 0 else self._seconds).finish(self)
        except dist.DistBackendError as error:
            if seconds <= 0:
                self._owner.fail(error)
            raise

    def _source_rank(self) -> int:
        source: int = self._status.source
        return source

    source_rank = _source_rank


class Messages:
    """Messages of one communicator."""

    def __init__(
        self, comm: Any, module: ModuleType, types: Datatypes, queue: OperationQueue, errors: MpiErrors
    ) -> None:
        self._comm = comm
        self._mpi = module
        self._types = types
        self._queue = queue
        self.errors = errors
        self._open: set[PendingMessage] = set()
        self._wake = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._closed = False

    def is_idle(self) -> bool:
        """Return whether no message is in progress."""
        return all(message.done for message in list(self._open))

    def close(self) -> None:
        """End the thread after the last message. MPI may write into a pending receive at any time."""
        self._closed = True
        self._wake.release()

    def send(self, tensor: Tensor, to: int, tag: int, seconds: float) -> PendingMessage:
        """Start sending."""
        host = host_copy(tensor)
        request = self._start(_SEND, self._comm.Isend, self._types.transfer_type(host), to, tag)
        return self._track(PendingMessage(self, _SEND, request, tensor, host, None, seconds))

    def receive(self, tensor: Tensor, source: int | None, tag: int, seconds: float) -> PendingMessage:
        """Start receiving, from any rank if `source` is None."""
        host = host_copy(tensor)
        status = self._mpi.Status()
        sender = self._mpi.ANY_SOURCE if source is None else source
        request = self._start(_RECEIVE, self._comm.Irecv, self._types.transfer_type(host), sender, tag)
        return self._track(PendingMessage(self, _RECEIVE, request, tensor, host, status, seconds))

    def _start(self, what: str, start: Callable[..., Any], *words: Any) -> Any:
        self._queue.raise_if_broken()
        try:
            return start(*words)
        except self.errors.mpi_error as error:
            raise self.describe_error(what, error) from error

    def describe_error(self, what: str, error: Exception) -> Exception:
        """Return the exception for a lost message, and make the group unusable."""
        described = self.errors.describe(what, error)
        if isinstance(described, dist.DistBackendError):
            self.fail(described)
        return described

    def fail(self, error: BaseException) -> None:
        """Make the messages of this group fail."""
        self._queue.fail(error)

    def _track(self, message: PendingMessage) -> PendingMessage:
        if message.Test():
            return message
        self._open.add(message)
        if self._thread is None:
            self._thread = threading.Thread(target=self._poll, name="hpc_kit_mpi", daemon=True)
            self._thread.start()
        self._wake.release()
        return message

    def _poll(self) -> None:
        """Poll pending messages. MPI moves a long message only inside of its calls, also while the program computes."""
        while True:
            self._wake.acquire()
            while self._open:
                for message in list(self._open):
                    if message.Test():
                        self._open.discard(message)
                time.sleep(_PAUSE)
            if self._closed:
                return
