"""The files and the state of a run of ours, for the same decision as any other log."""

from __future__ import annotations

import datetime as dt
import os
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_kit.run_files import FIRST_FAILURE, UNKNOWN_HOST, read_first_failure
from hpc_kit.runs.progress import read_progress, read_rank_hosts
from hpc_kit.runs.why.decision import decide
from hpc_kit.runs.why.evidence import LINE, SYSTEM, Event, Evidence, TaskEnd, signal_text, specify_exit_code
from hpc_kit.runs.why.log_collector import add_file
from hpc_kit.runs.why.log_reader import Line, LogFile, seconds_of_year
from hpc_kit.runs.why.rules import Match, rule_named
from hpc_kit.runs.why.slurm_tables import JobRow
from hpc_kit.runs.why.verdicts import UNKNOWN, Verdict, proof_of
from hpc_kit.slurm.nodelist import expand, fold
from hpc_kit.slurm.states import ENDED_BY_SLURM, JobState
from hpc_kit.slurm.versions import LOGLESS_JOBS_VANISH, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hpc_kit.run_files import FirstFailure
    from hpc_kit.runs.record import RecordedResources
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.job_status import JobStatus

MAX_RANKS = 4096
MIN_BYTES = 1 << 16
"""Bytes that are read at least of the end of each log."""


