"""`hpc-kit stacks`."""

from __future__ import annotations

import json
from contextlib import suppress

import click

from hpc_kit.cli.logs import check_started
from hpc_kit.cli.options import CLUSTER_OPTION, JSON_OPTION, RUNS_OPTION, NumberRange, complete_run
from hpc_kit.cli.output import print_line
from hpc_kit.cli.run_lookup import client_of_run, find_run
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SlurmUnavailable, SpecError, UnknownJob
from hpc_kit.run_files import RankStack, read_stacks, read_stall
from hpc_kit.runs.backend import query_runs
from hpc_kit.runs.run_folders import Run
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.option_values import fold_indices
from hpc_kit.slurm.units import name_some


@click.command("stacks")
@click.argument("word", required=False, metavar="[JOB|ID]", shell_complete=complete_run)
@click.option("--last", is_flag=True, help="Do not ask the ranks: print the latest stacks that they wrote.")
@click.option("--threads", is_flag=True, help="All threads of each rank, not only the main thread.")
@click.option(
    "--timeout",
    type=NumberRange(0, 86400),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait for all ranks.",
)
@CLUSTER_OPTION
@RUNS_OPTION
@JSON_OPTION
def command(word: str | None, last: bool, threads: bool, timeout: float, cluster: str | None, as_json: bool) -> int:
    """Print what the ranks of a running job are doing: their Python stacks, equal ones once.

    The ranks of `hpc_kit.distributed()` and `python -m hpc_kit.runtime` answer within about 5 seconds. They go on
    afterwards. A rank that does not answer has not imported torch yet, is stopped, has ended, or is in C code
    that keeps Python's lock.

    Exit status: 0 all ranks answered; 1 some did not, or there is no such job; 2 wrong use.
    """
    from hpc_kit.runs import stacks

    run, session = find_run(word, cluster)
    if elements := run.elements():
        raise SpecError(
            f"job {run.job_id} is an array",
            found=f"{len(elements)} elements",
            remedy=f"name one of them: hpc-kit stacks {elements[0].job_id}",
        )
    size = run.record.resolved.world_size if run.record is not None else None
    if not last:
        _check_running(run, client_of_run(run, session))
    answers = read_stacks(run.folder) if last else stacks.request_stacks(run.folder, size or len(run.ranks()), timeout)
    silent = sorted(set(range(size or 0)) - {answer.rank for answer in answers})
    stall = read_stall(run.folder)
    verdict = stall.sentence if stall else None
    if as_json:
        document = {
            "job_id": run.job_id,
            "stall": verdict,
            "silent": silent,
            "ranks": [answer._asdict() for answer in answers],
        }
        echo(json.dumps(document, indent=2))
    else:
        _print_stacks(answers, silent, verdict, threads=threads)
    return 1 if silent or not answers else 0


def _check_running(run: Run, client: SlurmClient | None) -> None:
    """Raise if the ranks of a job cannot answer, because it waits in the queue or has ended."""
    status = None
    with suppress(SlurmUnavailable):  # then only the files of the run tell
        status = query_runs([run], client).get(run.job_id) if client is not None else None
    check_started(run, status)
    if run.end_marker() is not None or (status is not None and status.state.finished):
        raise UnknownJob(
            f"job {run.job_id} has ended", found=str(run.folder), remedy=f"hpc-kit stacks {run.job_id} --last"
        )


def _print_stacks(answers: list[RankStack], silent: list[int], verdict: str | None, *, threads: bool) -> None:
    from hpc_kit.runs.stacks import group_stacks

    if verdict is not None:
        print_line("stall", verdict)
    for group in group_stacks(answers):
        step = (
            f", after step {'-'.join(map(str, dict.fromkeys((group.steps[0], group.steps[-1]))))}"
            if group.steps
            else ""
        )
        echo(f"{_name_ranks(group.ranks)} on {name_some(group.hosts)}{step}:")
        echo(group.traceback.rstrip("\n"))
        if group.collectives:
            echo(f"  latest collective: {'; '.join(group.collectives[:3])}")
    if threads:
        for answer in answers:
            # The first thread is the main one, printed above.
            for name, text in list(answer.threads.items())[1:]:
                echo(f"rank {answer.rank}, thread {name}:")
                echo(text.rstrip("\n"))
    if silent:
        verb = "does" if len(silent) == 1 else "do"
        reasons = "not started, torch not yet imported, stopped, ended, or in C code that keeps Python's lock"
        echo(f"{_name_ranks(silent)} {verb} not answer: {reasons}")


def _name_ranks(ranks: list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {fold_indices(ranks)}"
