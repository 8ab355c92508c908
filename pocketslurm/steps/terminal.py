"""`srun --pty`: a terminal for the first task, connected to the terminal of the user."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import termios
import tty
from typing import TYPE_CHECKING

from pocketslurm.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pocketslurm.steps.messages import SrunMessages
    from pocketslurm.steps.options import StepOptions


class Terminal:
    """The pseudo-terminal of a task: the task has `task_end`, and srun reads and writes `own_end`.

    Raises:
        OSError: The input of srun is not a terminal.
    """

    def __init__(self) -> None:
        self._modes = termios.tcgetattr(0)
        self.own_end, self.task_end = os.openpty()
        self._copy_size()

    def _copy_size(self) -> None:
        """Give the task's terminal the size of the user's window."""
        fcntl.ioctl(self.own_end, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        """Pass every key, Ctrl-C too, and every change of the window's size to the task."""
        # The kernel sends this signal when the size of the user's window changes.
        signal.signal(signal.SIGWINCH, lambda *_: self._copy_size())
        tty.setraw(0, termios.TCSANOW)
        try:
            yield
        finally:
            termios.tcsetattr(0, termios.TCSANOW, self._modes)


def open_terminal(options: StepOptions, messages: SrunMessages) -> Terminal | None:
    """Return the terminal that --pty asks for, or None without it.

    Raises:
        CommandError: A stream goes to a file.
    """
    if not options.has("pty"):
        return None
    if options.has("output") or options.has("error") or options.has("input"):
        raise CommandError("error: --error/--input/--output are incompatible with --pty")
    try:
        return Terminal()
    except (OSError, termios.error):
        messages.error("ioctl(TIOCGWINSZ): Inappropriate ioctl for device")
        messages.error("Not using a pseudo-terminal, disregarding --pty option")
        return None
