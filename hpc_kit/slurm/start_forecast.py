"""Describes when a waiting job will start, and how much time a running job has left."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from hpc_kit.slurm.job_status import JobStatus, RequestedSize
from hpc_kit.slurm.partitions import JobPart, ListedPartition, find_partition_obstacle
from hpc_kit.slurm.pending_reasons import Reason, explain_reason, reason_name
from hpc_kit.slurm.states import JobState, explain_state
from hpc_kit.slurm.units import UNLIMITED, format_count

QUEUE_REASONS = frozenset({"Priority", "Resources", "None", ""})
"""Reasons of a job that only waits for jobs of higher priority or for free nodes."""


class PendingQueue:
    """The waiting jobs of all users.

    With PrivateData a site shows `user` only their own jobs.
    """

    def __init__(self, statuses: Iterable[JobStatus], user: str, partitions: Sequence[ListedPartition] = ()) -> None:
        self.partitions = partitions
        self._places: dict[str, list[tuple[int, int]]] = {}
        self._others = False
        for each in statuses:
            self._others = self._others or each.user != user
            if each.state is JobState.PENDING and reason_name(each.reason or "") in QUEUE_REASONS:
                for partition in each.partition.split(","):
                    self._places.setdefault(partition, []).append(_queue_key(each))
        for places in self._places.values():
            places.sort()

    def count_jobs_ahead(self, status: JobStatus) -> int | None:
        """Return the number of waiting jobs with higher priority, in the partition with the fewest; None: unknown."""
        if status.priority is None:
            return None
        lines = [self._places.get(partition, []) for partition in status.partition.split(",")]
        return min(bisect_left(places, _queue_key(status)) for places in lines)

    def describe_start(self, status: JobStatus, now: dt.datetime) -> str:
        """Return a text such as `14 jobs ahead, starts about 14:20`; empty if nothing is known.

        `now` is the local time without a zone.
        """
        parts = []
        reason = reason_name(status.reason or "")
        if reason in QUEUE_REASONS and (count := self.count_jobs_ahead(status)):
            parts.append(f"{format_count(count, 'job' if self._others else 'of your own job')} ahead")
        if status.start is not None and status.start > now:
            parts.append(f"starts {'at' if reason == 'BeginTime' else 'about'} {format_start(status.start, now)}")
        return ", ".join(parts)


def _queue_key(status: JobStatus) -> tuple[int, int]:
    """Return a key that sorts waiting jobs: by priority, then by age."""
    return -(status.priority or 0), int(status.raw_id) if status.raw_id.isdigit() else 0


def describe_wait(status: JobStatus, queue: PendingQueue, now: dt.datetime) -> tuple[str, str | None]:
    """Return a sentence about a job that has not ended, and a next step if there is one.

    `now` is the local time without a zone.
    """
    if status.state is JobState.RUNNING:
        return describe_remaining_time(status), None
    if status.state is JobState.UNKNOWN:
        return f"Slurm prints the state {status.raw_state}, which this version of hpc_kit does not know.", None
    if status.state is not JobState.PENDING:
        return explain_state(status.state), None
    if limit := find_limit(status, queue.partitions):
        return limit
    expected = queue.describe_start(status, now)
    if reason_name(status.reason or "") in QUEUE_REASONS and expected:
        return expected, None
    meaning = explain_reason(status.reason or "None", status.job_id)
    return (f"{meaning.sentence} {expected[0].upper()}{expected[1:]}." if expected else meaning.sentence), (
        meaning.next_step
    )


def find_limit(status: JobStatus, partitions: Sequence[ListedPartition]) -> Reason | None:
    """Return the limit because of which no partition of a waiting job can ever start it; None if none is known."""
    name = reason_name(status.reason or "")
    slurm_refuses = name.startswith("Partition") or name == "BadConstraints"
    if status.state is not JobState.PENDING or not (slurm_refuses or name in QUEUE_REASONS):
        return None
    size = status.size or RequestedSize(1, 1, 0, "")
    part = JobPart(
        status.partition, size.nodes, -(-size.cpus // size.nodes), status.time_limit, gpus_per_node=size.gpus_per_node
    )
    # A QOS may lift limits of a partition. Slurm's own reason shows that it has not.
    obstacle = find_partition_obstacle(part, partitions, has_qos=not slurm_refuses and size.qos not in {"", "normal"})
    if obstacle is None:
        return None
    where, found, remedy = obstacle
    return Reason(f"It can never start in {where}: {found}.", f"Cancel it and submit it again: {remedy}")


def remaining_seconds(status: JobStatus) -> int | None:
    """Return the seconds until the time limit; None without a limit, or if they are not known."""
    if status.elapsed is None or status.time_limit is None or status.time_limit == UNLIMITED:
        return None
    return status.time_limit - status.elapsed


def describe_remaining_time(status: JobStatus) -> str:
    """Describe the remaining time of a running job. Only Slurm's clock counts, since the local one may be wrong."""
    where = f" on {status.nodelist}" if status.nodelist else ""
    if status.elapsed is None:
        return f"It is running{where}."
    left = remaining_seconds(status)
    if left is None or status.time_limit is None:
        return f"{format_duration(status.elapsed)} so far, no limit{where}"
    limit = format_duration(status.time_limit)
    if left < 0:
        return f"{format_duration(status.elapsed)} so far, over its limit of {limit}{where}"
    return f"{format_duration(left)} left of {limit}{where}"


def format_duration(seconds: int) -> str:
    """Format a duration in its two largest units: `2 d 3 h`, `3 h 10 min`, `9 min 5 s`, `45 s`."""
    seconds = max(0, seconds)
    units = {"d": seconds // 86400, "h": seconds // 3600 % 24, "min": seconds // 60 % 60}
    if seconds < 600:
        units["s"] = seconds % 60
    named = [f"{number} {unit}" for unit, number in units.items() if number]
    return " ".join(named[:2]) or "0 s"


def format_start(moment: dt.datetime, now: dt.datetime) -> str:
    """Format a future time: `14:20`, `tomorrow 14:20`, `Tue 14:20`, `24 Dec 14:20`."""
    days = (moment.date() - now.date()).days
    time = f"{moment:%H:%M}"
    if days == 0:
        return time
    if days == 1:
        return f"tomorrow {time}"
    if 0 < days < 7:
        return f"{moment:%a} {time}"
    year = f" {moment.year}" if moment.year != now.year else ""
    return f"{moment.day} {moment:%b}{year} {time}"
