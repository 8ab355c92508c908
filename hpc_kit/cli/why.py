"""`hpc-kit why`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.options import CLUSTER_OPTION, JSON_OPTION, RUNS_OPTION, complete_run
from hpc_kit.cli.output import print_line, short_path
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SpecError, UnknownJob
from hpc_kit.slurm.start_forecast import find_limit
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from hpc_kit.cli.options import Session
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.runs.why.verdicts import Verdict
    from hpc_kit.slurm.client import SlurmClient
    from hpc_kit.slurm.job_status import JobStatus
    from hpc_kit.slurm.partitions import ListedPartition


@click.command("why")
@click.argument("words", nargs=-1, metavar="[JOB|ID]", shell_complete=complete_run)
@click.option(
    "--log", "logs", multiple=True, type=click.Path(path_type=Path), metavar="FILE...", help="Read these files."
)
@CLUSTER_OPTION
@RUNS_OPTION
@JSON_OPTION
def command(words: tuple[str, ...], logs: tuple[Path, ...], cluster: str | None, as_json: bool) -> int:
    """Explain why a job failed, which rank caused it, and what to do.

    JOB means the latest run of that name. Without JOB, the latest run is explained. With --log, any
    logs are read, also of jobs that hpc-kit did not submit: output of Slurm and of ranks, outputs of
    sacct, squeue and scontrol, messages of sbatch, the script, or folders with such files.

    Exit status: 0 the job did not fail; 1 a cause, unknown, or no such job; 2 wrong use.
    """
    answers: list[tuple[list[str], Verdict]]
    if logs:
        # A shell expands `--log *.out` to one value of the option and further arguments.
        answers = _explain_files([*logs, *map(Path, words)])
    elif len(words) > 1:
        raise SpecError(
            f"why takes one job, and not {len(words)}", remedy="name files after --log: hpc-kit why --log *.out"
        )
    else:
        answers = _explain_run(words[0] if words else None, cluster)
    _print(answers, as_json=as_json)
    return 0 if all(verdict.cause.startswith("did not fail") for _, verdict in answers) else 1


def _explain_files(paths: list[Path]) -> list[tuple[list[str], Verdict]]:
    from hpc_kit.runs.why.array_elements import explain_elements

    for path in paths:
        if not path.exists():
            raise UnknownJob(f"there is no file {path}", remedy="name logs or folders after --log")
    return explain_elements(paths)


def _explain_run(word: str | None, cluster: str | None) -> list[tuple[list[str], Verdict]]:
    """Return the answer about a run; of an array, the different answers with the ids of their elements."""
    from hpc_kit.cli.logs import query_statuses
    from hpc_kit.cli.run_lookup import client_of_run, find_run
    from hpc_kit.runs.why.array_elements import group_verdicts

    run, session = find_run(word, cluster)
    elements = run.elements()
    client = client_of_run(run, session)
    runs = elements or [run]
    jobs = list(zip(runs, query_statuses(runs, client), strict=True))
    waiting = [each.job_id for each, status in jobs if status is not None and status.state is JobState.PENDING]
    if client is not None and session.partitions and waiting:
        # The whole queue contains the sizes of the waiting jobs.
        sized = client.query_queue(waiting, ended=False).found
        jobs = [(each, sized.get(each.job_id, status)) for each, status in jobs]
    verdicts = [(each.job_id, _explain_job(each, status, session, client)) for each, status in jobs]
    if client is not None:
        verdicts = [(job_id, replace(each, fix=client.typed_command(each.fix) or "")) for job_id, each in verdicts]
    return group_verdicts(verdicts) if elements else [([], verdicts[0][1])]


def _explain_job(run: Run, status: JobStatus | None, session: Session, client: SlurmClient | None) -> Verdict:
    """Return the answer about a job. If it never started, name the job before it that failed."""
    from hpc_kit.cli.logs import query_statuses
    from hpc_kit.runs.outcome import has_broken_chain, read_state
    from hpc_kit.runs.run_folders import RunIndex
    from hpc_kit.runs.why.run_evidence import dependencies_of, explain_run, name_failed_dependency
    from hpc_kit.slurm.queries import add_canceller

    if status is not None and client is not None:
        status = add_canceller(client, status)
    verdict = _with_limit(explain_run(run, status, read_state(run, status)), status, session.partitions)
    if not has_broken_chain(run, status):
        return verdict
    index = RunIndex(session.runs)
    runs = [found for job_id in dependencies_of(run) if (found := index.find(job_id)) is not None]
    before = zip(runs, query_statuses(runs, client), strict=True)
    answers = [(each, read_state(each, known), _explain_job(each, known, session, client)) for each, known in before]
    return name_failed_dependency(verdict, run, answers)


def _with_limit(verdict: Verdict, status: JobStatus | None, partitions: Sequence[ListedPartition]) -> Verdict:
    """Add the limit because of which no partition of a waiting job can ever start it."""
    limit = find_limit(status, partitions) if status is not None else None
    if limit is None:
        return verdict
    return replace(verdict, cause=f"{verdict.cause}. {limit.sentence[:-1]}", fix=limit.next_step)


def _print(answers: list[tuple[list[str], Verdict]], *, as_json: bool) -> None:
    """Print the answers: verdicts with the ids of the array elements that they are about."""
    from hpc_kit.runs.why.array_elements import name_elements
    from hpc_kit.runs.why.report import verdict_json, verdict_rows

    if as_json:
        # The document of an array has the keys of a single job, too: those of its first answer.
        first_jobs, first_verdict = answers[0]
        document = verdict_json(first_verdict)
        if first_jobs:
            document["elements"] = [{"jobs": jobs, **verdict_json(verdict)} for jobs, verdict in answers]
        echo(json.dumps(document, indent=2))
        return
    for jobs, verdict in answers:
        if jobs:
            print_line("jobs", f"{name_elements(jobs)} ({len(jobs)})")
        for label, text in verdict_rows(verdict, lambda path: short_path(Path(path))):
            print_line(label, text)
