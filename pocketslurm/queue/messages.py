"""Orders to a job's supervisor and to a running srun, and the pipes that wake a process.

Sender and receiver may be of different releases, because a queue continues during an upgrade. A kind of order never
changes its form, a new order gets a new kind, and a supervisor ignores orders that it cannot read.

Orders to an srun are lines in a named pipe, `orders/<job>.<step>` in the state directory: `signal N` for the tasks of
the step; `cancel WHY` to end it, where WHY is empty or a text such as `TIME LIMIT`; and `kill` to end it by SIGKILL.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Cancel(NamedTuple):
    """End the job. `why` is the reason in its log."""

    why: str = ""


class EndComponent(NamedTuple):
    """End the steps of one component of a heterogeneous job."""

    job_id: int


class Signal(NamedTuple):
    """Send a signal to a job's `steps`, its `batch` shell or all of it (`full`); `job_id`: only to that component's."""

    number: int
    target: str
    job_id: int | None = None


class TellStep(NamedTuple):
    """Pass `kill` or `signal N` on to a step with this label, of the leader or of a component."""

    label: str
    order: str
    job_id: int | None = None


class Complete(NamedTuple):
    """The owner of the allocation has ended with this wait status."""

    status: int


JobOrder = Cancel | EndComponent | Signal | TellStep | Complete


_KINDS = {each.__name__: each for each in (Cancel, EndComponent, Signal, TellStep, Complete)}


def encode_order(order: JobOrder) -> tuple[str, str]:
    """Return the kind and the value of an order for the database."""
    return type(order).__name__, json.dumps(order)


def decode_order(kind: str, value: str) -> JobOrder | None:
    """Return the stored order; None if this release does not know it."""
    try:
        return _KINDS[kind](*json.loads(value))
    except (KeyError, TypeError, ValueError):
        return None


_SRUN_FOLDER = "orders"


def send_to_srun(directory: Path, job_id: int, step: str, order: str) -> bool:
    """Send an order. Return False if no srun reads it."""
    try:
        pipe = os.open(_path(directory, job_id, step), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(pipe, f"{order}\n".encode())
    except OSError:
        return False
    finally:
        os.close(pipe)
    return True


def _make_pipe(path: str) -> int:
    """Make a named pipe and return its reading end."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(os.path.dirname(path), 0o700)  # noqa: PTH102, PTH120 - no pathlib at the start of srun
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108
    os.mkfifo(path, 0o600)
    # The reader also opens the pipe for writing. Otherwise it would read the end of the file when a sender closes it.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


class SrunInbox:
    """The pipe from which the srun of a step, or of a part of it, reads its orders."""

    def __init__(self, directory: Path, job_id: int, step: str) -> None:
        self._path = _path(directory, job_id, step)
        self.fd = _make_pipe(self._path)

    def read(self) -> list[str]:
        """Return the orders that have arrived."""
        try:
            return os.read(self.fd, 65536).decode().splitlines()
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Remove the pipe."""
        os.close(self.fd)
        with contextlib.suppress(OSError):
            os.unlink(self._path)  # noqa: PTH108


def _path(directory: Path, job_id: int, step: str) -> str:
    return f"{directory}/{_SRUN_FOLDER}/{job_id}.{step}"


_PIPES_FOLDER = "wake"
CONTROLLER = "controller"


def wake(directory: Path, name: str | int) -> bool:
    """Wake the controller, or a job's supervisor by its id. Return False if it does not run."""
    try:
        pipe = os.open(directory / _PIPES_FOLDER / str(name), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    # A full pipe already wakes its reader.
    with contextlib.suppress(BlockingIOError):
        os.write(pipe, b"!")
    os.close(pipe)
    return True


class WakeupPipe:
    """A named pipe. Its process sleeps until a byte arrives, a child ends, or the time is over."""

    def __init__(self, directory: Path, name: str | int) -> None:
        self._path = f"{directory}/{_PIPES_FOLDER}/{name}"
        self._pipe = _make_pipe(self._path)
        self._child_end, self._signal_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Python writes a byte to the wake-up file only for signals that have a handler.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._signal_end, warn_on_full_buffer=False)

    def sleep(self, seconds: float) -> None:
        """Wait at most this many seconds."""
        poll = select.poll()
        for each in (self._pipe, self._child_end):
            poll.register(each, select.POLLIN)
        for each, _ in poll.poll(max(0, int(seconds * 1000) + 1)):
            with contextlib.suppress(BlockingIOError):
                os.read(each, 65536)

    def close(self) -> None:
        """Remove the pipe."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)  # noqa: PTH108
        signal.set_wakeup_fd(-1)
        for each in (self._pipe, self._child_end, self._signal_end):
            os.close(each)
