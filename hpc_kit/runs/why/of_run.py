"""The files and the state of a run of ours, for the same decision as any other log."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_kit.run_files import FIRST_FAILURE, read_first_failure
from hpc_kit.runs.first_failure import is_disk_full
from hpc_kit.runs.outcome import read_state
from hpc_kit.runs.why.decision import UNKNOWN, Verdict, decide
from hpc_kit.runs.why.events import Evidence, TaskEnd
from hpc_kit.runs.why.reading import Line, LogFile
from hpc_kit.runs.why.slurm_tables import JobRow
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from pathlib import Path

    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.job_status import JobStatus

MAX_RANKS = 4096


def explain_run(run: Run, status: JobStatus | None) -> Verdict:
    """Return the cause of the failure of a run.

    Args:
        run: The run.
        status: The scheduler's status of the job; None: its files and its record decide.
    """
    evidence = Evidence()
    seen: set[Path] = set()

    def read(path: Path, rank: int | None = None) -> None:
        if path.is_file() and path not in seen:
            seen.add(path)
            evidence.add_file(LogFile(path, str(path), rank))

    for path in run.batch_logs():
        read(path)
    for rank in run.ranks()[:MAX_RANKS]:
        for path in run.rank_logs(rank)[:-1]:
            read(path, rank)
        read(run.rank_logs(rank)[-1])
    add_first_failure(run.folder, evidence)
    evidence.add_row(_row(run, status))
    verdict = decide(evidence)
    if verdict.class_ == UNKNOWN:
        verdict = _explain_full_disk(run, verdict)
    return replace(verdict, fix=verdict.fix.replace("-j ID", f"-j {run.job_id}"))


def _explain_full_disk(run: Run, verdict: Verdict) -> Verdict:
    """Return the full disk of the logs as the cause: no message about it could be written. Else, `verdict`."""
    log = next((path for path in run.batch_logs() if is_disk_full(path)), None)
    if log is None:
        return verdict
    return replace(
        verdict,
        cause=f"no message could be written: the disk of {log.parent} is full",
        class_="disk-full",
        fix=f"free space there (df -h {shlex.quote(str(log.parent))}), and submit again",
    )


def add_first_failure(folder: Path, evidence: Evidence) -> None:
    """Add the record of the rank that failed first, from a run folder."""
    marker = read_first_failure(folder)
    if marker is None or marker.exit_code == 0:
        return
    text = marker.reason or f"rank {marker.rank} on {marker.host} ended with exit code {marker.exit_code}"
    line = Line(str(folder / FIRST_FAILURE), 1, text, text, marker.rank, marker.host, None)
    evidence.ends.insert(
        0, TaskEnd((marker.rank,), marker.host, marker.exit_code, None, line, evidence.attempts - 1, -1.0)
    )
    evidence.hosts[marker.rank] = marker.host
    evidence.ranks.add(marker.rank)


def _row(run: Run, status: JobStatus | None) -> JobRow:
    state = read_state(run, status)
    nodes = status.nodelist if status else ""
    text = f"job {run.job_id}: {state}" + (f", exit code {status.exit_code}" if status and status.exit_code else "")
    line = Line("slurm", 1, text, text, None, None, None)
    row = JobRow(run.job_id, state, str(state), line, nodes=nodes)
    if status is not None:
        row.reason, row.exit_code, row.signal = status.reason or "", status.exit_code, status.signal
        row.raw_state = status.raw_state
    if state is JobState.UNKNOWN:
        row.line = None
    return row
