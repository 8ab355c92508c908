"""Renders a result as Markdown that is also readable on a terminal: tables, notes and the machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from hpc_kit.bench.machine import MeasuredHost
from hpc_kit.bench.results import (
    BenchResult,
    Column,
    ResultRow,
    column_title,
    format_label,
    format_number,
    format_quantity,
    scale_to_unit,
)


def completion_sentence(document: BenchResult) -> str:
    """Return a sentence on how the benchmark ended; a killed one counts as interrupted."""
    if document.interrupted:
        return "Interrupted: what was measured until then."
    return f"Incomplete: without {'; '.join(document.missing)}." if document.missing else "Complete."


def render_result(document: BenchResult, pictures: Sequence[str] = ()) -> str:
    """Render the whole result; `pictures` are names of files beside it."""
    head = [f"# {document.title}", "", f"    {shlex.join(document.command)}", ""]
    head += [f"**{completion_sentence(document)}**", ""] if document.interrupted or document.missing else []
    body = [*render_tables(document), "", *machine_lines(document)]
    body += [line for name in pictures for line in ("", f"![{name}]({name})")]
    return "\n".join([*head, *body]) + "\n"


def render_tables(document: BenchResult) -> list[str]:
    """Render one table for each kind of row, and the notes."""
    tables = [line for rows in group_rows(document) for line in (*render_table(*table_cells(document, rows)), "")]
    notes = [text for note in (*repeats_note(document), *document.notes) for text in (note, "")]
    # Without the blank line behind the last table or note.
    return [*tables, *notes][:-1]


def repeats_note(document: BenchResult) -> list[str]:
    """Return the note on the number of repeats behind the medians; empty without repeats."""
    counts = sorted({spread.repeats for row in document.results for spread in row.spread.values()})
    if not counts:
        return []
    if counts == [1]:
        return ["One repeat each: their variation is unknown."]
    repeats = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return [f"Medians of {repeats} repeats, quartiles in brackets."]


def group_rows(document: BenchResult) -> list[list[ResultRow]]:
    """Group rows with the same labels, in order of appearance."""
    found: dict[tuple[str, ...], list[ResultRow]] = {}
    for row in document.results:
        found.setdefault(tuple(row.labels), []).append(row)
    return list(found.values())


def table_cells(document: BenchResult, rows: Sequence[ResultRow]) -> tuple[list[str], list[list[str]], int]:
    """Return headings, cells and the number of label columns on the left."""
    labels = list(rows[0].labels)
    columns = [name for name in document.columns if any(name in row.values for row in rows)]
    heads = [name.replace("_", " ") for name in labels]
    heads += [column_heading(name, document.columns[name]) for name in columns]
    cells = []
    for row in rows:
        line = [format_label(row.labels[name], name) for name in labels]
        cells.append(line + [format_cell(row, name, document) for name in columns])
    return heads, cells, len(labels)


def render_table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Render an aligned Markdown table; all columns after the first `left` ones are numbers."""
    lines = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in (heads, *rows)]
    widths = [max(3, *(len(row[place]) for row in lines)) for place in range(len(heads))]

    def line(row: Sequence[str]) -> str:
        padded = [
            text.ljust(width) if place < left else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if place < left else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    return [line(lines[0]), line(rule), *map(line, lines[1:])]


def machine_lines(document: BenchResult) -> list[str]:
    """Return one line for each host, and the versions."""
    found = document.machine
    lines = [f"- {_host_line(host)}" for host in found.hosts]
    lines.append(f"- {', '.join(f'{name} {version}' for name, version in found.versions.items())}; {found.kernel}")
    lines.append(f"- {document.started} to {document.ended or '?'}, hpc_kit {document.hpc_kit}")
    return lines


def _host_line(host: MeasuredHost) -> str:
    before, after = format_loads(host)
    return f"{host.name}: {', '.join(describe_host(host))}; before: {before}" + (f"; after: {after}" if after else "")


def describe_host(host: MeasuredHost) -> list[str]:
    """Return processors, memory, GPUs and links."""
    return [f"{host.cores} x {host.cpu}", format_quantity(host.memory, "B", 3), *host.gpus, *host.links]


def format_loads(host: MeasuredHost) -> tuple[str, str]:
    """Return the load before and after; the load after is known for the first host only."""
    before, after = (
        f"{each.busy:.0%} busy, load {each.average[0]:.2f}" if each else "" for each in (host.before, host.after)
    )
    return before, after


def column_heading(name: str, column: Column) -> str:
    """Return a column's heading, with the unit unless each cell shows its own."""
    words = column_title(name, column)
    return f"{words} ({column.unit})" if column.unit and column.unit not in {"s", "B"} else words


def format_cell(row: ResultRow, name: str, document: BenchResult) -> str:
    """Format a median with its quartiles: `412 us (405-431)`; empty if the row lacks the quantity."""
    if name not in row.values:
        return ""
    value, unit = row.values[name], document.columns[name].unit
    number, scaled_unit = scale_to_unit(value, unit)
    text = f"{format_number(number)}{f' {scaled_unit}' if unit in {'s', 'B'} else ''}"
    spread = row.spread.get(name)
    if spread is None or spread.repeats < 2:
        return text
    # The quartiles get the unit of the median.
    factor = number / value if value else 1.0
    # A dash before a negative number would read as a minus sign.
    dash = "-" if spread.low * factor >= 0 else " to "
    return f"{text} ({format_number(spread.low * factor, 3)}{dash}{format_number(spread.high * factor, 3)})"
