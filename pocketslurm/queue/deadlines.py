"""When a running job's time is up, and when it is to be warned of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.option_values import parse_signal

if TYPE_CHECKING:
    from pocketslurm.queue.records import Job


class Warning(NamedTuple):  # noqa: A001 - Slurm's own word for it
    """The signal of --signal: when it is due, which, and whether for the batch shell alone."""

    moment: float
    number: int
    batch_shell: bool


def end_of_time(job: Job, minute: float) -> float:
    """When the time limit is reached, 0.0 for never or while suspended; `minute` is what a minute of it lasts."""
    if job.time_limit < 0 or job.suspended_at:
        return 0.0
    return job.start_time + job.suspended + job.time_limit / 60 * minute


def warning(job: Job, minute: float) -> Warning | None:
    """The signal before the end, if one was asked for."""
    text, end = job.options.get("signal"), end_of_time(job, minute)
    if not text or not end:
        return None
    spec = parse_signal(text)
    return Warning(end - spec.seconds / 60 * minute, spec.number, spec.batch_shell)
