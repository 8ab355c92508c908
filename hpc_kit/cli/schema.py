"""`hpc-kit schema`."""

from __future__ import annotations

import click

from hpc_kit.cli.terminal import echo


@click.command("schema")
@click.argument("kind", type=click.Choice(["job", "cluster"]), default="job")
def command(kind: str) -> None:
    """Print the JSON Schema of job files (or of cluster files), for editors with completion and checks."""
    from hpc_kit.spec.schema import schema_text

    echo(schema_text(kind), nl=False)
