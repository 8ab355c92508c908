"""Orders to a job's supervisor and to a running srun, and the pipes that wake a process.

Sender and receiver may be of different releases, because a queue continues during an upgrade. A kind of order never
changes its form, a new order gets a new kind, and a supervisor ignores orders that it cannot read.

Orders to an srun are lines in a named pipe, `orders/<job>.<step>` in the state directory: `signal N` for the tasks of
the step; `cancel WHY` to end it, where WHY is empty or a text such as `TIME LIMIT`; and `kill` to end it by SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Cancel(NamedTuple):
    """End the job; `why` stands in its log."""

    why: str = ""


class EndComponent(NamedTuple):
    """End the steps of one component of a heterogeneous job."""

    job_id: int


class Signal(NamedTuple):
    """Send a signal to a job's `steps`, its `batch` shell or all of it (`full`); `job_id`: only to that component's."""

    number: int
    whom: str
    job_id: int | None = None


class TellStep(NamedTuple):
    """Pass `kill` or `signal N` on to a step, by its label, of the leader or, where one is named, of a component."""

    label: str
    order: str
    job_id: int | None = None


class Suspend(NamedTuple):
    """Suspend the job's processes."""


class Resume(NamedTuple):
    """Resume the job's processes."""


class Notify(NamedTuple):
    """Write a line into the job's log."""

    text: str


class Complete(NamedTuple):
    """The owner of the allocation has ended with this wait status."""

    status: int


JobOrder = Cancel | EndComponent | Signal | TellStep | Suspend | Resume | Notify | Complete


def encode_order(told: JobOrder) -> tuple[str, str]:  # noqa: PLR0911 - one for each kind
    """Return the kind and the value of an order for the database."""
    match told:
        case Cancel(why):
            return "cancel", why
        case EndComponent(job_id):
            return "component", str(job_id)
        case Signal(number, whom, job_id):
            return "signal", f"{number} {whom}" + (f" {job_id}" if job_id is not None else "")
        case TellStep(label, order, None) if label.isdecimal():
            return "step", f"{label} {order}"
        case TellStep(label, order, job_id):
            return "part", f"{job_id or ''}.{label} {order}"
        case Suspend():
            return "suspend", ""
        case Resume():
            return "resume", ""
        case Notify(text):
            return "notify", text
        case Complete(status):
            return "complete", str(status)


def decode_order(kind: str, value: str) -> JobOrder | None:
    """Return the stored order; None if this release does not know it."""
    with suppress(ValueError):
        return _read(kind, value)
    return None


def _read(kind: str, value: str) -> JobOrder | None:  # noqa: PLR0911 - one for each kind
    words = value.split()
    match kind, words:
        case "cancel", _:
            return Cancel(value)
        case "component", [job_id]:
            return EndComponent(int(job_id))
        case "signal", [number, whom, *job_id] if len(job_id) < 2:
            return Signal(int(number), whom, int(job_id[0]) if job_id else None)
        case "step", [label, *order] if label.isdecimal() and _fits(order):
            return TellStep(label, " ".join(order))
        case "part", [name, *order] if _fits(order):
            part, _, label = name.partition(".")
            return TellStep(label, " ".join(order), int(part) if part else None)
        case "suspend", []:
            return Suspend()
        case "resume", []:
            return Resume()
        case "notify", _:
            return Notify(value)
        case "complete", [status]:
            return Complete(int(status))
    return None


def _fits(order: list[str]) -> bool:
    match order:
        case ["kill"]:
            return True
        case ["signal", number]:
            return number.isdecimal()
    return False


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


class SrunInbox:
    """The pipe from which the srun of a step, or of a part of it, reads its orders."""

    def __init__(self, directory: Path, job_id: int, step: str) -> None:
        self._path = _path(directory, job_id, step)
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(self._path), 0o700)  # noqa: PTH102, PTH120 - no pathlib at the start of srun
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108
        os.mkfifo(self._path, 0o600)
        # Opened for writing, too: otherwise the pipe is at its end whenever a sender closes it.
        self.fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

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


def wake(directory: Path, who: str | int) -> bool:
    """Wake the controller, or a job's supervisor by its id. Return False if it does not run."""
    try:
        pipe = os.open(directory / _PIPES_FOLDER / str(who), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with contextlib.suppress(BlockingIOError):  # so many bytes wait there already that one more changes nothing
        os.write(pipe, b"!")
    os.close(pipe)
    return True


class WakeupPipe:
    """A named pipe on which a process sleeps until a byte arrives, a child ends, or time is over."""

    def __init__(self, directory: Path, who: str | int) -> None:
        folder = directory / _PIPES_FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        self._path = folder / str(who)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.mkfifo(self._path, 0o600)
        # Opened for writing, too: otherwise the pipe is at its end whenever a sender closes it.
        self._pipe = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._child_end, self._signal_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._signal_end, warn_on_full_buffer=False)

    def sleep(self, seconds: float) -> None:
        """Wait, `seconds` at the longest."""
        poll = select.poll()
        for each in (self._pipe, self._child_end):
            poll.register(each, select.POLLIN)
        for each, _ in poll.poll(max(0, int(seconds * 1000) + 1)):
            with contextlib.suppress(BlockingIOError):
                os.read(each, 65536)

    def close(self) -> None:
        """Remove the pipe."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        signal.set_wakeup_fd(-1)
        for each in (self._pipe, self._child_end, self._signal_end):
            os.close(each)
