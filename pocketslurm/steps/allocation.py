"""Finds the job of a step: the surrounding job, or a new allocation."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.nodelist import fold
from pocketslurm.errors import CommandError
from pocketslurm.queue.state import now
from pocketslurm.steps.messages import write_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import StateDirectory
    from pocketslurm.steps.messages import SrunMessages
    from pocketslurm.steps.options import StepOptions, StepPart

_QUEUED_SECONDS = 0.5
_LOOK_SECONDS = 0.03
_NOT_OF_A_JOB = frozenset({"jobid", "kill-on-bad-exit", "wait"})
OVER = "Job/step already completing or completed"
BUSY = "Requested nodes are busy"


class Busy(CommandError):
    """--immediate was given, and the resources are not free now."""


class Interrupted(Exception):
    """A signal came while srun had nothing but to wait."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class JobForStep(NamedTuple):
    """The job of a step, and whether srun has allocated it."""

    job: Job
    allocated_here: bool


def size(state: StateDirectory, asked: StepOptions) -> int:
    """Return the number of components of the job in the environment or --jobid; 0 for an ordinary job or none."""
    job = state.job(int(asked.get("jobid"))) if asked.has("jobid") else None
    return len(state.components(job)) if job is not None and job.het_job_id is not None else 0


def find_or_allocate(
    state: StateDirectory, parts: Sequence[StepPart], environ: Mapping[str, str], talk: SrunMessages
) -> list[JobForStep]:
    """Return the job of each part: the one in the environment or --jobid, else a new allocation.

    Raises:
        CommandError: The job does not exist, or the allocation is refused.
        Interrupted: A signal arrived during the wait.
    """
    asked = parts[0].asked
    if not asked.has("jobid"):
        return _homes(state, _allocate(state, parts, environ, talk), parts, own=True)
    job_id = int(asked.get("jobid"))
    job = state.job(job_id)
    advice = f"Check SLURM_JOB_ID environment variable. Expired or invalid job {job_id}"
    if job is None:
        raise CommandError(f"error: Unable to confirm allocation for job {job_id}: Invalid job id specified", advice)
    if job.state == "PENDING":
        raise CommandError(f"error: Unable to confirm allocation for job {job_id}: Job is pending execution", advice)
    if job.state != "RUNNING":
        raise CommandError(f"error: Slurm job {job_id} has expired", advice)
    if job.leader_id != job_id:
        why = "Job not heterogeneous job leader"
        raise CommandError(f"error: Unable to confirm allocation for job {job_id}: {why}", advice)
    if asked.has("begin"):
        talk.error("--begin is ignored because nodes are already allocated.")
    return _homes(state, job, parts, own=False)


def _homes(state: StateDirectory, job: Job, parts: Sequence[StepPart], *, own: bool) -> list[JobForStep]:
    """Return the component of each part; all parts share an ordinary job."""
    if job.het_job_id is None:
        return [JobForStep(job, own) for _ in parts]
    components = state.components(job)
    return [JobForStep(components[part.group], own) for part in parts]


def _allocate(state: StateDirectory, parts: Sequence[StepPart], environ: Mapping[str, str], talk: SrunMessages) -> Job:
    from pocketslurm.queue import submission  # inside a job, where every millisecond of a step counts, it is not needed

    asked = parts[0].asked
    if asked.has("relative"):
        raise CommandError("fatal: --relative option invalid for job allocation request")
    job_id = submission.submit_allocation(state, [_for_a_job(part.asked) for part in parts], asked.command, environ)
    try:
        with interruptible():
            job = _wait(state, job_id, asked, talk)
    except Interrupted:
        release(state, job_id, 1 << 8)
        talk.info(f"Job allocation {job_id} has been revoked")
        raise
    return job


def release(state: StateDirectory, job_id: int, status: int) -> None:
    """End an allocation with the wait status of its step; one that was never granted is withdrawn."""
    from pocketslurm.queue import submission

    with state.transaction():
        job = state.job(job_id)
        pending = job is not None and job.state == "PENDING"
        if pending:
            state.update_components(job_id, state="CANCELLED", end_time=now(), killed_by=os.getuid())
    if not pending:
        submission.complete_allocation(state, job_id, status)


def _for_a_job(asked: StepOptions) -> dict[str, str]:
    """Return the options for the submission of a job."""
    return {name: value for name, value in asked.values.items() if name not in _NOT_OF_A_JOB}


def test_only(state: StateDirectory, parts: Sequence[StepPart], environ: Mapping[str, str]) -> int:
    """`--test-only`: when an allocation for each part would begin, and where."""
    return max(_test(state, part.asked, environ) for part in parts)


def _test(state: StateDirectory, asked: StepOptions, environ: Mapping[str, str]) -> int:
    from pocketslurm.queue import submission
    from pocketslurm.queue.scheduler import expected_start

    what = submission.JobDescription(_for_a_job(asked), "srun")
    try:
        job, request = submission.prepare(state, what, environ)
        moment, shares = expected_start(state, job, request)
    except CommandError as refusal:
        write_stderr("".join(f"srun: {line}\n" for line in refusal.lines))
        write_stderr(f"allocation failure: {refusal.denied}\n" if refusal.denied else "")
        return 1
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment))
    cpus, hosts = sum(share.cpus for share in shares), fold(share.node for share in shares)
    with state.transaction():
        job_id = state.next_job_id()
    text = f"to start at {stamp} using {cpus} processors on nodes {hosts} in partition {job.partition}"
    write_stderr(f"srun: Job {job_id} {text}\n")
    return 0


def _wait(state: StateDirectory, job_id: int, asked: StepOptions, talk: SrunMessages) -> Job:
    """Wait until the allocation is granted or refused."""
    began = time.monotonic()
    queued = False
    patience = max(1, int(asked.get("immediate") or 1)) if asked.has("immediate") else None
    while True:
        job = state.job(job_id)
        if job is not None and job.state == "RUNNING":
            break
        if job is None or job.state != "PENDING":
            talk.info("Job has been cancelled")
            raise CommandError(denied=OVER)
        waited = time.monotonic() - began
        if patience is not None and waited > patience:
            release(state, job_id, 1 << 8)
            raise Busy(denied=_not_now(job.reason))
        if not queued and patience != 1 and waited > _QUEUED_SECONDS:
            queued = True
            if job.reason.startswith("Partition"):
                talk.info("Requested partition configuration not available now")
            talk.info(f"job {job_id} queued and waiting for resources")
        time.sleep(_LOOK_SECONDS)
    if queued:
        talk.info(f"job {job_id} has been allocated resources")
    return job


def _not_now(reason: str) -> str:
    """Return the message for a failed --immediate."""
    if reason.startswith("Partition"):
        return "Requested partition configuration not available now"
    return "Job dependency problem" if reason in {"BeginTime", "Dependency"} else BUSY


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise `Interrupted` on signals while srun waits."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: object) -> None:
    raise Interrupted(number)
