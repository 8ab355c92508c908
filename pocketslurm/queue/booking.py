"""How the steps of a job are booked when it is over."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from pocketslurm import memory, resources
from pocketslurm.queue import batch_step
from pocketslurm.queue.records import BATCH_STEP
from pocketslurm.queue.state import now

if TYPE_CHECKING:
    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import State


def book_steps(state: State, job: Job, status: int) -> int:
    """Enter the ends of a job's steps, with the wait status of its batch script; the highest of the others."""
    steps = state.steps(job.job_id)
    others = [step for part in state.whole(job) for step in state.steps(part.job_id) if step.step_id != BATCH_STEP]
    for step in steps:
        if step.step_id == BATCH_STEP:
            used = resources.of_children(others)._asdict()
            state.update_step(step, exit_code=status, end_time=now(), state=_state(status), **used)
        elif step.state == "RUNNING":
            state.update_step(step, exit_code=signal.SIGKILL, end_time=now(), state="CANCELLED")
    return max((step.exit_code for step in state.steps(job.job_id) if step.step_id >= 0), default=0)


def _state(status: int) -> str:
    """How sacct shows a batch script that ended so."""
    if status == memory.OUT_OF_MEMORY:
        return "OUT_OF_MEMORY"
    if os.WIFSIGNALED(status) or status == batch_step.LAUNCH_FAILED:
        return "CANCELLED"
    return "FAILED" if status else "COMPLETED"
