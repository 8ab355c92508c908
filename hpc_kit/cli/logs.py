"""`hpc-kit logs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.cli import account
from hpc_kit.cli.session import CLUSTER, here
from hpc_kit.errors import UnknownJob

if TYPE_CHECKING:
    from hpc_kit.submit.runs import Run


@click.command("logs")
@click.argument("job_id", required=False, metavar="[ID]")
@click.option("-f", "--follow", is_flag=True, help="Follow the job to its end; the exit status is the job's own.")
@click.option("--rank", type=click.IntRange(min=0), default=None, metavar="N", help="Which rank [default: 0].")
@click.option("--all", "every", is_flag=True, help="All ranks, each line with its rank in front.")
@click.option("--batch", is_flag=True, help="What the batch script itself and srun said.")
@CLUSTER
def command(job_id: str | None, follow: bool, rank: int | None, every: bool, batch: bool, cluster: str | None) -> int:
    """A job's output, and how it ended; of a failed job the rank that failed first, with its own traceback alone.

    Without ID, the latest run.
    """
    from hpc_kit.submit.outcome import end_of

    place = here(cluster)
    run = _run(place.runs, job_id)
    if follow:
        return account.follow(run, place.access, rank=rank or 0)
    if every:
        _print_all(run)
    else:
        _print(run.batch_log if batch else run.rank_log(rank or 0))
    status = place.access.query([run.job_id]).get(run.job_id)
    if status is not None and not status.state.finished:
        account.next_steps(run.job_id, going=True)
        return 0
    outcome = end_of(run, status)
    click.echo()
    account.conclude(outcome)
    return 0


def _run(runs: Path, job_id: str | None) -> Run:
    from hpc_kit.submit.runs import Runs

    known = Runs(runs)
    if job_id is not None:
        return known.need(job_id)
    recent = known.recent(1)
    if not recent:
        raise UnknownJob(f"no runs in {account.shown(runs)}", remedy="hpc-kit submit ddp_4node")
    return recent[0]


def _print(log: Path) -> None:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UnknownJob(
            f"there is no {account.shown(log)}",
            found=error.strerror,
            remedy="the job may not have started yet: hpc-kit status; --batch shows what its script said",
        ) from error
    click.echo(text, nl=not text.endswith("\n"))


def _print_all(run: Run) -> None:
    """Rank by rank: the ranks' own logs keep no common clock to sort by."""
    for log in sorted(run.folder.glob("rank-*.log"), key=lambda path: int(path.stem.rpartition("-")[2])):
        rank = log.stem.rpartition("-")[2]
        for text in log.read_text(encoding="utf-8", errors="replace").splitlines():
            click.echo(f"{rank:>4}: {text}")
