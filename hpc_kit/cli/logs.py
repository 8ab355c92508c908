"""`hpc-kit logs`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from hpc_kit.cli.options import CLUSTER_OPTION, RUNS_OPTION, Session, complete_run
from hpc_kit.cli.outcomes import follow_run, outcome_json, print_array_outcome, print_outcome
from hpc_kit.cli.output import print_line, print_next_steps, short_path
from hpc_kit.cli.run_lookup import client_of_run, find_run
from hpc_kit.cli.terminal import PIPE_CLOSED, READER_GONE, echo
from hpc_kit.errors import SlurmUnavailable, SpecError, UnknownJob, explain_file_errors
from hpc_kit.runs.backend import query_runs
from hpc_kit.runs.cluster_match import cluster_option, describe_cluster, unknown_here
from hpc_kit.runs.logs import LogFollower, decode_line
from hpc_kit.runs.outcome import record_outcome, record_outcomes
from hpc_kit.runs.run_folders import Run
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.job_status import JobStatus
from hpc_kit.slurm.states import JobState

JSON_BYTES = 16 << 20
"""Bytes of each log in the document of --json."""

_CHUNK = 1 << 16


@click.command("logs")
@click.argument("word", required=False, metavar="[JOB|ID]", shell_complete=complete_run)
@click.option("-f", "--follow", is_flag=True, help="Follow the job to its end; the exit status is the job's own.")
@click.option("--rank", type=click.IntRange(min=0), default=None, metavar="N", help="Rank to print [default: 0].")
@click.option("--all", "every", is_flag=True, help="All ranks, each line prefixed with its rank.")
@click.option("--batch", is_flag=True, help="The output of the batch script and of srun.")
@CLUSTER_OPTION
@RUNS_OPTION
@click.option("--json", "as_json", is_flag=True, help="A JSON document; with -f a JSON object a line.")
def command(
    word: str | None, follow: bool, rank: int | None, every: bool, batch: bool, cluster: str | None, as_json: bool
) -> int:
    """Print the output of a job and its outcome. For a failed job, print the traceback of the rank that failed first.

    JOB means the latest run of that name. Without JOB, the latest run is printed.

    Exit status: 0 printed; with -f that of the job; 1 no such job or log; 2 wrong use; 130 Ctrl-C with -f; 141 with -f,
    the reader of the output has closed the pipe.
    """
    run, session = find_run(word, cluster)
    _check_log_options(run, rank, every=every, batch=batch)
    client = client_of_run(run, session)
    if client is None and run.record is not None:
        if follow:
            raise unknown_here(run, run.record, session.cluster.name, session.client, f"hpc-kit logs {run.job_id} -f")
        # The printed next commands must name the cluster of the run.
        click.get_current_context().params["cluster"] = cluster_option(run.record)
    if follow and client is not None:
        session.check_answers()
        click.get_current_context().meta[READER_GONE] = PIPE_CLOSED
        return follow_run(run, client, ranks=None if every else (rank or 0,), as_json=as_json)
    if as_json:
        elements = run.elements()
        jobs = elements or [run]
        ranks = [] if batch else run.ranks() if every else [rank or 0]
        statuses = query_statuses(jobs, client)
        documents = [_run_json(job, ranks, status) for job, status in zip(jobs, statuses, strict=True)]
        echo(json.dumps(documents if elements else documents[0], indent=2))
        return 0
    _print_text(run, client, session, rank=rank, every=every, batch=batch)
    return 0


def _print_text(
    run: Run, client: SlurmClient | None, session: Session, *, rank: int | None, every: bool, batch: bool
) -> None:
    """Print the logs and the outcome of a job, or of all elements of an array."""
    elements = run.elements()
    jobs = elements or [run]
    # One query for the whole output: each is work for the controller of a shared cluster.
    statuses = query_statuses(jobs, client)
    was_cancelled_in_queue = False
    if not elements and not run.batch_log.exists() and run.backend.has_batch_script:
        check_started(run, statuses[0])
        has_ended = statuses[0] is not None and statuses[0].state.finished
        was_cancelled_in_queue = has_ended and not any(run.rank_log(each).exists() for each in run.ranks())
    for job in jobs if not was_cancelled_in_queue else []:
        log = job.batch_log if batch else job.rank_log(rank or 0)
        if rank is None and not log.exists() and job.end_marker() is not None and job.backend.has_batch_script:
            log = job.batch_log  # the job ended before a rank started
        if elements:
            print_line(job.job_id, short_path(job.folder))
        if every:
            _print_all_ranks(job)
        elif log.exists() or not elements:
            _print_log(log)
    _print_end(run, elements, statuses, client, session)


def check_started(run: Run, status: JobStatus | None) -> None:
    """Raise if a job waits in the queue."""
    if status is not None and status.state is JobState.PENDING:
        reason = f" ({status.reason})" if status.reason else ""
        raise UnknownJob(
            f"job {run.job_id} has not started", found=f"PENDING{reason}", remedy=f"hpc-kit status {run.job_id}"
        )


def _check_log_options(run: Run, rank: int | None, *, every: bool, batch: bool) -> None:
    if sum((rank is not None, every, batch)) > 1:
        raise SpecError("--rank, --all and --batch exclude one another", remedy="keep one of them")
    if batch and not run.backend.has_batch_script:
        raise UnknownJob(
            f"{run.job_id} is a launch over ssh: it has no batch script", remedy="write --all, or --rank N"
        )
    if rank is not None and run.record is not None and rank >= run.record.resolved.world_size:
        last = run.record.resolved.world_size - 1
        raise UnknownJob(
            f"job {run.job_id} has no rank {rank}",
            found=f"its ranks are 0 to {last}" if last else "its only rank is 0",
            remedy=f"hpc-kit logs {run.job_id} --all",
        )


def query_statuses(jobs: list[Run], client: SlurmClient | None) -> list[JobStatus | None]:
    """Query the statuses. None for a job that only its own files describe."""
    statuses: dict[str, JobStatus] = {}
    try:
        statuses = query_runs(jobs, client) if client is not None else {}
    except SlurmUnavailable as error:
        echo(f"hpc-kit: {error.what}: what follows comes from the job's own files", err=True)
    return [statuses.get(job.job_id) for job in jobs]


def _print_log(log: Path) -> None:
    """Print a log in chunks. A log may be larger than memory."""
    last = ""
    for last in _read_chunks(log):
        echo(last, nl=False)
    if not last.endswith("\n"):
        echo()


def _read_chunks(log: Path) -> Iterator[str]:
    what = f"there is no {short_path(log)}"
    remedy = "see whether the job has started: hpc-kit status; --batch prints the output of its script"
    failed = explain_file_errors(UnknownJob, what, remedy)
    with failed, log.open(encoding="utf-8", errors="replace", newline="") as file:
        # Whole lines, so that no escape sequence is cut in two. A line may be longer than memory.
        while text := file.read(_CHUNK) + file.readline(_CHUNK):
            yield text


def _print_all_ranks(run: Run) -> None:
    """Print the logs rank by rank. Their lines have no time stamps to sort by."""
    for rank in run.ranks():
        for text in LogFollower(run.rank_log(rank)).read(end=True):
            echo(f"{rank:>4}: {text}")


def _print_end(
    run: Run, elements: list[Run], statuses: list[JobStatus | None], client: SlurmClient | None, session: Session
) -> None:
    """Print the outcome of the job, or the next commands if it has not ended."""
    if any(status is not None and not status.state.finished for status in statuses):
        print_next_steps(run.job_id, going=True)
        return
    outcomes = record_outcomes(zip(elements or [run], statuses, strict=True))
    echo()
    if client is None and run.record is not None and not all(outcome.state.finished for outcome in outcomes):
        cluster = describe_cluster(run.record, session.client)
        echo(f"job {run.job_id} was submitted to cluster {cluster}, which was not queried")
        print_next_steps(run.job_id, going=True)
    elif elements:
        print_array_outcome(run, outcomes, client)
    else:
        print_outcome(outcomes[0], client)


def _run_json(run: Run, ranks: list[int], status: JobStatus | None) -> dict[str, object]:
    """Return state or outcome of a run, and path and lines of each log."""
    state = str(status.state) if status else None
    outcome = outcome_json(record_outcome(run, status)) if status is None or status.state.finished else {}
    logs = {str(rank): _log_json(run.rank_log(rank)) for rank in ranks}
    batch = _log_json(run.batch_log) if run.backend.has_batch_script else None
    return {"job_id": run.job_id, "name": run.name, "state": state, **outcome, "batch": batch, "ranks": logs}


def _log_json(log: Path) -> dict[str, object]:
    """Return the lines of a log; of a huge log only the last ones, because the document is built in memory."""
    lines: list[str] | None = None
    left_out = 0
    with suppress(OSError), log.open("rb") as file:
        left_out = max(0, file.seek(0, os.SEEK_END) - JSON_BYTES)
        file.seek(left_out)
        cut = file.readline() if left_out else b""
        left_out += len(cut)
        text = file.read(JSON_BYTES).removesuffix(b"\n")
        lines = [decode_line(line) for line in text.split(b"\n")] if text else []
    return {"path": str(log), "lines": lines, "left_out": left_out}
