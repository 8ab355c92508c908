"""The current state of many jobs, from one squeue, one sacct and the run folders, however many jobs there are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpc_kit.errors import SlurmUnavailable, UnknownJob
from hpc_kit.runs.backend import query_runs
from hpc_kit.runs.cluster_match import command_with_cluster, describe_cluster, is_same_job, may_belong_to
from hpc_kit.runs.history import History, read_history
from hpc_kit.runs.outcome import Outcome, record_outcomes, recorded_outcome
from hpc_kit.runs.progress import RunProgress, read_progress
from hpc_kit.runs.run_folders import RECENT_RUNS, Run, RunIndex
from hpc_kit.slurm.client import SlurmClient, user_name
from hpc_kit.slurm.job_ids import base_id, parse_job_ids, sort_key
from hpc_kit.slurm.job_status import JobStatus
from hpc_kit.slurm.partitions import ListedPartition
from hpc_kit.slurm.queries import QueueSnapshot
from hpc_kit.slurm.start_forecast import PendingQueue, describe_wait, format_duration, remaining_seconds
from hpc_kit.slurm.states import JobState, explain_state, parse_state


class JobLine(NamedTuple):
    """One job of a listing."""

    job_id: str
    name: str
    state: JobState
    sentence: str
    """Explains the state: what a waiting job waits for, or the first failure of a failed job."""

    next_step: str | None
    status: JobStatus | None
    run: Run | None
    progress: RunProgress | None = None
    """Progress of a running job whose program notes it."""

    @property
    def submitted(self) -> dt.datetime | None:
        """Local time of the submission, without a zone."""
        if self.status is not None and self.status.submit is not None:
            return self.status.submit
        return _local_time(self.run.record.submitted if self.run is not None and self.run.record else None)

    @property
    def duration(self) -> int | None:
        """Seconds for which the job runs or ran; None if it has not started, or the time is unknown."""
        if self.status is not None:
            return self.status.elapsed if self.state is not JobState.PENDING else None
        recorded = recorded_outcome(self.run) if self.run is not None else None
        start, end = (_local_time(recorded.start), _local_time(recorded.end)) if recorded else (None, None)
        return round((end - start).total_seconds()) if start and end else None

    @property
    def history(self) -> History:
        """The attempts of a job with [restart]; none of other jobs."""
        return read_history(self.run.folder) if self.run is not None else History()

    @property
    def reason(self) -> str | None:
        """Slurm's reason why the job waits."""
        return self.status.reason if self.status is not None and self.state is JobState.PENDING else None

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        history = self.history
        count, lost = len(history.attempts), format_duration(round(history.lost))
        attempt = f", attempt {count} ({lost} lost)" if count > 1 else ""
        return f"{self.state}{reason}{attempt}: {self.sentence}"


def _local_time(text: str | None) -> dt.datetime | None:
    try:
        moment = dt.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment.astimezone().replace(tzinfo=None) if moment.tzinfo else moment


class JobListing(NamedTuple):
    """Jobs, and the error if the controller did not answer. The lines then come from the accounting and from files."""

    lines: list[JobLine]
    unreachable: SlurmUnavailable | None = None
    other_jobs: int = 0
    """Jobs of this user in the queue that belong to other projects, and are not listed."""


class JobSelection(NamedTuple):
    """The jobs of a listing: by id, by name, the queue of this user, the latest runs."""

    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    mine: bool = False
    latest: bool = False
    project_only: bool = False
    """Of the queue, only jobs of this project. A name always means jobs of this project."""

    is_repeated: bool = False
    """An earlier poll found these jobs: a missing job is no error, and the ended elements of an array do not matter."""

    @classmethod
    def from_words(cls, words: Iterable[str] | None) -> JobSelection:
        """Return the selection that words of a command line mean: ids as Slurm writes them, all others job names."""
        given = list(dict.fromkeys(words or ()))
        ids = tuple(dict.fromkeys(job_id for word in given for job_id in parse_job_ids(word)))
        names = tuple(word for word in given if not parse_job_ids(word))
        return cls(ids, names, mine=not given, latest=not given)


