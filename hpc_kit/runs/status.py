"""Listings of jobs, and their end: one squeue and one sacct for all jobs, however many."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.runs import launched
from hpc_kit.runs.cluster_match import command_with_cluster, describe_cluster, may_belong_to
from hpc_kit.runs.outcome import record_outcomes, recorded_outcome
from hpc_kit.runs.run_folders import RECENT_RUNS, Run, RunIndex
from hpc_kit.slurm.job_ids import base_id, parse_job_ids, sort_key
from hpc_kit.slurm.queries import QueueSnapshot
from hpc_kit.slurm.start_forecast import PendingQueue, describe_wait
from hpc_kit.slurm.states import JobState, explain_state
from hpc_kit.slurm.user import user_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hpc_kit.runs.access import Access
    from hpc_kit.runs.outcome import Outcome
    from hpc_kit.slurm.job_status import JobStatus


class JobLine(NamedTuple):
    """One job of a listing."""

    job_id: str
    name: str
    state: JobState
    sentence: str
    """The state in plain words: of a waiting job what is before it, of a failed one who failed first and how."""

    next_step: str | None
    status: JobStatus | None
    run: Run | None

    @property
    def reason(self) -> str | None:
        """Why it waits, in Slurm's word."""
        return self.status.reason if self.status is not None and self.state is JobState.PENDING else None

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.state}{reason}: {self.sentence}"


class JobListing(NamedTuple):
    """Jobs, and why the controller could not be asked, if it could not: the lines are then as good as can be."""

    lines: list[JobLine]
    unreachable: SlurmUnavailable | None = None


class JobSelection(NamedTuple):
    """Which jobs a listing is about: some by id, some by name, this user's queue, the latest runs.

    `again`: they were looked at before, so that of an array only what is not over counts, and what is gone is no error.
    """

    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    mine: bool = False
    latest: bool = False
    is_repeated: bool = False

    @classmethod
    def from_words(cls, words: Iterable[str] | None) -> JobSelection:
        """What is meant by words of a command line: ids as Slurm writes them, everything else names of jobs."""
        told = list(dict.fromkeys(words or ()))
        ids = tuple(dict.fromkeys(job_id for word in told for job_id in parse_job_ids(word)))
        names = tuple(word for word in told if not parse_job_ids(word))
        return cls(ids, names, mine=not told, latest=not told)


def statuses(
    words: Sequence[str] | None,
    runs: Path,
    access: Access,
    *,
    cluster: str | None = None,
    now: dt.datetime | None = None,
) -> list[JobLine]:
    """As `look`, for who cannot do without the controller.

    Raises:
        SlurmUnavailable: It does not answer.
    """
    listing = list_jobs(JobSelection.from_words(words), RunIndex(runs), access, cluster=cluster, now=now)
    if listing.unreachable is not None:
        raise listing.unreachable
    return listing.lines


def list_jobs(
    wanted: JobSelection, known: RunIndex, access: Access, *, cluster: str | None = None, now: dt.datetime | None = None
) -> JobListing:
    """The state of jobs: of those wanted in that order, else this user's queue and the latest runs, the newest first.

    One squeue; for what it does not know one sacct, however many jobs; then what the jobs' own files say.

    Args:
        wanted: Which jobs.
        known: The runs of this project.
        access: The Slurm.
        cluster: Its name in records: runs of another cluster are not asked for here. None: all are.
        now: The time here, without a zone.

    Raises:
        UnknownJob: Of an id or name, neither Slurm nor `runs` knows anything.
        SlurmUnavailable: Slurm does not answer, and nothing can be told of any job.
    """
    return _Look(wanted, known, access, cluster, now or dt.datetime.now()).listing()  # noqa: DTZ005 - as Slurm tells it


