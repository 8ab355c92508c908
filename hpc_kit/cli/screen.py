"""Standard output of a command that has other things to do than to wait for whoever reads it."""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

_TURN = 0.2
_PATIENCE = 2.0
"""Seconds without anything being taken after which, at the end, nothing more is shown."""


class Screen:
    """Shows lines for as long as somebody takes them.

    Args:
        ending: Set once nobody may be waited for any more.
    """

    def __init__(self, ending: threading.Event) -> None:
        self.missed = sys.stdout is None  # behind a >&-
        """Not all was shown."""
        self._ending = ending

    def show(self, text: str) -> None:
        """Show lines as soon as they are taken; nothing any more where that was given up."""
        if self.missed:
            return
        shown = text if sys.stdout.isatty() else click.unstyle(text)
        data = f"{shown}\n".encode(sys.stdout.encoding, "replace")
        taken = time.monotonic()
        with unread():
            while data and not self.missed:
                if select.select([], [sys.stdout], [], _TURN)[1]:
                    # As much as whoever is ready to take something takes at once.
                    data = data[os.write(sys.stdout.fileno(), data[: select.PIPE_BUF]) :]
                    taken = time.monotonic()
                elif self._ending.is_set() and time.monotonic() - taken > _PATIENCE:
                    self.missed = True


@contextmanager
def unread() -> Iterator[None]:
    """Go on where the reader (head, less) has gone: what is printed from then on goes nowhere."""
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
