"""`hpc-kit nodelist`."""

from __future__ import annotations

import click

from hpc_kit.cli.terminal import echo


@click.command("nodelist")
@click.argument("text")
@click.option("--fold", is_flag=True, help="Fold hosts, separated by commas or spaces, into one list.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array.")
def command(text: str, fold: bool, as_json: bool) -> None:
    """Expand a Slurm host list such as 'n[1-3,7]', one host per line. Needs no Slurm."""
    from hpc_kit.slurm import nodelist

    hosts = nodelist.expand(",".join(text.replace(",", " ").split()) if fold else text)
    if fold:
        echo(nodelist.fold(hosts))
    elif as_json:
        import json

        echo(json.dumps(hosts))
    elif hosts:
        echo("\n".join(hosts))
