"""`srun --pty`: gives the first task a terminal, and connects it to the terminal of the user."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
import tty
from typing import TYPE_CHECKING

from pocketslurm.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pocketslurm.steps.messages import SrunMessages
    from pocketslurm.steps.options import StepOptions


class Terminal:
    """srun's own terminal, and the task's.

    Attributes:
        ours: srun's side of the task's terminal; `theirs` is the task's.
    """

    def __init__(self) -> None:
        self.ours, self.theirs = os.openpty()
        self._resize()

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables of tasks about the terminal."""
        rows, columns, _, _ = struct.unpack("HHHH", self._size())
        return {"SLURM_PTY_WIN_COL": str(columns), "SLURM_PTY_WIN_ROW": str(rows)}

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        """Pass every key and every change of the window's size to the task."""
        modes = termios.tcgetattr(0)
        signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        tty.setraw(0, termios.TCSANOW)
        try:
            yield
        finally:
            termios.tcsetattr(0, termios.TCSANOW, modes)

    def _size(self) -> bytes:
        return fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))

    def _resize(self) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, self._size())


def open_terminal(asked: StepOptions, talk: SrunMessages) -> Terminal | None:
    """Open the terminals of --pty; return None if srun has no terminal.

    Raises:
        CommandError: A stream is redirected as well.
    """
    if asked.has("output") or asked.has("error") or asked.has("input"):
        raise CommandError("error: --error/--input/--output are incompatible with --pty")
    try:
        return Terminal()
    except (OSError, termios.error):
        talk.error("ioctl(TIOCGWINSZ): Inappropriate ioctl for device")
        talk.error("Not using a pseudo-terminal, disregarding --pty option")
        return None
