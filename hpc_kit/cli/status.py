"""`hpc-kit status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpc_kit.cli import account
from hpc_kit.cli.session import CLUSTER, JSON, here

if TYPE_CHECKING:
    from hpc_kit.submit.listing import Line


@click.command("status")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@CLUSTER
@JSON
def command(ids: tuple[str, ...], cluster: str | None, as_json: bool) -> None:
    """States of jobs in plain words: those in the queue and the latest runs, or the ones named.

    Asks Slurm once, however many jobs.
    """
    from hpc_kit.submit.listing import statuses

    place = here(cluster)
    lines = statuses(list(ids) or None, place.runs, place.access)
    if as_json:
        import json

        click.echo(json.dumps([_entry(each) for each in lines], indent=2))
        return
    if not lines:
        click.echo(f"no jobs: none in the queue, and none in {account.shown(place.runs)}")
    width = max((len(each.name) for each in lines), default=0)
    for each in lines:
        click.echo(f"{each.job_id:>8}  {each.name:<{width}}  {each.state:<11}  {each.sentence}".rstrip())
        if each.next_step:
            click.echo(f"{'':>{width + 23}}  {each.next_step}")


def _entry(each: Line) -> dict[str, object]:
    status = each.status
    return {
        "job_id": each.job_id,
        "name": each.name,
        "state": str(each.state),
        "sentence": each.sentence,
        "next_step": each.next_step,
        "reason": status.reason if status else None,
        "nodes": status.nodelist if status else None,
        "exit_code": status.exit_code if status else None,
        "run": str(each.run.folder) if each.run else None,
    }
