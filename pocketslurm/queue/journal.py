"""The controller's log: what nobody stands by to read."""

from __future__ import annotations

import contextlib
import sys
import time


def log(text: str) -> None:
    """A line with the time, written at once; nothing for an empty one."""
    if text:
        with contextlib.suppress(OSError, ValueError):
            print(time.strftime("[%Y-%m-%dT%H:%M:%S]"), text, file=sys.stderr, flush=True)
