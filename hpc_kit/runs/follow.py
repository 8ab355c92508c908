"""Follows jobs to their end: events of single jobs, or the changes of a whole listing. Nothing here prints."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.runs.backend import query_runs
from hpc_kit.runs.first_failure import SHELL_MESSAGE
from hpc_kit.runs.known_jobs import JobSelection
from hpc_kit.runs.logs import LogFollower
from hpc_kit.runs.outcome import Outcome, matching_status, read_state, record_outcome
from hpc_kit.runs.run_folders import Run, RunIndex
from hpc_kit.runs.status import JobLine, JobListing, list_jobs
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.job_ids import base_id
from hpc_kit.slurm.job_status import JobStatus
from hpc_kit.slurm.partitions import ListedPartition
from hpc_kit.slurm.pending_reasons import Reason, explain_reason, reason_name
from hpc_kit.slurm.start_forecast import QUEUE_REASONS
from hpc_kit.slurm.states import JobState

FILE_POLL_SECONDS = 0.1
"""Pause between two reads of the logs. Reading them is no load for Slurm."""

END_POLL_SECONDS = 1.0
END_SECONDS = 15.0
"""After the script of a job has ended, Slurm is asked this often, for this long."""

LOST_POLLS = 3
"""A job is lost if so many polls in a row find neither its status nor the end marker of its script."""

TRANSIENT_STATES = frozenset({JobState.COMPLETING, JobState.UNKNOWN})
"""States that are too short or too vague to be reported."""

_KILLED = re.compile(r"slurmstepd\S*: error: \*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED")
"""Message that Slurm writes to the log of a rank that it kills. The program has not printed it."""


class JobTracker:
    """The last reported state of one job.

    A job is over when its state is final, or when the job is lost.
    """

    def __init__(self) -> None:
        self.state: JobState | None = None
        self.reason = ""
        """Why the job is pending; empty if it only waits for the jobs before it."""

        self.is_over = False
        self._unknown_polls = 0

    def update(self, state: JobState, status: JobStatus | None) -> bool:
        """Store the result of a poll, and return whether there is something to report."""
        # A job with a status exists. Its state is UNKNOWN if a newer Slurm uses a name that is not known here.
        is_unknown = state is JobState.UNKNOWN and status is None
        self._unknown_polls = self._unknown_polls + 1 if is_unknown else 0
        self.is_over = state.finished or self._unknown_polls >= LOST_POLLS
        if state in TRANSIENT_STATES and not self.is_over:
            return False
        reason = reason_name(status.reason or "") if status is not None and state is JobState.PENDING else ""
        before = self.state, self.reason
        self.state, self.reason = state, "" if reason in QUEUE_REASONS else reason
        return before != (self.state, self.reason)


class StateChanged(NamedTuple):
    """A job changed its state. `elapsed` is the observed number of seconds in the old state."""

    job_id: str
    old: JobState | None
    new: JobState
    elapsed: float


class Waiting(NamedTuple):
    """A job waits for something other than the jobs before it."""

    job_id: str
    reason: str
    meaning: Reason


class RankLine(NamedTuple):
    """A line that a rank wrote."""

    job_id: str
    rank: int
    text: str


class Unreachable(NamedTuple):
    """Slurm does not answer. The jobs and the queries continue."""

    error: SlurmUnavailable


class Ended(NamedTuple):
    """A job is over."""

    job_id: str
    outcome: Outcome


Event = StateChanged | Waiting | RankLine | Unreachable | Ended


class _FollowedJob:
    """One job, the logs of its ranks and the reported events."""

    def __init__(self, run: Run, ranks: Sequence[int] | None, now: float) -> None:
        self.run = run
        self.readers = {rank: LogFollower(run.rank_log(rank)) for rank in (run.ranks() if ranks is None else ranks)}
        self.tracker = JobTracker()
        self.changed_at = now
        self._announced_reason = ""
        self._script_has_ended = False

    def notice_script_end(self) -> bool:
        """Return whether the script has ended since the last call. Slurm then has a new state soon."""
        had_ended, self._script_has_ended = self._script_has_ended, self.run.end_marker() is not None
        return self._script_has_ended and not had_ended

    def read_lines(self, *, end: bool = False) -> Iterator[RankLine]:
        for rank, reader in self.readers.items():
            for text in reader.read(end=end):
                if not (_KILLED.match(text) or SHELL_MESSAGE.match(text)):
                    yield RankLine(self.run.job_id, rank, text)

    def update(self, status: JobStatus | None, now: float) -> Iterator[StateChanged | Waiting]:
        """Yield the events of a poll."""
        status = matching_status(self.run, status)
        old, job_id = self.tracker.state, self.run.job_id
        if not self.tracker.update(read_state(self.run, status), status):
            return
        # A lost job has the state UNKNOWN, which is no event of its own: `Ended` follows.
        state = self.tracker.state
        if state is not None and state is not old and state is not JobState.UNKNOWN:
            yield StateChanged(job_id, old, state, now - self.changed_at)
            self.changed_at, self._announced_reason = now, ""
        if status is not None and status.reason and self.tracker.reason not in {"", self._announced_reason}:
            self._announced_reason = self.tracker.reason
            yield Waiting(job_id, status.reason, explain_reason(status.reason, job_id))


def follow(
    jobs: Sequence[Run],
    client: SlurmClient,
    *,
    ranks: Sequence[int] | None = (0,),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Event]:
    """Follow jobs to their end. Yield each change of state once, new lines of the ranks, and the outcomes.

    `KeyboardInterrupt` ends the iteration; the jobs continue. For an array, `jobs` are its elements. `ranks=None` reads
    the lines of all ranks.
    """
    followed = [_FollowedJob(run, ranks, clock()) for run in jobs]
    # Reading the files of many jobs is a load for the file system.
    file_pause = FILE_POLL_SECONDS * max(1.0, sum(len(job.readers) or 1 for job in followed) / 20)
    polled_at, script_ended_at, is_reachable = float("-inf"), float("-inf"), True
    while followed:
        for job in followed:
            yield from job.read_lines()
            if job.notice_script_end():
                script_ended_at = clock()
        pause = _pause_between_polls(client, followed, clock() - script_ended_at, clock())
        if clock() - polled_at < pause:
            sleep(min(file_pause, pause))
            continue
        polled_at = clock()
        query = _start_query([job.run for job in followed], client)
        while not wait([query], file_pause).done:
            yield from chain.from_iterable(job.read_lines() for job in followed)
        try:
            statuses = query.result()
        except SlurmUnavailable as error:
            if is_reachable:
                yield Unreachable(error)
            is_reachable = False
            continue
        is_reachable = True
        for job in list(followed):
            status = statuses.get(job.run.job_id)
            events = list(job.update(status, clock()))
            is_over = job.tracker.is_over
            # The last lines were written before the job ended.
            yield from job.read_lines(end=True) if is_over else ()
            yield from events
            if is_over:
                followed.remove(job)
                yield Ended(job.run.job_id, record_outcome(job.run, status))


def _pause_between_polls(
    client: SlurmClient, followed: Sequence[_FollowedJob], since_script_end: float, now: float
) -> float:
    """Return the seconds between two polls. They are shorter in the seconds after the last end of a script."""
    if since_script_end < END_SECONDS:
        return min(client.poll_seconds, END_POLL_SECONDS)
    if not client.embedded:
        return client.poll_seconds
    # The ranks need the cores, so the pause grows to a second while nothing happens on the embedded Slurm.
    return max(client.poll_seconds, min(1.0, min(now - job.changed_at for job in followed) / 10))


def _start_query(runs: list[Run], client: SlurmClient) -> Future[dict[str, JobStatus]]:
    """Query Slurm in a thread: a slow squeue delays neither the lines of the ranks nor Ctrl-C."""
    query: Future[dict[str, JobStatus]] = Future()

    def run() -> None:
        try:
            query.set_result(query_runs(runs, client))
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            query.set_exception(error)

    # A daemon thread, unlike that of an executor, does not delay the end of the process.
    threading.Thread(target=run, daemon=True).start()
    return query


class JobChange(NamedTuple):
    """A job that is new, has a new state, or waits for another reason."""

    line: JobLine
    old: JobState | None


class ListingUpdate(NamedTuple):
    """One poll of a listing."""

    lines: list[JobLine]
    changes: list[JobChange]
    unreachable: SlurmUnavailable | None
    """Slurm did not answer: the lines are those of the last poll with an answer."""

    is_last: bool

    @property
    def all_completed(self) -> bool:
        """True if every job ended successfully."""
        return all(line.state is JobState.COMPLETED for line in self.lines)


def follow_listing(
    words: Sequence[str],
    runs: Path,
    client: SlurmClient,
    *,
    interval: float,
    cluster: str | None = None,
    partitions: Sequence[ListedPartition] = (),
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[ListingUpdate]:
    """List jobs repeatedly until all are over. Without words: this user's queue, including jobs that enter it later.

    If the controller does not answer, the polls continue. See `status.list_jobs` for `cluster` and `partitions`.
    """
    listing = _FollowedListing(JobSelection.from_words(words)._replace(latest=False))
    while True:
        try:
            found = list_jobs(listing.selection(), RunIndex(runs), client, cluster=cluster, partitions=partitions)
        except SlurmUnavailable as error:
            found = JobListing([], error)
        update = listing.update(found)
        yield update
        if update.is_last:
            return
        sleep(interval)


class _FollowedListing:
    """The jobs that the polls of a listing have found so far."""

    def __init__(self, first: JobSelection) -> None:
        self._first = first
        self._lines: dict[str, JobLine] = {}
        self._trackers: dict[str, JobTracker] = {}
        self._bases: set[str] = set()
        self._has_begun = False

    def selection(self) -> JobSelection:
        """Return the jobs to list next: those that are not over."""
        if not self._has_begun:
            return self._first
        active = dict.fromkeys(base_id(job_id) for job_id, tracker in self._trackers.items() if not tracker.is_over)
        return self._first._replace(ids=tuple(active), is_repeated=True)

    def update(self, listing: JobListing) -> ListingUpdate:
        """Store the result of a poll, and return what the caller shows."""
        is_reachable = listing.unreachable is None
        changes = []
        for line in (part for each in listing.lines for part in self._parts(each)):
            # Jobs that had ended before the first poll are not followed, unless the user named them.
            had_ended = self._first.mine and line.state.finished and base_id(line.job_id) not in self._bases
            if had_ended or (line.state is JobState.UNKNOWN and not is_reachable):
                continue
            self._lines[line.job_id] = line
            self._bases.add(base_id(line.job_id))
            tracker = self._trackers.setdefault(line.job_id, JobTracker())
            old = tracker.state
            if tracker.update(line.state, line.status):
                changes.append(JobChange(line, old))
        self._has_begun = self._has_begun or is_reachable
        is_last = self._has_begun and is_reachable and all(tracker.is_over for tracker in self._trackers.values())
        return ListingUpdate(list(self._lines.values()), changes, listing.unreachable, is_last)

    def _parts(self, line: JobLine) -> list[JobLine]:
        """Return a line for each followed element of an array that Slurm has forgotten; else the line itself."""
        if line.status is not None or line.state is not JobState.UNKNOWN or line.job_id in self._lines:
            return [line]
        elements = [each for job_id, each in self._lines.items() if base_id(job_id) == line.job_id]
        active = [each for each in elements if not self._trackers[each.job_id].is_over]
        return [line._replace(job_id=each.job_id, run=each.run) for each in active] or [line]
