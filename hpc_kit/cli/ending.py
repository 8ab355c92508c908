"""The end of a command's process: at once, where nothing is left to do."""

from __future__ import annotations

import atexit
import os
import sys


def leave(status: object) -> None:
    """End this process without taking the interpreter apart first: that is a tenth of a short command's time.

    Returns where something is left to do (a function for the end, as of logging and coverage, a thread, a profiler), or
    where the output cannot be written: Python then ends as always.

    Args:
        status: The exit status; None is 0.
    """
    threading = sys.modules.get("threading")
    waiting = threading is not None and threading.active_count() > 1
    if waiting or atexit._ncallbacks() or sys.gettrace() or sys.getprofile() or not isinstance(status, int | None):  # noqa: SLF001 - nothing else counts them
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(status or 0)
