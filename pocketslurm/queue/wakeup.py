"""A byte through a named pipe: whoever reads there looks into the state."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "wake"
CONTROLLER = "controller"


def poke(directory: Path, who: str | int) -> bool:
    """Wake the controller, or a job's supervisor by its id; False where nobody listens."""
    try:
        pipe = os.open(directory / FOLDER / str(who), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with contextlib.suppress(BlockingIOError):  # so many bytes wait there already that one more changes nothing
        os.write(pipe, b"!")
    os.close(pipe)
    return True


class Sleeper:
    """One who waits to be woken: by a byte, by the end of a child, or by the clock."""

    def __init__(self, directory: Path, who: str | int) -> None:
        folder = directory / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        self._path = folder / str(who)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.mkfifo(self._path, 0o600)
        # Opened for writing as well, or every sender's leaving would read as an end.
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
        """Listen no more."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        signal.set_wakeup_fd(-1)
        for each in (self._pipe, self._child_end, self._signal_end):
            os.close(each)
