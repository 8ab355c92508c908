"""Evaluates --dependency: met, still open, or never to be met."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.option_values import Condition, DependencyJob, parse_dependency
from pocketslurm.queue.job_ids import array_indices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import StateDirectory


class Verdict(Enum):
    """The state of a condition."""

    MET = "met"
    OPEN = "unfulfilled"
    FAILED = "failed"


class Outlook(NamedTuple):
    """All conditions together, what is left of them as Slurm shows it, and when time alone may change it."""

    verdict: Verdict
    text: str
    next_look_at: float = 0.0


def outlook(state: StateDirectory, job: Job, now: float) -> Outlook:
    """Evaluate all conditions that a pending job waits for."""
    dependency = parse_dependency(job.dependency)
    verdicts_of_jobs: list[tuple[str, Verdict]] = []
    next_look_at = 0.0
    for condition in dependency.conditions:
        if condition.kind == "singleton":
            verdicts_of_jobs.append(("singleton", _singleton(state, job)))
        for other in condition.jobs:
            verdict, later = _judge(state, job, condition, other, now)
            verdicts_of_jobs.append((_text(condition, other), verdict))
            next_look_at = min(filter(None, (next_look_at, later)), default=0.0)
    verdicts = {verdict for _, verdict in verdicts_of_jobs}
    left = [f"{text}({verdict.value})" for text, verdict in verdicts_of_jobs if verdict is not Verdict.MET]
    # With `?` one condition is enough; with `,` one that failed is decisive.
    if dependency.any_of:
        order = (Verdict.MET, Verdict.OPEN, Verdict.FAILED)
    else:
        order = (Verdict.FAILED, Verdict.OPEN, Verdict.MET)
    verdict = next(each for each in order if each in verdicts)
    text = ("?" if dependency.any_of else ",").join(left)
    return Outlook(verdict, "" if verdict is Verdict.MET else text, next_look_at)


def unknown_task(state: StateDirectory, text: str) -> bool:
    """Return whether a dependency names an index that its array does not have."""
    for condition in parse_dependency(text).conditions:
        for other in condition.jobs:
            jobs = _jobs(state, other._replace(task=None))
            array = next((job for job in jobs if job.array_job_id == other.job_id), None)
            if array and other.task not in {None, "*"} and int(other.task or 0) not in array_indices(array.array_spec):
                return True
    return False


def _text(condition: Condition, other: DependencyJob) -> str:
    task = f"_{other.task}" if other.task else ""
    minutes = f"+{other.minutes}" if other.minutes else ""
    return f"{condition.kind}:{other.job_id}{task}{minutes}"


def _singleton(state: StateDirectory, job: Job) -> Verdict:
    """Evaluate `singleton`: no other job of this name runs or was submitted earlier."""
    ahead = "state = 'RUNNING' OR completing OR (state = 'PENDING' AND job_id < ?)"
    same = f"name = ? AND uid = ? AND job_id != ? AND ({ahead})"
    others = state.jobs(same, (job.name, job.uid, job.job_id, job.job_id))
    # Tasks of one array do not wait for each other.
    apart = [other for other in others if job.array_job_id is None or other.array_job_id != job.array_job_id]
    return Verdict.OPEN if any(other.leader_id != job.leader_id for other in apart) else Verdict.MET


def _judge(
    state: StateDirectory, job: Job, condition: Condition, other: DependencyJob, now: float
) -> tuple[Verdict, float]:
    if condition.kind == "aftercorr" and other.task is None and job.array_job_id is not None:
        # The waiting tasks together are as ready as their readiest one.
        own = [job.array_task_id] if job.array_task_id is not None else array_indices(job.array_waiting)
        each = [_ended(_jobs(state, other._replace(task=str(index))), "afterok") for index in own]
        order = (Verdict.MET, Verdict.OPEN, Verdict.FAILED)
        return next((verdict for verdict in order if verdict in each), Verdict.MET), 0.0
    jobs = _jobs(state, other)
    if condition.kind == "after":
        return _begun(jobs, other.minutes * state.settings.minute, now)
    return _ended(jobs, condition.kind), 0.0


def ready_tasks(state: StateDirectory, job: Job) -> set[int] | None:
    """Return the pending tasks whose counterpart (aftercorr) has ended; None for all of them."""
    conditions = parse_dependency(job.dependency).conditions if job.dependency else ()
    ready: set[int] | None = None
    for condition in conditions:
        for other in condition.jobs if condition.kind == "aftercorr" else ():
            own = array_indices(job.array_waiting)
            met = {i for i in own if _ended(_jobs(state, other._replace(task=str(i))), "afterok") is Verdict.MET}
            ready = met if ready is None else ready & met
    return ready


def _jobs(state: StateDirectory, other: DependencyJob) -> Sequence[Job]:
    """Return the records of a job, an array or some tasks; empty for an unknown job."""
    array = state.jobs("array_job_id = ?", (other.job_id,))
    if not array:
        return state.jobs("job_id = ?", (other.job_id,))
    if other.task is None or other.task == "*":
        return array
    index = int(other.task)
    return [job for job in array if job.array_task_id == index or index in array_indices(job.array_waiting)]


def _begun(jobs: Iterable[Job], delay: float, now: float) -> tuple[Verdict, float]:
    # A job that was cancelled in the queue counts as started when it ended.
    times = [job.start_time or (0.0 if job.active else job.end_time) for job in jobs]
    if not all(times):
        return Verdict.OPEN, 0.0
    latest = max(times, default=0.0) + delay
    return (Verdict.MET, 0.0) if latest <= now else (Verdict.OPEN, latest)


def _ended(jobs: Sequence[Job], kind: str) -> Verdict:
    """Evaluate a condition on jobs; an unknown job counts as ended with success, as in Slurm."""
    good = all(job.state == "COMPLETED" for job in jobs)
    if kind in {"afterok", "aftercorr"} and any(not job.active and job.state != "COMPLETED" for job in jobs):
        return Verdict.FAILED
    if any(job.active for job in jobs):
        return Verdict.OPEN
    if kind == "afternotok":
        return Verdict.FAILED if good and jobs else Verdict.MET
    return Verdict.MET
