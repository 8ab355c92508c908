"""What scontrol does to jobs: hold, release, put in front, requeue."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from pocketslurm.errors import Problem
from pocketslurm.queue import arrays, job_ids, messages, submission
from pocketslurm.queue.recovery import requeue as put_back
from pocketslurm.queue.scheduler import REQUEUED_HELD
from pocketslurm.queue.state import now
from pocketslurm.queue.wakeup import poke

if TYPE_CHECKING:
    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import State

NOT_LEADER = "Job not heterogeneous job leader"
_INVALID = "Invalid job id specified"
FINISHED = "Job has already finished"


def find(state: State, word: str) -> list[Job]:
    """The records that an id, or `jobname=...`, names."""
    name, equals, value = word.partition("=")
    if equals and name.lower() in {"jobname", "name"}:
        found = [job for job in state.active_jobs() if job.name == value]
    else:
        try:
            recent = "state IN ('PENDING', 'RUNNING') OR completing OR end_time > ?"
            found = job_ids.select(state, value if equals else word, recent, (now() - state.settings.min_job_age,))
        except ValueError:
            found = []
    if not found:
        raise Problem(f"{_INVALID} for job {value if equals else word}")
    return found


def own_record(state: State, job: Job) -> Job:
    """The record of a waiting task that was named alone, split off if it has none yet."""
    current = state.job(job.job_id)
    if current is None:
        raise Problem(f"{_INVALID} for job {job.label}")
    if current.array_waiting and job.array_task_id is not None:
        return arrays.split(state, current, job.array_task_id)
    return current


# Holding and releasing


def hold_or_release(state: State, verb: str, words: list[str]) -> int:
    """`hold`, `uhold` and `release`; the exit status."""
    status = 0
    for word in ",".join(words).split(","):
        try:
            jobs = _unfinished(state, word)
        except Problem as problem:
            reason = str(problem).partition(" for job")[0]
            sys.stderr.write(f"{problem}\nslurm_suspend error: {reason}\n")
            status = 1
            continue
        with state.transaction():
            for job in jobs:
                if job.state == "PENDING":
                    _hold(state, own_record(state, job), verb)
    return status


def _unfinished(state: State, word: str) -> list[Job]:
    jobs = [job for job in find(state, word) if job.active]
    if not jobs:
        raise Problem(f"{FINISHED} for job {word}")
    return jobs


def _hold(state: State, job: Job, verb: str) -> None:
    if verb == "release":
        if job.priority == 0:
            priority = submission.TOP_PRIORITY - job.job_id
            state.update_job(job.job_id, priority=priority, reason="None")
        return
    admin = os.getuid() == 0 and verb == "hold"
    state.update_job(job.job_id, priority=0, reason="JobHeldAdmin" if admin else "JobHeldUser")


def put_first(state: State, word: str) -> int:
    """`top`: in front of all the others."""
    with state.transaction():
        for job in find(state, word):
            first = max((other.priority for other in state.active_jobs()), default=0)
            if job.state != "PENDING":
                raise Problem(f"Job is no longer pending execution for job {word}")
            state.update_job(own_record(state, job).job_id, priority=first + 1)
    return 0


# Requeueing


def requeue(state: State, words: list[str], *, held: bool) -> int:
    """`requeue` and `requeuehold`; the exit status."""
    status = 0
    # A job may requeue itself: then this process is among those that are ended, and yet has to answer.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for word in [part for part in words if not part.lower().startswith("state=")]:
        try:
            problems = _requeue_all(state, find(state, word), held=held)
        except Problem as problem:
            problems = [str(problem)]
        sys.stderr.write("".join(f"{problem}\n" for problem in problems))
        status = status or int(bool(problems))
    return status


def _requeue_all(state: State, jobs: list[Job], *, held: bool) -> list[str]:
    problems = []
    for job in [job for job in jobs if job.leader == job.job_id or len(jobs) == 1]:
        with state.transaction():
            current = own_record(state, job)
            problem = _requeue(state, current, held=held)
        if problem:
            problems.append(
                f"{problem} for job {_named(job)}" if len(jobs) == 1 or job.het_job_id else f"{job.label}: {problem}"
            )
        elif current.state == "RUNNING":
            poke(state.directory, current.job_id)
    return problems


def _named(job: Job) -> str:
    return job.label if job.het_job_id is None else str(job.job_id)


def _requeue(state: State, job: Job, *, held: bool) -> str:
    """Send one job back; the complaint if it cannot be."""
    if job.leader != job.job_id:
        return NOT_LEADER
    if job.state == "PENDING":
        if held:
            state.update_whole(job.job_id, priority=0, reason=REQUEUED_HELD)
        return "" if held or job.completing else "Job is pending execution"
    if not job.requeue:
        return "Requested operation is presently disabled"
    if not job.batch:
        return "Only batch jobs are accepted or processed"
    if job.completing:
        return "Job can not be altered now, try again later"
    if held:
        state.update_whole(job.job_id, priority=0, reason=REQUEUED_HELD)
        job = job._replace(priority=0, reason=REQUEUED_HELD)
    if job.state == "RUNNING":
        state.update_whole(job.job_id, state="PENDING", completing=True, end_time=now())
        state.order(job.job_id, *messages.write(messages.Cancel("JOB REQUEUE")))
    else:
        put_back(state, job)
    return ""
