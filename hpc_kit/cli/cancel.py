"""`hpc-kit cancel`."""

from __future__ import annotations

import click

from hpc_kit.cli.session import CLUSTER, here


@click.command("cancel")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@CLUSTER
def command(ids: tuple[str, ...], cluster: str | None) -> None:
    """End jobs, or elements of an array (12_3); says what each was before."""
    from hpc_kit.submit.listing import cancel

    place = here(cluster)
    for each in cancel(list(ids), place.runs, place.access):
        told = "had ended already" if each.state.finished else "cancelled"
        click.echo(f"{each.job_id:>8}  {each.name}  {told}: was {each.state}")
