"""The outcome of a run: from Slurm, else from its record, else from the files that the job wrote."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hpc_kit.errors import RecordError
from hpc_kit.run_files import RECORD
from hpc_kit.runs.cluster_match import is_same_job
from hpc_kit.runs.first_failure import RankFailure, find_failure
from hpc_kit.runs.record import RecordedFailure, RecordedOutcome, add_outcomes
from hpc_kit.runs.run_folders import Run, open_run
from hpc_kit.slurm.job_ids import array_index
from hpc_kit.slurm.job_status import JobStatus
from hpc_kit.slurm.states import ENDED_BY_SLURM, JobState, explain_state, parse_state


class Outcome(NamedTuple):
    """The end of one job."""

    job_id: str
    name: str
    state: JobState
    sentence: str
    """An explanation of the state."""

    exit_status: int
    """Exit status of `hpc-kit`: the job's own, 128 + signal, or 1 if Slurm ended the job."""

    failure: RankFailure | None
    summary: dict[str, object]
    run: Path
    """The run folder with rank logs and markers."""

    batch_log: Path | None
    """None: the job has no batch script."""

    record: Path | None


def read_outcome(run: Run, status: JobStatus | None) -> Outcome:
    """Return the outcome of a run.

    `status` is None if the scheduler does not know the job.
    """
    status = matching_status(run, status)
    state = read_state(run, status)
    path = run.array_folder / RECORD
    return Outcome(
        job_id=run.job_id,
        name=run.name,
        state=state,
        sentence=_explain_end(run, state, status) if status else run.backend.describe_end(run, state, from_files=True),
        exit_status=_exit_status(run, state, status),
        failure=find_failure(run, status, state),
        summary=run.summary(),
        run=run.folder,
        batch_log=run.batch_log if run.backend.has_batch_script else None,
        record=path if path.is_file() else None,
    )


_CHAIN_BROKEN = "Slurm removed it from the queue, because a job that it waited for did not end as required"


def _explain_end(run: Run, state: JobState, status: JobStatus) -> str:
    if state is JobState.CANCELLED and has_broken_chain(run, status):
        awaited = run.record.resolved.job.resources.dependency if run.record else None
        return _CHAIN_BROKEN + (f" ({awaited})." if awaited else ".")
    return explain_state(state)


def has_broken_chain(run: Run, status: JobStatus | None) -> bool:
    """Return whether a job never starts because of its dependency. With --kill-on-invalid-dep, Slurm cancels it."""
    if status is not None and status.reason == "DependencyNeverSatisfied":
        return True
    recorded = recorded_outcome(run)
    return recorded is not None and (recorded.problem or "").startswith(_CHAIN_BROKEN)


def read_state(run: Run, status: JobStatus | None) -> JobState:
    """Return the scheduler's state, else the recorded state, else the state that the job's files show."""
    status = matching_status(run, status)
    if status is not None and status.state is not JobState.UNKNOWN:
        return status.state
    if recorded := recorded_outcome(run):
        return parse_state(recorded.state)
    return run.backend.state_from_files(run)


def matching_status(run: Run, status: JobStatus | None) -> JobStatus | None:
    """Return the status if it describes this run, and not another job with the same id."""
    return status if status is not None and is_same_job(run, status) else None


def record_outcome(run: Run, status: JobStatus | None) -> Outcome:
    """Return the outcome of a run and add it to its record. If that fails, the next call writes it.

    The outcome of a job that still runs describes its present state, and is not written.
    """
    return record_outcomes([(open_run(run.folder), status)])[0]


def record_outcomes(jobs: Iterable[tuple[Run, JobStatus | None]]) -> list[Outcome]:
    """Like `record_outcome` for many jobs. Each record is written once, however many elements of its array ended."""
    outcomes: list[Outcome] = []
    additions: dict[Path, dict[str | None, RecordedOutcome]] = {}
    for job, job_status in jobs:
        # An outcome may have been recorded since the record was read.
        run = open_run(job.folder) if job.backend.records_outcome else job
        status = matching_status(run, job_status)
        outcome = read_outcome(run, status)
        outcomes.append(outcome)
        if outcome.state.finished and (status is not None or recorded_outcome(run) is None):
            additions.setdefault(run.array_folder, {})[array_index(run.job_id) or None] = _to_record(outcome, status)
    for folder, recorded in additions.items():
        # A full disk, or another user's run: the next query tries again.
        with suppress(RecordError):
            add_outcomes(folder, recorded)
    return outcomes


def _to_record(outcome: Outcome, status: JobStatus | None) -> RecordedOutcome:
    failure = outcome.failure
    first = failure and RecordedFailure(
        rank=failure.rank, host=failure.host, exit_code=failure.exit_code, headline=failure.headline
    )
    return RecordedOutcome(
        state=str(outcome.state),
        exit_status=outcome.exit_status,
        start=status.start.isoformat() if status and status.start else None,
        end=status.end.isoformat() if status and status.end else None,
        nodes=status.nodelist if status else "",
        first_failure=first,
        problem=outcome.sentence if outcome.state is JobState.CANCELLED and failure is None else None,
    )


def recorded_outcome(run: Run) -> RecordedOutcome | None:
    """Return the outcome in the record."""
    if run.record is None:
        return None
    index = array_index(run.job_id)
    return run.record.elements.get(index) if index else run.record.end


def _exit_status(run: Run, state: JobState, status: JobStatus | None) -> int:
    if state is JobState.COMPLETED:
        return 0
    recorded = recorded_outcome(run) if status is None else None
    # The exit code of a job that Slurm ended depends on the command: 0:15 by scontrol, 0:0 by sacct.
    if state in ENDED_BY_SLURM:
        return recorded.exit_status or 1 if recorded is not None else 1
    marker = run.end_marker()
    if state is JobState.FAILED and marker and marker.exit_code:
        # The accounting shows exit code 137 of a killed program as signal 9.
        return marker.exit_code
    if status is not None:
        if status.exit_code:
            return status.exit_code
        if status.signal:
            return 128 + status.signal
    # A job that did not complete never has exit status 0.
    return recorded.exit_status or 1 if recorded is not None else 1
