"""What a job's supervisor tells a running srun: lines in a named pipe, `orders/<job>.<step>` in the state directory.

The orders are `signal N`, to the tasks of the step; `cancel WHY`, to end it, where WHY is `TIME LIMIT` and the like
or nothing; and `kill`, the end without asking.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "orders"


def send(directory: Path, job_id: int, step: str, order: str) -> bool:
    """Give an order; False where no srun reads there (any more)."""
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


class Inbox:
    """Where the srun of one step, or of one part of it, reads its orders."""

    def __init__(self, directory: Path, job_id: int, step: str) -> None:
        self._path = _path(directory, job_id, step)
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(self._path), 0o700)  # noqa: PTH102, PTH120 - no pathlib at the start of srun
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108
        os.mkfifo(self._path, 0o600)
        # Opened for writing as well, or every sender's leaving would read as an end.
        self.fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self) -> list[str]:
        """The orders that have come."""
        try:
            return os.read(self.fd, 65536).decode().splitlines()
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Take no more."""
        os.close(self.fd)
        with contextlib.suppress(OSError):
            os.unlink(self._path)  # noqa: PTH108


def _path(directory: Path, job_id: int, step: str) -> str:
    return f"{directory}/{FOLDER}/{job_id}.{step}"
