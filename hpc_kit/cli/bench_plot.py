"""`hpc-kit bench plot`."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_kit.cli.output import shown
from hpc_kit.errors import RecordError


@click.command("plot")
@click.argument("result", type=click.Path(path_type=Path), metavar="BENCH.json")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="[default: beside it]")
def command(result: Path, out: Path | None) -> None:
    """Draw the pictures of a result as PNG and SVG: where it was measured there may be no matplotlib.

    Exit status 1 where it was interrupted before its first row, 2 where the file is no result or matplotlib is missing.
    """
    from hpc_kit.bench import plots, results

    found = results.read(result)
    if not found.plots:
        raise RecordError(
            f"{shown(result)} names no picture", found="it was interrupted before its rows", remedy="measure it again"
        )
    for path in plots.files(found, out or result.parent):
        click.echo(shown(path))
