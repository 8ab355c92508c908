"""A suspended job: its processes stand still, and its time with them; its nodes stay its own."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hpc_kit.embedded import processes, tree

if TYPE_CHECKING:
    from hpc_kit.embedded.records import Job
    from hpc_kit.embedded.state import State


def stop(state: State, job: Job) -> None:
    """Let all of a job's processes stand still, those too that are started meanwhile."""
    # In a transaction: a command of the job's own that stood still in the midst of one would hold up the whole queue.
    with state.transaction():
        stopped: set[int] = set()
        while new := set(tree.all_of(state, job)) - stopped:
            processes.kill(new, signal.SIGSTOP)
            stopped |= new


def resume(state: State, job: Job) -> None:
    """Let them go on."""
    processes.kill(tree.all_of(state, job), signal.SIGCONT)