class _Look:
    """One look at some jobs."""

    def __init__(
        self, wanted: JobSelection, known: RunIndex, access: Access, cluster: str | None, now: dt.datetime
    ) -> None:
        self.wanted, self.known, self.now = wanted, known, now
        self.cluster, self.access = cluster, access
        self.recent = self._recent()
        self.survey = self._survey()
        self.user = user_name()
        self.queue = PendingQueue(self.survey.queue, self.user)
        # Of two clusters' jobs of one id, that of the run is told of.
        self.by_id = {each.job_id: each for each in self._mine()} | self.survey.found | self._launched()
        self.by_base: dict[str, list[JobStatus]] = {}
        for job_id, status in self.by_id.items():
            # Asked for by its own number, a task of an array stands under both.
            if job_id == status.job_id:
                self.by_base.setdefault(base_id(job_id), []).append(status)

    def _survey(self) -> QueueSnapshot:
        """What Slurm says: of several clusters, each of its own runs, and of the ids that are nobody's run here."""
        asked = {job_id: self._find(job_id) for job_id in (*self.wanted.ids, *self._open_ends())}
        runs = {job_id: run for job_id, run in asked.items() if run is None or not run.is_launch}
        if asked and not (runs or self.wanted.names or self.wanted.mine):
            return QueueSnapshot([], {}, None)
        parts = []
        for access in self.access.each():
            there = (
                run is None or not self._is_here(run) or may_belong_to(run, self.cluster, access)
                for run in runs.values()
            )
            own = [job_id for job_id, asked in zip(runs, there, strict=True) if asked]
            parts.append(access.survey(own, ended=not self.wanted.is_repeated))
        queue = [each for part in parts for each in part.queue]
        found = {job_id: each for part in reversed(parts) for job_id, each in part.found.items()}
        return QueueSnapshot(queue, found, next((part.unreachable for part in parts if part.unreachable), None))

    def _launched(self) -> dict[str, JobStatus]:
        """The launches over ssh that run."""
        runs = [*filter(None, map(self._find, self.wanted.ids)), *self.recent]
        return {run.job_id: status for run in runs if run.is_launch and (status := launched.status_of(run))}

    def _find(self, job_id: str) -> Run | None:
        return self.known.find(job_id, self._is_here)

    def _recent(self) -> list[Run]:
        if self.wanted.names:
            return [run for name in self.wanted.names for run in self.known.find_by_name(name)[:RECENT_RUNS]]
        return self.known.recent(4 * RECENT_RUNS) if self.wanted.latest else []

    def _open_ends(self) -> list[str]:
        """Runs of this cluster of which nobody has noted an end."""
        return [run.job_id for run in self.recent if self._is_here(run) and recorded_outcome(run) is None]

    def _is_here(self, run: Run) -> bool:
        return may_belong_to(run, self.cluster, self.access)

    def _mine(self) -> list[JobStatus]:
        every, names = self.wanted.mine, self.wanted.names
        return [each for each in self.survey.queue if each.user == self.user and (every or each.name in names)]

    def listing(self) -> JobListing:
        """The lines of this look."""
        asked = {base_id(job_id) for job_id in self.wanted.ids}
        jobs: list[tuple[str, JobStatus | None]] = []
        missing: list[str] = []
        for job_id in self.wanted.ids:
            own = self._told(job_id)
            jobs += own
            missing += [job_id] * (not own)
            jobs += [(job_id, None)] * (self.wanted.is_repeated and not own)
        rest = [self._known(base) for base in self.by_base if base not in asked]
        rest += [self._told(run.job_id) for run in self.recent if run.job_id not in self.by_base]
        jobs += sorted((each for own in rest for each in own), key=lambda job: sort_key(job[0]), reverse=True)
        missing += [name for name in self.wanted.names if not any(self._is_named(job[0], name) for job in jobs)]
        # One that cannot be asked might know them.
        if self.survey.unreachable is not None and (missing or not jobs):
            raise self.survey.unreachable
        if missing and not self.wanted.is_repeated:
            raise self.known.unknown_job_error(missing, "Slurm does not know it, and ")
        return JobListing(self._lines(dict(jobs)), self.survey.unreachable)

    def _is_named(self, job_id: str, name: str) -> bool:
        run = self._find(job_id)
        return (run is not None and run.name == name) or any(
            each.name == name for each in self.by_base.get(base_id(job_id), [])
        )

    def _told(self, job_id: str) -> list[tuple[str, JobStatus | None]]:
        """What Slurm says of a job, or of each element or component; else that it is one of our runs."""
        own = self._known(job_id)
        run = self._find(job_id)
        if own or run is None:
            return own
        return [(each.job_id, None) for each in run.elements() if each.folder.is_dir()] or [(job_id, None)]

    def _known(self, job_id: str) -> list[tuple[str, JobStatus | None]]:
        """What Slurm says of a job, or of each element or component."""
        same = self.by_base.get(job_id, [])
        # While an array is being taken apart, Slurm may name it beside its elements.
        own = [status for status in same if status.job_id != job_id] or same
        if not own and job_id in self.by_id:
            own = [self.by_id[job_id]]
        return [(status.job_id, status) for status in own]

    def _lines(self, jobs: dict[str, JobStatus | None]) -> list[JobLine]:
        """Each job's line; ends that were not noted before are, each record written once."""
        runs = {job_id: self._run(job_id, status) for job_id, status in jobs.items()}
        # The components of a heterogeneous job have one run, and the first of them tells how it ended.
        first = {run.job_id: job_id for job_id in sorted(jobs, reverse=True) if (run := runs[job_id])}
        told = {run_id: (run, jobs[job_id]) for run_id, job_id in first.items() if (run := runs[job_id])}
        fresh = {run_id: (run, status) for run_id, (run, status) in told.items() if _is_news(run, status)}
        ends = dict(zip(fresh, record_outcomes(list(fresh.values())), strict=True))
        return [
            self._line(job_id, status, run := runs[job_id], ends.get(run.job_id) if run else None)
            for job_id, status in jobs.items()
        ]

    def _run(self, job_id: str, status: JobStatus | None) -> Run | None:
        """The files of a job: not those of another cluster's job that has the same id."""
        run = self._find(job_id)
        return None if run is not None and status is not None and not self._is_here(run) else run

    def _line(self, job_id: str, status: JobStatus | None, run: Run | None, end: Outcome | None) -> JobLine:
        name = run.name if run else status.name if status else ""
        if status is not None and (run is None or not status.state.finished):
            sentence, step = describe_wait(status, self.queue, self.now)
            return JobLine(job_id, name, status.state, sentence, step, status, run)
        if end is not None:
            if status is None and run is not None and not self._is_here(run):
                return self._elsewhere(run, end)
            failure = end.failure
            sentence = _blame(failure.rank, failure.host, failure.headline) if failure else end.sentence
            return JobLine(job_id, name, end.state, sentence, None, status, run)
        recorded = recorded_outcome(run) if run else None
        if recorded is None:
            return JobLine(job_id, name, JobState.UNKNOWN, explain_state(JobState.UNKNOWN), None, status, run)
        state = JobState(recorded.state) if recorded.state in JobState.__members__ else JobState.UNKNOWN
        first = recorded.first_failure
        own = launched.sentence(run, state) if run and run.is_launch else explain_state(state)
        sentence = _blame(first.rank, first.host, first.headline) if first else own.partition("\n")[0]
        return JobLine(job_id, name, state, sentence, None, status, run)

    def _elsewhere(self, run: Run, end: Outcome) -> JobLine:
        """A run of another cluster: its own files may tell how it ended."""
        other = describe_cluster(run.record, self.access) if run.record else ""
        sentence = end.sentence if end.state.finished else f"It was submitted to cluster {other}, not asked here."
        step = command_with_cluster(run.record, self.access, f"hpc-kit status {run.job_id}") if run.record else None
        step = None if end.state.finished else step
        return JobLine(run.job_id, run.name, end.state, sentence, step, None, run)


def _is_news(run: Run, status: JobStatus | None) -> bool:
    """Whether how it ended has to be found out: a requeued job may have ended in the same way before."""
    recorded = recorded_outcome(run)
    if recorded is None or status is None:
        return recorded is None and (status is None or status.state.finished)
    ended = status.end.isoformat() if status.end else None
    return status.state.finished and (str(status.state), ended) != (recorded.state, recorded.end)


def _blame(rank: int | None, host: str | None, headline: str) -> str:
    return headline if rank is None else f"rank {rank} on {host}: {headline}"
