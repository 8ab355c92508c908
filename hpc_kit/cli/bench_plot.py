"""`hpc-kit bench plot`."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_kit.cli.account import shown


@click.command("plot")
@click.argument("result", type=click.Path(path_type=Path), metavar="BENCH.json")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="[default: beside it]")
def command(result: Path, out: Path | None) -> None:
    """Draw the pictures of a result as PNG and SVG: where it was measured there may be no matplotlib.

    Exit status 2 where the file is no result, or matplotlib is missing.
    """
    from hpc_kit.bench import document, draw

    for path in draw.files(document.read(result), out or result.parent):
        click.echo(shown(path))
