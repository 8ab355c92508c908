"""How a job ended: from Slurm where it still knows, from the job's own files where it does not."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import RecordError
from hpc_kit.run_files import RECORD
from hpc_kit.runs import launched, record
from hpc_kit.runs.cluster_match import is_same_job
from hpc_kit.runs.first_failure import ENDED_FROM_OUTSIDE, RankFailure, find_failure
from hpc_kit.runs.record import RecordedFailure, RecordedOutcome
from hpc_kit.runs.run_folders import open_run
from hpc_kit.slurm.job_ids import array_index
from hpc_kit.slurm.states import JobState, explain_state

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.job_status import JobStatus


class Outcome(NamedTuple):
    """The end of one job."""

    job_id: str
    name: str
    state: JobState
    sentence: str
    """The state, in plain words."""

    exit_status: int
    """What `hpc-kit` ends with: the job's own code, 128 + signal, 1 where it was ended from outside."""

    failure: RankFailure | None
    summary: dict[str, object]
    run: Path
    """The run folder: rank logs, markers."""

    batch_log: Path | None
    """None: there is no batch script."""

    record: Path | None


def read_outcome(run: Run, status: JobStatus | None) -> Outcome:
    """The end of a job.

    Args:
        run: Its files.
        status: What Slurm says of it, if it still does.
    """
    status = matching_status(run, status)
    state = read_state(run, status)
    failed = state is not JobState.COMPLETED
    path = run.array_folder / RECORD
    return Outcome(
        job_id=run.job_id,
        name=run.name,
        state=state,
        sentence=launched.sentence(run, state) if run.is_launch and status is None else _sentence(state, status),
        exit_status=_exit_status(run, state, status),
        failure=find_failure(run, status) if failed else None,
        summary=run.summary(),
        run=run.folder,
        batch_log=None if run.is_launch else run.batch_log,
        record=path if path.is_file() else None,
    )


def read_state(run: Run, status: JobStatus | None) -> JobState:
    """Slurm's state; else the one that an earlier look has recorded; else what the script's own mark says."""
    status = matching_status(run, status)
    if status is not None and status.state is not JobState.UNKNOWN:
        return status.state
    if recorded := recorded_outcome(run):
        return JobState(recorded.state) if recorded.state in JobState.__members__ else JobState.UNKNOWN
    if run.is_launch:
        return launched.end_state(run)
    end = run.end_marker()
    if end is None:
        return JobState.UNKNOWN
    return JobState.FAILED if end.exit_code else JobState.COMPLETED


def matching_status(run: Run, status: JobStatus | None) -> JobStatus | None:
    """What Slurm says, where it speaks of this run."""
    return status if status is not None and is_same_job(run, status) else None


def record_outcome(run: Run, status: JobStatus | None) -> Outcome:
    """How a job ended, also written into its record; where that is not possible, the next look writes it.

    Of a job that Slurm still takes for running it is how far it has come, and nothing is written.
    """
    return record_outcomes([(open_run(run.folder), status)])[0]


def record_outcomes(jobs: Iterable[tuple[Run, JobStatus | None]]) -> list[Outcome]:
    """As `end_of` for many; each record is written once, however many elements of its array have ended."""
    found: list[Outcome] = []
    news: dict[Path, dict[str | None, RecordedOutcome]] = {}
    for each, told in jobs:
        # A launcher writes its own end, perhaps since the record was read.
        run = open_run(each.folder) if each.is_launch else each
        status = matching_status(run, told)
        end = read_outcome(run, status)
        found.append(end)
        if end.state.finished and (status is not None or recorded_outcome(run) is None):
            news.setdefault(run.array_folder, {})[array_index(run.job_id) or None] = _told(end, status)
    for folder, ends in news.items():
        with suppress(RecordError):
            record.add_outcomes(folder, ends)
    return found


def _told(end: Outcome, status: JobStatus | None) -> RecordedOutcome:
    failure = end.failure
    first = failure and RecordedFailure(
        rank=failure.rank, host=failure.host, exit_code=failure.exit_code, headline=failure.headline
    )
    return RecordedOutcome(
        state=str(end.state),
        exit_status=end.exit_status,
        start=status.start.isoformat() if status and status.start else None,
        end=status.end.isoformat() if status and status.end else None,
        nodes=status.nodelist if status else "",
        first_failure=first,
    )


def recorded_outcome(run: Run) -> RecordedOutcome | None:
    """How it ended, as an earlier look has written it into the record."""
    if run.record is None:
        return None
    index = array_index(run.job_id)
    return run.record.elements.get(index) if index else run.record.end


def _sentence(state: JobState, status: JobStatus | None) -> str:
    if state is JobState.UNKNOWN and status is None:
        return "Slurm no longer knows it, and its script did not reach its end."
    if status is None:
        return f"{explain_state(state)} Slurm no longer knows it: this is what its own files say."
    return explain_state(state)


def _exit_status(run: Run, state: JobState, status: JobStatus | None) -> int:
    if state is JobState.COMPLETED:
        return 0
    # What its processes ended with then tells how they were ended: 0:15 by scontrol, 0:0 by sacct.
    if state in ENDED_FROM_OUTSIDE:
        return 1
    end = run.end_marker()
    if state is JobState.FAILED and end and end.exit_code:
        # The accounting knows the code of a killed program, 137, as 9.
        return end.exit_code
    if status is not None:
        if status.exit_code:
            return status.exit_code
        if status.signal:
            return 128 + status.signal
    recorded = recorded_outcome(run)
    return recorded.exit_status or 1 if status is None and recorded is not None else 1
