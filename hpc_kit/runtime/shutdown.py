"""The end of a rank that has done well: gloo's threads must be idle before the interpreter goes."""

from __future__ import annotations

import time
from pathlib import Path

_THREAD = "pt_gloo_runloop"
_TASKS = Path("/proc/self/task")
_PAUSE = 0.005


def destroy_process_group() -> None:
    """Destroy the default process group, if there is one, and wait until nothing of it runs any more."""
    from torch import distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        wait_for_gloo_threads()


def wait_for_gloo_threads(seconds: float = 1.0) -> None:
    """Wait until gloo's threads sleep.

    While a model still refers to its group, destroying it ends no thread. One that is about to free the tensors of the
    last collective wants the GIL; if the interpreter is being taken down by then, the process aborts (SIGABRT,
    "terminate called without an active exception") after a training that went well.

    Args:
        seconds: The longest wait.
    """
    deadline, quiet = time.monotonic() + seconds, 0
    while quiet < 2 and time.monotonic() < deadline:
        states = _thread_states()
        if not states:
            return
        quiet = quiet + 1 if states <= {"S"} else 0
        time.sleep(_PAUSE)  # gives up the GIL


def _thread_states() -> set[str]:
    """Scheduling states of gloo's threads; empty where there are none, or no /proc."""
    found = set()
    for task in _TASKS.glob("*"):
        try:
            if (task / "comm").read_text().strip() == _THREAD:
                found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        except OSError:
            continue
    return found
