"""Lists the states of jobs, from one squeue, one sacct and the run folders, however many jobs there are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.runs.cluster_match import command_with_cluster, describe_cluster
from hpc_kit.runs.history import History, read_history
from hpc_kit.runs.known_jobs import JobSelection, KnownJobs
from hpc_kit.runs.outcome import Outcome, record_outcomes, recorded_outcome
from hpc_kit.runs.progress import RunProgress, read_progress
from hpc_kit.runs.run_folders import Run, RunIndex
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.job_ids import base_id, sort_key
from hpc_kit.slurm.job_status import JobStatus
from hpc_kit.slurm.partitions import ListedPartition
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
    """A command that the user may run next."""

    status: JobStatus | None
    run: Run | None
    progress: RunProgress | None = None
    """Progress of a running job whose program reports it."""

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


def list_jobs(
    selection: JobSelection,
    index: RunIndex,
    client: SlurmClient,
    *,
    cluster: str | None = None,
    partitions: Sequence[ListedPartition] = (),
    require_slurm: bool = False,
) -> JobListing:
    """Return the states of the selected jobs, in their order, or of this user's queue and latest runs, newest first.

    Runs one squeue, and one sacct for all jobs that squeue does not know. The rest comes from the files of the runs.
    With `cluster`, the name of a cluster file, jobs of other clusters are not queried. `partitions` explain jobs that
    wait because of a limit.

    Raises:
        UnknownJob: Neither Slurm nor `runs` knows an id or a name.
        SlurmUnavailable: Slurm does not answer, and it is required or nothing is known about any job.
    """
    known = KnownJobs(selection, index, client, cluster)
    jobs, missing = _select_jobs(known)
    # A controller that does not answer may know the missing jobs.
    if known.unreachable is not None and (require_slurm or missing or not jobs):
        raise known.unreachable
    if missing and not selection.is_repeated:
        raise known.unknown_job_error(missing)
    unlisted = [each for run in known.recent if not known.owns_id(run) for each in _started_elements(run)]
    jobs += [_SelectedJob(run.job_id, None, run) for run in unlisted]
    lines = _make_lines(jobs, known, PendingQueue(known.queue, known.user, partitions))
    if selection.latest:
        lines.sort(key=lambda line: sort_key(line.job_id), reverse=True)
    others = {base_id(each.job_id) for each in known.other_jobs}
    return JobListing(lines, known.unreachable, len(others))


class _SelectedJob(NamedTuple):
    job_id: str
    status: JobStatus | None
    run: Run | None


def _select_jobs(known: KnownJobs) -> tuple[list[_SelectedJob], list[str]]:
    """Return the jobs of the selection in their order, and the ids and names of which nothing is known."""
    selection = known.selection
    jobs: list[_SelectedJob] = []
    missing: list[str] = []
    for job_id in selection.ids:
        found = _parts_of_job(job_id, known)
        jobs += found
        if not found:
            missing.append(job_id)
            # In a repeated listing, a job that Slurm has just forgotten stays, with an unknown state.
            jobs += [_SelectedJob(job_id, None, None)] if selection.is_repeated else []
    # Jobs of the queue, and recent runs that have left it, follow the named jobs.
    bases = known.base_ids()
    named = {base_id(job_id) for job_id in selection.ids}
    rest = [_with_runs(known.statuses(base), known) for base in bases if base not in named]
    rest += [_parts_of_job(run.job_id, known) for run in known.recent if run.job_id not in bases]
    jobs += sorted((job for parts in rest for job in parts), key=lambda job: sort_key(job.job_id), reverse=True)
    missing += [name for name in selection.names if not any(known.has_name(job.job_id, name) for job in jobs)]
    return list({job.job_id: job for job in jobs}.values()), missing


def _parts_of_job(job_id: str, known: KnownJobs) -> list[_SelectedJob]:
    """Return a job, or its elements or components, from Slurm or else from its run."""
    statuses, run = known.statuses(job_id), known.find_run(job_id)
    if statuses or run is None:
        return _with_runs(statuses, known)
    return [_SelectedJob(each.job_id, None, known.find_run(each.job_id)) for each in _started_elements(run)]


def _with_runs(statuses: Iterable[JobStatus], known: KnownJobs) -> list[_SelectedJob]:
    """Return jobs of Slurm with their runs, unless a run is that of another cluster's job with the same id."""
    jobs = []
    for status in statuses:
        run = known.find_run(status.job_id)
        jobs.append(_SelectedJob(status.job_id, status, run if run is not None and known.is_here(run) else None))
    return jobs


