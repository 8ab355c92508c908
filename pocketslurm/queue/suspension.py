"""A suspended job: its processes stand still, and its time with them; its nodes stay its own."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from pocketslurm import processes
from pocketslurm.queue import job_processes

if TYPE_CHECKING:
    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import State


def stop(state: State, job: Job) -> None:
    """Let all of a job's processes stand still, those too that are started meanwhile."""
    # In a transaction: a command of the job's own that stood still in the midst of one would hold up the whole queue.
    with state.transaction():
        stopped: set[int] = set()
        while new := set(job_processes.all_of(state, job)) - stopped:
            processes.kill(new, signal.SIGSTOP)
            stopped |= new


def resume(state: State, job: Job) -> None:
    """Let them go on."""
    processes.kill(job_processes.all_of(state, job), signal.SIGCONT)