def explain_run(run: Run, status: JobStatus | None, state: JobState, max_bytes: int = 0) -> Verdict:
    """Return the cause of the failure of a run.

    Args:
        run: The run.
        status: The scheduler's status of the job; None: its files and its record decide.
        state: The state of the job.
        max_bytes: Bytes of logs to read. Of larger logs, only the ends are read; 0: read everything.
    """
    evidence = Evidence()
    logs = list(_logs(run))
    sizes = {path: path.stat().st_size for path, _ in logs}
    share = max(max_bytes // max(len(logs), 1), MIN_BYTES) if max_bytes and sum(sizes.values()) > max_bytes else 0
    for path, rank in logs:
        # The cause is near the end of a log.
        skip = max(sizes[path] - share, 0) if share else 0
        add_file(evidence, LogFile(path, str(path), rank, skip=skip))
        # Only messages of srun, in the log of the batch script, count tasks. Logs of ranks come later.
        if path in run.batch_logs():
            _number_ranks(evidence, run.ranks_per_task)
    add_first_failure(run.folder, evidence)
    evidence.hosts = read_rank_hosts(run.folder) | evidence.hosts
    evidence.rows.append(_row(run, status, state))
    verdict = decide(evidence)
    if state is JobState.RUNNING and verdict.cause.startswith("did not fail"):
        verdict = _add_stall(run, evidence, verdict)
    if verdict.class_ == UNKNOWN:
        verdict = _explain_silence(run, verdict)
    if verdict.class_ == "launch-failure" and verdict.host:
        verdict = _exclude_broken_nodes(run, evidence, verdict)
    if verdict.class_ == "log-folder" and "/" not in verdict.cause:
        verdict = replace(verdict, cause=f"{verdict.cause}: {run.batch_log}")
    return replace(verdict, fix=verdict.fix.replace("-j ID", f"-j {run.job_id}"))


def dependencies_of(run: Run) -> list[str]:
    """Return the ids of the jobs that a job waits for."""
    option = (run.record.resolved.job.resources.dependency if run.record else None) or ""
    # The number of minutes behind a plus is no id.
    return re.findall(r"(?<![+\d_])\d+(?:_\d+)?", option)


def name_failed_dependency(verdict: Verdict, run: Run, before: Sequence[tuple[Run, JobState, Verdict]]) -> Verdict:
    """Return the answer about a job that never started, because a job before it did not end as required.

    Args:
        verdict: The answer about the job alone.
        run: The job.
        before: The jobs that it waits for, their states, and the answers about them.
    """
    failed = [each for each in before if each[1].failed or each[1] is JobState.CANCELLED]
    if not failed:
        return replace(verdict, class_="dependency", fix=f"see which of the jobs failed: {_command_of_jobs(run)}")
    reasons = [
        found.cause if found.class_ == "dependency" else f"job {each.job_id} ({each.name}) is {state}: {found.cause}"
        for each, state, found in failed
    ]
    first, _, cause = failed[0]
    again = f"; then submit the chain again from job {first.job_id} ({first.name}) on"
    return replace(
        cause,
        cause=f"job {run.job_id} never started, because of its dependency: {'; '.join(reasons)}",
        class_="dependency",
        rank=None,
        ranks=[],
        host=None,
        fix=cause.fix if cause.class_ == "dependency" else cause.fix + again,
    )


def _command_of_jobs(run: Run) -> str:
    return f"sacct -j {','.join(dependencies_of(run)) or 'ID'} -o JobID,State,ExitCode"


def _logs(run: Run) -> Iterator[tuple[Path, int | None]]:
    """Yield the logs of a run, with the rank that writes to each."""
    seen: set[Path] = set()
    pairs: list[tuple[Path, int | None]] = [(path, None) for path in run.batch_logs()]
    marker = read_first_failure(run.folder)
    for rank in dict.fromkeys([*run.ranks()[:MAX_RANKS], *([marker.rank] if marker else [])]):
        # An agent of torchrun writes for all its ranks.
        *own, agent = run.rank_logs(rank)
        pairs += [*((path, rank) for path in own), (agent, None)]
    for path, writer in pairs:
        if path not in seen and path.is_file():
            seen.add(path)
            yield path, writer


def _number_ranks(evidence: Evidence, ranks_per_task: int) -> None:
    """Replace the numbers of srun's tasks by the first ranks that the tasks start."""
    if ranks_per_task == 1:
        return
    evidence.ends = [end._replace(ranks=tuple(task * ranks_per_task for task in end.ranks)) for end in evidence.ends]
    evidence.hosts = {task * ranks_per_task: host for task, host in evidence.hosts.items()}
    evidence.ranks = {task * ranks_per_task for task in evidence.ranks}
    for event in evidence.events:
        if event.rank is not None and "task" in event.groups:
            event.rank *= ranks_per_task


def _add_stall(run: Run, evidence: Evidence, verdict: Verdict) -> Verdict:
    """Add what the watchdog has said about a running job, if no step has ended since."""
    progress = read_progress(run)
    if progress is None or progress.stall is None:
        return verdict
    named = [event for event in evidence.events if event.rule.name == "awaited-rank"]
    late = named[-1] if named else None
    return replace(
        verdict,
        cause=f"{verdict.cause}, but {progress.stall}",
        class_="late-rank" if late else verdict.class_,
        rank=late.rank if late else None,
        host=late.host if late else None,
        evidence=[*verdict.evidence, *([proof_of(late.line)] if late else [])],
        fix=f"read the stacks: hpc-kit stacks {run.job_id}; if it does not go on: hpc-kit cancel {run.job_id}",
    )


def _explain_silence(run: Run, verdict: Verdict) -> Verdict:
    """Return the disk or the missing log as the cause, if no message could be written. Else, `verdict`."""
    log = next((path for path in run.batch_logs() if path.is_file()), None)
    if log is not None and is_disk_full(log):
        cause = f"no message could be written: the disk of {log.parent} is full"
        fix = f"free space there (df -h {shlex.quote(str(log.parent))}), and submit again"
        return replace(verdict, cause=cause, class_="disk-full", fix=fix)
    if log is None and run.backend.has_batch_script and verdict.rank is None:
        version = run.record.slurm_version if run.record else None
        silent = LOGLESS_JOBS_VANISH.holds(parse_version(version) if version else None) is not False
        why = f" (Slurm {LOGLESS_JOBS_VANISH.releases} gives no reason if it cannot open a log)" if silent else ""
        fix = "check on the node that the folder exists and that you may write to it"
        return replace(verdict, cause=f"unknown: its log was never written: {run.batch_log}{why}", fix=fix)
    return verdict


def is_disk_full(path: Path) -> bool:
    """Return whether a disk has no room for one more block. The reserve of root does not count."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    return disk.f_bavail == 0


def _exclude_broken_nodes(run: Run, evidence: Evidence, verdict: Verdict) -> Verdict:
    """Return the verdict with the command that submits the job again without the nodes that could not launch tasks."""
    words = run.record.command_line if run.record else []
    excluded = (run.record.resolved.job.resources.exclude if run.record else None) or ""
    earlier = expand(excluded) if "/" not in excluded else []  # with a slash, it is the path of a file
    broken = [event.host for event in evidence.events if event.rule.class_ == "launch-failure" and event.host]
    option = f"--exclude={fold(dict.fromkeys([*earlier, *broken]))}"
    end = words.index("--") if "--" in words else len(words)
    again = shlex.join([*words[:end], option, *words[end:]])
    return replace(verdict, fix=f"submit again without it: {again}")


def add_first_failure(folder: Path, evidence: Evidence) -> None:
    """Add the record of the rank that failed first, from a run folder."""
    marker = read_first_failure(folder)
    if marker is None or marker.exit_code == 0:
        return
    host = None if marker.host == UNKNOWN_HOST else marker.host
    if marker.reason:
        _add_awaited_rank(folder, marker, host, evidence)
        return
    text = f"rank {marker.rank} exited with code {marker.exit_code}"
    line = _marker_line(folder, marker, host, text)
    attempt = evidence.attempts - 1
    match = specify_exit_code(Match(rule_named("exit-code"), {"code": str(marker.exit_code)}))
    evidence.events.append(
        Event(match.rule, match.groups, line, marker.rank, host, attempt, len(evidence.events), LINE)
    )
    signal = signal_text(marker.exit_code)
    evidence.ends.append(
        TaskEnd((marker.rank,), host, marker.exit_code, signal, line, attempt, line.time, is_recorded_first=True)
    )
    _add_rank(evidence, marker.rank, host)


def _add_awaited_rank(folder: Path, marker: FirstFailure, host: str | None, evidence: Evidence) -> None:
    """Add a rank for which other ranks waited in vain. It has no exit code of its own."""
    line = _marker_line(folder, marker, host, f"hpc-kit: rank {marker.rank} was awaited: {marker.reason}")
    match = Match(rule_named("awaited-rank"), {"rank": str(marker.rank), "reason": marker.reason})
    attempt = evidence.attempts - 1
    # Order -1: the ranks that waited report their errors later.
    evidence.events.append(Event(match.rule, match.groups, line, marker.rank, host, attempt, -1, SYSTEM))
    _add_rank(evidence, marker.rank, host)


def _marker_line(folder: Path, marker: FirstFailure, host: str | None, text: str) -> Line:
    time = seconds_of_year(dt.datetime.fromtimestamp(marker.time))  # noqa: DTZ006 - as Slurm prints it, local
    return Line(str(folder / FIRST_FAILURE), 1, text, text, marker.rank, host, time)


def _add_rank(evidence: Evidence, rank: int, host: str | None) -> None:
    evidence.ranks.add(rank)
    if host:
        evidence.hosts[rank] = host


def _requested_memory(resources: RecordedResources) -> str:
    """Return the memory as sacct shows it: of the node, or with a `c` of one CPU. Numbers are MiB."""
    memory = resources.mem or resources.mem_per_cpu
    text = f"{memory}M" if str(memory).isdigit() else str(memory or "")
    return text if resources.mem or not memory else f"{text}c"


def _row(run: Run, status: JobStatus | None, state: JobState) -> JobRow:
    nodes = status.nodelist if status else ""
    text = f"job {run.job_id}: {state}" + (f", exit code {status.exit_code}" if status and status.exit_code else "")
    time = seconds_of_year(status.end) if status and status.end and state in ENDED_BY_SLURM else None
    line = Line("slurm", 1, text, text, None, None, time)
    row = JobRow(run.job_id, state, str(state), line, nodes=nodes)
    if status is not None:
        row.reason, row.exit_code, row.signal = status.reason or "", status.exit_code, status.signal
        row.raw_state, row.user = status.raw_state, status.user
    if run.record is not None:
        row.req_mem = _requested_memory(run.record.resolved.job.resources)
    if state is JobState.UNKNOWN:
        # Without a state there is nothing to quote.
        row.line = None
    return row
