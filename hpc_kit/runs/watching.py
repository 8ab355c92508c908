"""Looking at jobs again and again: how they stand, and what has changed since the last look."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.runs.follow import LOST_LOOKS, PASSING
from hpc_kit.runs.run_folders import RunIndex
from hpc_kit.runs.status import JobLine, JobListing, JobSelection, list_jobs
from hpc_kit.slurm.job_ids import base_id
from hpc_kit.slurm.start_forecast import QUEUE_REASONS, reason_name
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hpc_kit.runs.access import Access


class JobChange(NamedTuple):
    """A job that is new, or in another state than before, or waits for another reason."""

    line: JobLine
    old: JobState | None


class ListingUpdate(NamedTuple):
    """One look: all jobs as they stand, what is new, and whether nothing more will come."""

    lines: list[JobLine]
    changes: list[JobChange]
    unreachable: SlurmUnavailable | None
    """Slurm did not answer: the lines are those of the last look that it did."""

    is_last: bool

    @property
    def all_completed(self) -> bool:
        """Every job has ended, and well."""
        return all(line.state is JobState.COMPLETED for line in self.lines)


def follow_listing(
    words: Sequence[str],
    runs: Path,
    access: Access,
    *,
    interval: float,
    cluster: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[ListingUpdate]:
    """Look at jobs until all are over; without words at this user's queue, and at what comes into it meanwhile.

    A controller that does not answer is asked again.

    Args:
        words: Ids and names of jobs.
        runs: The folder of runs.
        access: The Slurm.
        interval: Seconds between two looks.
        cluster: See `listing.look`.
        sleep: Waits that many seconds.

    Raises:
        UnknownJob: At the first look, neither Slurm nor `runs` knows a job.
    """
    watched = _Watched(JobSelection.from_words(words)._replace(latest=False))
    while True:
        try:
            listing = list_jobs(watched.wanted(), RunIndex(runs), access, cluster=cluster)
        except SlurmUnavailable as error:
            listing = JobListing([], error)
        yield watched.take(listing)
        if watched.over:
            return
        sleep(interval)


class _Watched:
    """What is known of the jobs so far."""

    def __init__(self, first: JobSelection) -> None:
        self._first = first
        self._lines: dict[str, JobLine] = {}
        self._told: dict[str, tuple[JobState, str]] = {}
        self._bases: set[str] = set()
        self._lost: dict[str, int] = {}
        self._begun = False
        self.over = False

    def wanted(self) -> JobSelection:
        """What is left to be asked: nothing of what has ended."""
        if not self._begun:
            return self._first
        going = tuple(dict.fromkeys(base_id(job_id) for job_id in self._lines if not self._is_over(job_id)))
        return self._first._replace(ids=going, is_repeated=True)

    def _is_over(self, job_id: str) -> bool:
        return self._lines[job_id].state.finished or self._lost.get(job_id, 0) >= LOST_LOOKS

    def take(self, listing: JobListing) -> ListingUpdate:
        """Take in what a look has shown."""
        changes = []
        for line in listing.lines:
            # Of the queue as a whole, what had ended before is not to be watched.
            over_before = self._first.mine and line.state.finished and base_id(line.job_id) not in self._bases
            if over_before or (line.state is JobState.UNKNOWN and listing.unreachable is not None):
                continue
            unknown = line.state is JobState.UNKNOWN
            self._lost[line.job_id] = self._lost.get(line.job_id, 0) + 1 if unknown else 0
            self._lines[line.job_id] = line
            self._bases.add(base_id(line.job_id))
            if change := self._change(line):
                changes.append(change)
        self._begun = self._begun or listing.unreachable is None
        self.over = self._begun and listing.unreachable is None and all(map(self._is_over, self._lines))
        return ListingUpdate(list(self._lines.values()), changes, listing.unreachable, self.over)

    def _change(self, line: JobLine) -> JobChange | None:
        reason = reason_name(line.status) if line.status is not None and line.state is JobState.PENDING else ""
        told = line.state, "" if reason in QUEUE_REASONS else reason
        if line.state in PASSING and not self._is_over(line.job_id):
            return None
        old = self._told.get(line.job_id)
        self._told[line.job_id] = told
        return None if old == told else JobChange(line, old[0] if old else None)
