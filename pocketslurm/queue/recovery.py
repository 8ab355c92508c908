"""After a crash: what becomes of a job whose supervisor is gone."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from pocketslurm import processes
from pocketslurm.queue import controller_start
from pocketslurm.queue.job_processes import marks
from pocketslurm.queue.scheduler import LAUNCH_FAILED_HELD
from pocketslurm.queue.state import now

if TYPE_CHECKING:
    from collections.abc import Collection

    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import State

_LAST_WORDS = (
    "slurmstepd: error: *** JOB {} ON {} CANCELLED AT {} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"
)

_PATIENCE = 3
_YOUNG_SECONDS = 10.0


def sweep(state: State, job: Job, spare: Collection[int] = ()) -> None:
    """Kill what is left of a job, found by its environment: nobody else's processes carry both marks."""
    others = [each.supervisor for each in state.active_jobs()] + [state.meta(controller_start.META) or ""]
    without = {processes.pid_of(name) for name in others if processes.alive(name)} | set(spare) | {os.getpid()}
    for _ in range(10):
        roots = [pid for pid in processes.marked(marks(state, job)) if pid not in without]
        left = processes.below(roots, without=without, inclusive=True)
        if not left:
            return
        processes.kill([process.pid for process in left], signal.SIGKILL)
        time.sleep(0.02)


def book_lost(state: State, job: Job) -> str:
    """Enter the end of a job that nobody watches: back into the queue, or NODE_FAIL; the line for the log."""
    with state.transaction():
        job = state.job(job.job_id) or job
        if not (job.state == "RUNNING" or job.completing) or processes.alive(job.supervisor):
            return ""
        if job.state == "RUNNING" and not job.supervisor:
            return _book_never_started(state, job)
        for step in [step for part in state.whole(job) for step in state.steps(part.job_id)]:
            if step.state == "RUNNING":
                state.update_step(step, state="CANCELLED", end_time=now(), exit_code=signal.SIGKILL)
        if job.state == "PENDING":
            requeue(state, job)
            return f"JobId={job.label} requeued without its supervisor"
        if job.state != "RUNNING":
            state.update_whole(job.job_id, completing=False)
            return f"JobId={job.label} ended without its supervisor: {job.state}"
        if job.batch:
            _write_last_words(job)
        if job.batch and job.requeue:
            dies_young = job.restart_count >= _PATIENCE and now() - job.start_time < _YOUNG_SECONDS
            # A job that brings its supervisor down every time must not do so for ever.
            requeue(state, job._replace(priority=0, reason=LAUNCH_FAILED_HELD) if dies_young else job)
            return f"JobId={job.label} lost its supervisor, requeued{' and held' * dies_young}"
        state.update_whole(job.job_id, state="NODE_FAIL", reason="NodeDown", end_time=now(), exit_code=0)
        state.update_whole(job.job_id, completing=False)
        return f"JobId={job.label} lost its supervisor: NODE_FAIL"


def _book_never_started(state: State, job: Job) -> str:
    """Nodes were given, but nobody came to run it: as if it had not been tried, a few times."""
    held = job.attempt - job.restart_count > _PATIENCE
    hold = {"priority": 0, "reason": LAUNCH_FAILED_HELD} if held else {}
    state.update_whole(job.job_id, completing=False)
    state.update_whole(job.job_id, state="PENDING", start_time=0.0, **NOTHING_HELD, **hold)
    return f"JobId={job.label} was not started, requeued{' and held' * held}"


NOTHING_HELD: dict[str, object] = {"nodes": [], "cpus": [], "mem": [], "gpus": [], "tasks": [], "supervisor": ""}


def requeue(state: State, job: Job) -> None:
    """Put a job whose processes are gone back into the queue; one with no priority stays held there."""
    queued: dict[str, object] = {
        "state": "PENDING",
        "completing": False,
        "priority": job.priority,
        "reason": "None" if job.priority else job.reason,
        "restart_count": job.restart_count + 1,
        "start_time": 0.0,
        "end_time": 0.0,
        "exit_code": 0,
        "suspended_at": 0.0,
        "suspended": 0.0,
        **NOTHING_HELD,
    }
    for part in state.whole(job):
        state.update_job(part.job_id, **queued)


def _write_last_words(job: Job) -> None:
    if job.std_err.startswith("/") and os.path.isfile(job.std_err):  # noqa: PTH113
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        with open(job.std_err, "a") as file:  # noqa: PTH123
            file.write(_LAST_WORDS.format(job.job_id, job.nodes[0], stamp))