def _make_lines(jobs: Sequence[_SelectedJob], known: KnownJobs, queue: PendingQueue) -> list[JobLine]:
    """Return the lines, and record new outcomes."""
    # The components of a heterogeneous job share one run; the status of the first decides its outcome.
    by_id = sorted(jobs, key=lambda job: job.job_id, reverse=True)
    by_run = {job.run.folder: (job.run, job.status) for job in by_id if job.run}
    fresh = {folder: each for folder, each in by_run.items() if _needs_outcome(*each)}
    outcomes = dict(zip(fresh, record_outcomes(list(fresh.values())), strict=True))
    return [_make_line(job, outcomes.get(job.run.folder) if job.run else None, known, queue) for job in jobs]


def _make_line(job: _SelectedJob, outcome: Outcome | None, known: KnownJobs, queue: PendingQueue) -> JobLine:
    job_id, status, run = job
    name = run.name if run else status.name if status else ""
    if status is not None and (run is None or not status.state.finished):
        return _make_queued_line(job, status, name, known, queue)
    if outcome is not None:
        if status is None and run is not None and not known.is_here(run):
            return _make_foreign_line(run, outcome, known.client)
        failure = outcome.failure
        sentence = failure.headline if failure else outcome.sentence
        return JobLine(job_id, name, outcome.state, sentence, None, status, run)
    recorded = recorded_outcome(run) if run else None
    if run is None or recorded is None:
        return JobLine(job_id, name, JobState.UNKNOWN, explain_state(JobState.UNKNOWN), None, status, run)
    state, first = parse_state(recorded.state), recorded.first_failure
    sentence = first.headline if first else run.backend.describe_end(run, state).partition("\n")[0]
    return JobLine(job_id, name, state, sentence, None, status, run)


def _make_queued_line(
    job: _SelectedJob, status: JobStatus, name: str, known: KnownJobs, queue: PendingQueue
) -> JobLine:
    """Return the line of a job that waits or runs, or of one without a run."""
    run = job.run
    now = dt.datetime.now()  # noqa: DTZ005 - Slurm's times have no zone either
    sentence, step = describe_wait(status, queue, now)
    step = known.client.typed_command(step)
    progress = read_progress(run) if run is not None and status.state is JobState.RUNNING else None
    if progress is not None:
        sentence = f"{progress.describe(remaining_seconds(status))}; {sentence}"
        step = f"hpc-kit stacks {run.job_id}" if progress.stall and run is not None else step
    return JobLine(job.job_id, name, status.state, sentence, step, status, run, progress)


def _make_foreign_line(run: Run, outcome: Outcome, client: SlurmClient) -> JobLine:
    """Return the line of a run of another cluster. Only its files may show its outcome."""
    if outcome.state.finished or run.record is None:
        return JobLine(run.job_id, run.name, outcome.state, outcome.sentence, None, None, run)
    sentence = f"It was submitted to cluster {describe_cluster(run.record, client)}, which was not queried."
    step = command_with_cluster(run.record, client, f"hpc-kit status {run.job_id}")
    return JobLine(run.job_id, run.name, outcome.state, sentence, step, None, run)


def _started_elements(run: Run) -> list[Run]:
    """Return the elements of an array that have started, or else the run itself."""
    return [each for each in run.elements() if each.folder.is_dir()] or [run]


def _needs_outcome(run: Run, status: JobStatus | None) -> bool:
    """Return whether the outcome must be read: it is not recorded, or a requeued job ended again."""
    recorded = recorded_outcome(run)
    if recorded is None or status is None:
        return recorded is None and (status is None or status.state.finished)
    ended = status.end.isoformat() if status.end else None
    return status.state.finished and (str(status.state), ended) != (recorded.state, recorded.end)
