"""Finds the job of a step: the surrounding job, or a new allocation."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm import processes
from pocketslurm.errors import JOB_OVER, CommandError
from pocketslurm.queue.state import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import StateDirectory
    from pocketslurm.steps.messages import SrunMessages
    from pocketslurm.steps.options import StepOptions, StepPart

_QUEUED_SECONDS = 0.5
_LOOK_SECONDS = 0.03
_NOT_OF_A_JOB = frozenset({"jobid", "kill-on-bad-exit", "wait"})
BUSY = "Requested nodes are busy"


class Busy(CommandError):
    """--immediate was given, and the resources are not free now."""


class Interrupted(Exception):
    """A signal arrived while srun or salloc waited."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class JobForStep(NamedTuple):
    """The job of a step, and whether srun has allocated it."""

    job: Job
    allocated_here: bool


def size(state: StateDirectory, options: StepOptions) -> int:
    """Return the number of components of the job in the environment or --jobid; 0 for an ordinary job or none."""
    job = state.job(int(options.get("jobid"))) if options.has("jobid") else None
    return len(state.components(job)) if job is not None and job.het_job_id is not None else 0


def find_or_allocate(
    state: StateDirectory, parts: Sequence[StepPart], environ: Mapping[str, str], messages: SrunMessages
) -> list[JobForStep]:
    """Return the job of each part: the one in the environment or --jobid, else a new allocation.

    Raises:
        CommandError: The job does not exist, or the allocation is refused.
        Interrupted: A signal arrived during the wait.
    """
    options = parts[0].options
    if not options.has("jobid"):
        return _jobs_of_parts(state, _submit_and_wait(state, parts, environ, messages), parts, allocated=True)
    job_id = int(options.get("jobid"))
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
    if options.has("begin"):
        messages.error("--begin is ignored because nodes are already allocated.")
    return _jobs_of_parts(state, job, parts, allocated=False)


def _jobs_of_parts(state: StateDirectory, job: Job, parts: Sequence[StepPart], *, allocated: bool) -> list[JobForStep]:
    """Return the component of each part; all parts share an ordinary job."""
    if job.het_job_id is None:
        return [JobForStep(job, allocated) for _ in parts]
    components = state.components(job)
    return [JobForStep(components[part.group], allocated) for part in parts]


def _submit_and_wait(
    state: StateDirectory, parts: Sequence[StepPart], environ: Mapping[str, str], messages: SrunMessages
) -> Job:
    from pocketslurm.queue import submission  # inside a job, where every millisecond of a step counts, it is not needed

    options = parts[0].options
    if options.has("relative"):
        raise CommandError("fatal: --relative option invalid for job allocation request")
    program, *arguments = options.command
    job = submission.JobDescription(
        {name: value for name, value in options.values.items() if name not in _NOT_OF_A_JOB},
        options.get("job-name") or environ.get("SLURM_JOB_NAME") or os.path.basename(program),  # noqa: PTH119
        program,
        tuple(arguments),
        holder=processes.identity(os.getpid()),
    )
    job_id = submission.submit_components(state, [job], environ)[0].job_id
    try:
        return wait_for_allocation(state, job_id, options.values, messages.info)
    except Interrupted:
        release(state, job_id, 1 << 8)
        messages.info(f"Job allocation {job_id} has been revoked")
        raise


def release(state: StateDirectory, job_id: int, status: int) -> None:
    """End an allocation with the wait status of its step; one that was never granted is withdrawn."""
    from pocketslurm.queue.messages import Complete, wake

    with state.transaction():
        job = state.job(job_id)
        pending = job is not None and job.state == "PENDING"
        if pending:
            state.update_components(job_id, state="CANCELLED", end_time=now(), killed_by=os.getuid())
    if not pending:
        state.add_order(job_id, Complete(status))
        wake(state.directory, job_id)


def wait_for_allocation(
    state: StateDirectory, job_id: int, options: Mapping[str, str], say: Callable[[str], None]
) -> Job:
    """Wait until an allocation is granted, and return its job.

    Args:
        state: The state directory.
        job_id: Its id.
        options: The options of srun or salloc; `--immediate` limits the wait.
        say: Prints a message of the command.

    Raises:
        Busy: The allocation was not granted in time, and is withdrawn.
        CommandError: It was cancelled.
        Interrupted: A signal arrived.
    """
    from pocketslurm.queue import controller_start

    began = time.monotonic()
    queued = False
    # --immediate without a value means one second.
    limit = max(1, int(options["immediate"] or 1)) if "immediate" in options else None
    with interruptible():
        while True:
            job = state.job(job_id)
            if job is not None and job.state == "RUNNING":
                break
            if job is None or job.state != "PENDING":
                raise CommandError(denied=JOB_OVER)
            waited = time.monotonic() - began
            if limit is not None and waited > limit:
                release(state, job_id, 1 << 8)  # exit code 1, as a wait status
                raise Busy(denied=_busy_message(job.reason))
            if not queued and limit != 1 and waited > _QUEUED_SECONDS:
                queued = True
                if job.reason.startswith("Partition"):
                    say("Requested partition configuration not available now")
                say(f"job {job_id} queued and waiting for resources")
            time.sleep(_LOOK_SECONDS)
            # Only a controller can grant the allocation.
            controller_start.wait_until_ready(state)
    if queued:
        say(f"job {job_id} has been allocated resources")
    return job


def _busy_message(reason: str) -> str:
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
