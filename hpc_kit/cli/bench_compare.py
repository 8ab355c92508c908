"""`hpc-kit bench compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hpc_kit.bench.comparison import Comparison, Ratio
    from hpc_kit.bench.results import Document

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("compare")
@click.argument("first", type=_FILE, metavar="A.json")
@click.argument("second", type=_FILE, metavar="B.json")
@click.option("--despite", default="", metavar="load,machine", help="What may differ between the two.")
@click.option("--json", "as_json", is_flag=True, help="A JSON document.")
def command(first: Path, second: Path, despite: str, as_json: bool) -> None:
    """B over A, a ratio for each quantity of each row that is in both, with one standard error.

    Exit status 1 where they were taken under different load or on different machines, 2 where a file is no result.
    """
    from hpc_kit.bench import results
    from hpc_kit.bench.comparison import compare

    one, other = results.read(first), results.read(second)
    found = compare(one, other, tuple(filter(None, despite.split(","))))
    if as_json:
        ratios = [{**each._asdict(), "labels": each.labels} for each in found.ratios]
        click.echo(json.dumps({**found._asdict(), "ratios": ratios}, indent=1))
    else:
        click.echo("\n".join(_text(found, one)))


def _text(found: Comparison, one: Document) -> list[str]:
    from hpc_kit.bench import markdown_report
    from hpc_kit.bench.quantity import shown

    labels = list(dict.fromkeys(name for each in found.ratios for name in each.labels))
    rows = [[*(shown(each.labels.get(name), name) for name in labels), *_cells(each, one)] for each in found.ratios]
    lines = markdown_report.table([*labels, "quantity", "A", "B", "B / A", ""], rows, left=len(labels) + 1)
    sides = (("A", found.only_first, found.named_first), ("B", found.only_second, found.named_second))
    alone = [
        f"only in {name}: {number} row{'s' * (number > 1)}" + (f" ({named})" if named else "")
        for name, number, named in sides
        if number
    ]
    return [*lines, *(text for note in (*found.notes, *alone) for text in ("", note))]


def _cells(each: Ratio, one: Document) -> list[str]:
    from hpc_kit.bench.quantity import plain, quantity

    column = one.columns[each.column]
    error = f" +- {plain(each.uncertainty, 2)}" if each.uncertainty else ""  # of what is counted there is none
    values = [quantity(each.first, column.unit), quantity(each.second, column.unit)]
    return [column.title or each.column.replace("_", " "), *values, f"{each.ratio:.3f}{error}", each.verdict]
