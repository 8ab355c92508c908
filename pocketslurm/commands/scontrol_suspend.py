"""`scontrol suspend`, `resume` and `notify`: what is done to jobs that run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pocketslurm.commands.scontrol_change import find
from pocketslurm.errors import Problem
from pocketslurm.queue.messages import Notify, Resume, Suspend, write
from pocketslurm.queue.state import now
from pocketslurm.queue.wakeup import poke

if TYPE_CHECKING:
    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import State

_DONE = "Job/step already completing or completed"


def suspend_or_resume(state: State, verb: str, words: list[str]) -> int:
    """Let jobs stand still, or go on; the exit status."""
    status = 0
    for word in ",".join(words).split(","):
        try:
            leaders = sorted({job.leader for job in find(state, word)})
        except Problem as problem:
            sys.stderr.write(f"Unexpected message received for job {word}\n" if word.isdecimal() else f"{problem}\n")
            status = 1
            continue
        for leader in leaders:
            with state.transaction():
                problem_of_job = _order(state, state.job(leader), verb)
            if problem_of_job:
                sys.stderr.write(f"{problem_of_job} for job {word}\n")
                status = 1
            poke(state.directory, leader)
    return status


def _order(state: State, job: Job | None, verb: str) -> str:
    """Enter it for one job; the complaint if it cannot be done."""
    if job is None or job.completing or not job.active:
        return _DONE
    if job.state == "PENDING":
        return "Job is pending execution"
    if verb == "resume" and not job.suspended_at:
        return "Job is not suspended"
    if verb == "suspend" and job.suspended_at:
        return ""
    moment = now()
    stands_still = verb == "suspend"
    before = job.suspended if stands_still else job.suspended_for(moment)
    state.update_whole(job.job_id, suspended_at=moment if stands_still else 0.0, suspended=before)
    state.order(job.job_id, *write(Suspend() if stands_still else Resume()))
    return ""


def notify(state: State, words: list[str]) -> int:
    """Write a line into the log of a job; the exit status."""
    word, text = words[0], " ".join(words[1:])
    if not word.isdecimal():
        raise Problem(f"Invalid job_id {word}job notify failure: No error")
    try:
        job = find(state, word)[0]
    except Problem:
        raise Problem("job notify failure: Invalid job id specified") from None
    if not job.active or job.state != "RUNNING":
        why = "Requested operation is presently disabled" if job.state == "PENDING" else _DONE
        raise Problem(f"job notify failure: {why}")
    state.order(job.leader, *write(Notify(text)))
    poke(state.directory, job.leader)
    return 0