def list_jobs(
    selection: JobSelection,
    index: RunIndex,
    client: SlurmClient,
    *,
    cluster: str | None = None,
    partitions: Sequence[ListedPartition] = (),
    require_slurm: bool = False,
) -> JobListing:
    """Return the state of jobs: selected jobs in that order, else this user's queue and the latest runs, newest first.

    Runs one squeue, and one sacct for all jobs that squeue does not know. The rest comes from the files of the runs.
    Runs of another cluster than that of the file `cluster` are not queried; None: all runs are. `partitions` explain
    jobs that wait because of a limit.

    Raises:
        UnknownJob: Neither Slurm nor `runs` knows an id or a name.
        SlurmUnavailable: Slurm does not answer, and it is required or nothing is known about any job.
    """
    listing = _ListingQuery(selection, index, client, cluster, partitions).listing()
    if require_slurm and listing.unreachable is not None:
        raise listing.unreachable
    return listing


class _ListingQuery:
    """Queries the jobs of one listing and combines the answers."""

    def __init__(
        self,
        selection: JobSelection,
        index: RunIndex,
        client: SlurmClient,
        cluster: str | None,
        partitions: Sequence[ListedPartition],
    ) -> None:
        self.selection, self.index = selection, index
        self.cluster, self.client = cluster, client
        self.now = dt.datetime.now()  # noqa: DTZ005 - Slurm's times have no zone either
        self.recent = self._recent_runs()
        self.snapshot = self._query_slurm()
        self.user = user_name()
        self.queue = PendingQueue(self.snapshot.queue, self.user, partitions)
        self.other_jobs: list[JobStatus] = []
        """Jobs of this user with the right names, which belong to other projects."""

        # If jobs of two clusters have one id, the one of the run wins.
        self.by_id = {each.job_id: each for each in self._own_queue()} | self.snapshot.found | self._query_others()
        self.by_base: dict[str, list[JobStatus]] = {}
        for job_id, status in self.by_id.items():
            # A task of an array that was queried by its own number has two keys.
            if job_id == status.job_id:
                self.by_base.setdefault(base_id(job_id), []).append(status)

    def _query_slurm(self) -> QueueSnapshot:
        """Query each cluster for its own runs, and for the ids without a run."""
        ids = {job_id: self._find(job_id) for job_id in (*self.selection.ids, *self._unfinished_ids())}
        runs = {job_id: run for job_id, run in ids.items() if run is None or run.backend.uses_slurm}
        if ids and not (runs or self.selection.names or self.selection.mine):
            return QueueSnapshot([], {}, None)
        parts = []
        for client in self.client.for_each_cluster():
            own = [
                job_id
                for job_id, run in runs.items()
                if run is None or not self._is_here(run) or may_belong_to(run, self.cluster, client)
            ]
            # The queue of all users shows how many jobs are ahead; the ids add the jobs that have ended.
            parts.append(client.query_queue(own, ended=not self.selection.is_repeated))
        queue = [each for part in parts for each in part.queue]
        found = {job_id: each for part in reversed(parts) for job_id, each in part.found.items()}
        return QueueSnapshot(queue, found, next((part.unreachable for part in parts if part.unreachable), None))

    def _query_others(self) -> dict[str, JobStatus]:
        """Query the backends that are not in Slurm's queue."""
        runs = [*filter(None, map(self._find, self.selection.ids)), *self.recent]
        return query_runs([run for run in runs if not run.backend.uses_slurm], self.client)

    def _find(self, job_id: str) -> Run | None:
        return self.index.find(job_id, self._is_here)

    def _recent_runs(self) -> list[Run]:
        if self.selection.names:
            return [run for name in self.selection.names for run in self.index.find_by_name(name)[:RECENT_RUNS]]
        return self.index.recent(4 * RECENT_RUNS) if self.selection.latest else []

    def _unfinished_ids(self) -> list[str]:
        """Return the ids of this cluster's recent runs without a recorded outcome."""
        return [run.job_id for run in self.recent if self._is_here(run) and recorded_outcome(run) is None]

    def _is_here(self, run: Run) -> bool:
        return may_belong_to(run, self.cluster, self.client)

    def _own_queue(self) -> list[JobStatus]:
        mine, names = self.selection.mine, self.selection.names
        jobs = [each for each in self.snapshot.queue if each.user == self.user and (mine or each.name in names)]
        if not (self.selection.project_only or names):
            return jobs
        of_project: list[JobStatus] = []
        for each in jobs:
            (of_project if self._is_of_project(each) else self.other_jobs).append(each)
        return of_project

    def _is_of_project(self, status: JobStatus) -> bool:
        run = self._find(base_id(status.job_id))
        return run is not None and run.name == status.name and self._is_here(run) and is_same_job(run, status)

    def listing(self) -> JobListing:
        """Return the listing."""
        bases = {base_id(job_id) for job_id in self.selection.ids}
        jobs: list[tuple[str, JobStatus | None]] = []
        missing: list[str] = []
        for job_id in self.selection.ids:
            found = self._find_parts(job_id)
            jobs += found
            missing += [job_id] * (not found)
            jobs += [(job_id, None)] * (self.selection.is_repeated and not found)
        # Jobs of the queue, and recent runs that have left it, follow the named jobs.
        rest = [self._statuses_of(base) for base in self.by_base if base not in bases]
        rest += [self._find_parts(run.job_id) for run in self.recent if run.job_id not in self.by_base]
        jobs += sorted((each for parts in rest for each in parts), key=lambda job: sort_key(job[0]), reverse=True)
        missing += [name for name in self.selection.names if not any(self._has_name(job[0], name) for job in jobs)]
        # Missing jobs may be known to the controller that does not answer.
        if self.snapshot.unreachable is not None and (missing or not jobs):
            raise self.snapshot.unreachable
        if missing and not self.selection.is_repeated:
            raise self._unknown_job_error(missing)
        lines = self._lines(
            [(job_id, status, self._run_of(job_id, status)) for job_id, status in dict(jobs).items()]
            + [(each.job_id, None, each) for run in self.recent if not self._is_listed(run) for each in _parts_of(run)]
        )
        if self.selection.latest:
            lines.sort(key=lambda line: sort_key(line.job_id), reverse=True)
        others = {base_id(each.job_id) for each in self.other_jobs}
        return JobListing(lines, self.snapshot.unreachable, len(others))

    def _unknown_job_error(self, missing: list[str]) -> UnknownJob:
        elsewhere = list(dict.fromkeys(base_id(each.job_id) for each in self.other_jobs if each.name in missing))
        if not elsewhere:
            return self.index.unknown_job_error(missing, "Slurm does not know it, and ")
        return UnknownJob(
            f"no job of this project is named {', '.join(missing)}",
            found=f"jobs of yours with this name, submitted elsewhere: {', '.join(elsewhere[:10])}",
            remedy=f"use the id of a job ({elsewhere[0]}), or run this in the project that submitted it",
        )

    def _has_name(self, job_id: str, name: str) -> bool:
        run = self._find(job_id)
        return (run is not None and run.name == name) or any(
            each.name == name for each in self.by_base.get(base_id(job_id), [])
        )

    def _find_parts(self, job_id: str) -> list[tuple[str, JobStatus | None]]:
        """Return a job, or its elements or components, from Slurm or else from its run."""
        parts = self._statuses_of(job_id)
        run = self._find(job_id)
        if parts or run is None:
            return parts
        return [(each.job_id, None) for each in _parts_of(run)]

    def _statuses_of(self, job_id: str) -> list[tuple[str, JobStatus | None]]:
        """Return Slurm's status of a job, or of each of its elements or components."""
        statuses = self.by_base.get(job_id, [])
        # While Slurm splits an array, it may list the array beside its elements.
        parts = [status for status in statuses if status.job_id != job_id] or statuses
        if not parts and job_id in self.by_id:
            parts = [self.by_id[job_id]]
        return [(status.job_id, status) for status in parts]

    def _lines(self, jobs: list[tuple[str, JobStatus | None, Run | None]]) -> list[JobLine]:
        """Return the lines. New outcomes are recorded, each record once."""
        # The components of a heterogeneous job share one run; the status of the first decides its outcome.
        by_id = sorted(jobs, key=lambda job: job[0], reverse=True)
        by_run = {run.folder: (run, status) for _, status, run in by_id if run}
        fresh = {folder: each for folder, each in by_run.items() if _needs_outcome(*each)}
        outcomes = dict(zip(fresh, record_outcomes(list(fresh.values())), strict=True))
        return [
            self._line(job_id, status, run, outcomes.get(run.folder) if run else None) for job_id, status, run in jobs
        ]

    def _is_listed(self, run: Run) -> bool:
        """Return whether the id of a run means this run, and not that of another cluster's job."""
        found = self._find(run.job_id)
        is_own = found is not None and found.folder == run.folder
        return is_own and (self._is_here(run) or run.job_id not in self.by_base)

    def _run_of(self, job_id: str, status: JobStatus | None) -> Run | None:
        """Return the run of a job, unless it is the run of another cluster's job with the same id."""
        run = self._find(job_id)
        return None if run is not None and status is not None and not self._is_here(run) else run

    def _line(self, job_id: str, status: JobStatus | None, run: Run | None, outcome: Outcome | None) -> JobLine:
        name = run.name if run else status.name if status else ""
        if status is not None and (run is None or not status.state.finished):
            sentence, step = describe_wait(status, self.queue, self.now)
            step = self.client.typed_command(step)
            progress = read_progress(run) if run is not None and status.state is JobState.RUNNING else None
            if progress is not None:
                sentence = f"{progress.describe(remaining_seconds(status))}; {sentence}"
                step = f"hpc-kit stacks {run.job_id}" if progress.stall and run is not None else step
            return JobLine(job_id, name, status.state, sentence, step, status, run, progress)
        if outcome is not None:
            if status is None and run is not None and not self._is_here(run):
                return self._line_of_other_cluster(run, outcome)
            failure = outcome.failure
            sentence = failure.headline if failure else outcome.sentence
            return JobLine(job_id, name, outcome.state, sentence, None, status, run)
        recorded = recorded_outcome(run) if run else None
        if run is None or recorded is None:
            return JobLine(job_id, name, JobState.UNKNOWN, explain_state(JobState.UNKNOWN), None, status, run)
        state, first = parse_state(recorded.state), recorded.first_failure
        sentence = first.headline if first else run.backend.describe_end(run, state).partition("\n")[0]
        return JobLine(job_id, name, state, sentence, None, status, run)

    def _line_of_other_cluster(self, run: Run, outcome: Outcome) -> JobLine:
        """Return the line of another cluster's run, whose files may contain its outcome."""
        if outcome.state.finished or run.record is None:
            return JobLine(run.job_id, run.name, outcome.state, outcome.sentence, None, None, run)
        sentence = f"It was submitted to cluster {describe_cluster(run.record, self.client)}, not asked here."
        step = command_with_cluster(run.record, self.client, f"hpc-kit status {run.job_id}")
        return JobLine(run.job_id, run.name, outcome.state, sentence, step, None, run)


def _parts_of(run: Run) -> list[Run]:
    """Return the elements of an array that have started, or else the run itself."""
    return [each for each in run.elements() if each.folder.is_dir()] or [run]


def _needs_outcome(run: Run, status: JobStatus | None) -> bool:
    """Return whether the outcome must be read: it is not recorded, or a requeued job ended again."""
    recorded = recorded_outcome(run)
    if recorded is None or status is None:
        return recorded is None and (status is None or status.state.finished)
    ended = status.end.isoformat() if status.end else None
    return status.state.finished and (str(status.state), ended) != (recorded.state, recorded.end)
