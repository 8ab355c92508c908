"""A document as Markdown that reads well on a terminal, too: its table, its notes, and the machine that gave it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from hpc_kit.bench.machine import Host
from hpc_kit.bench.quantity import plain, quantity, scaled, shown
from hpc_kit.bench.results import Column, Document, Row


def ended(document: Document) -> str:
    """How a bench ended, in a sentence; one whose process was killed is interrupted, too."""
    if document.interrupted:
        return "Interrupted: what was measured until then."
    return f"Incomplete: without {'; '.join(document.missing)}." if document.missing else "Complete."


def page(document: Document, pictures: Sequence[str] = ()) -> str:
    """The whole document; `pictures` are names of files beside it."""
    head = [f"# {document.title}", "", f"    {shlex.join(document.command)}", ""]
    head += [f"**{ended(document)}**", ""] if document.interrupted or document.missing else []
    body = [*results(document), "", *machine(document)]
    body += [line for name in pictures for line in ("", f"![{name}]({name})")]
    return "\n".join([*head, *body]) + "\n"


def results(document: Document) -> list[str]:
    """A table for each kind of row, with what they were measured by, and the notes."""
    tables = [line for rows in kinds(document) for line in (*table(*cells(document, rows)), "")]
    notes = [text for note in (*repeats(document), *document.notes) for text in (note, "")]
    return [*tables, *notes][:-1]


def repeats(document: Document) -> list[str]:
    """The sentence that says what the medians are of; none where nothing was repeated."""
    found = sorted({spread.repeats for row in document.results for spread in row.spread.values()})
    if found == [1]:
        return ["One repeat each: nothing tells by how much they vary."]
    return [f"Medians of {_range(found)} repeats, quartiles in brackets."] if found else []


def kinds(document: Document) -> list[list[Row]]:
    """The rows that have the same labels together, in the order of their coming."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in document.results:
        found.setdefault(tuple(row.labels), []).append(row)
    return list(found.values())


def cells(document: Document, rows: Sequence[Row]) -> tuple[list[str], list[list[str]], int]:
    """Rows of one kind as heads, cells, and how many columns on the left are labels."""
    labels, known = list(rows[0].labels), {name for row in rows for name in row.values}
    values = [name for name in document.columns if name in known]
    heads = [*(name.replace("_", " ") for name in labels), *(title(name, document.columns[name]) for name in values)]
    found = [
        [*(shown(row.labels[name], name) for name in labels), *(cell(row, name, document) for name in values)]
        for row in rows
    ]
    return heads, found, len(labels)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A Markdown table in straight columns; all but the `left` first are numbers."""
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


def machine(document: Document) -> list[str]:
    """The hosts and the versions, a line each."""
    found = document.machine
    lines = [f"- {_host(host)}" for host in found.hosts]
    lines.append(f"- {', '.join(f'{name} {version}' for name, version in found.versions.items())}; {found.kernel}")
    lines.append(f"- {document.started} to {document.ended or '?'}, hpc_kit {document.hpc_kit}")
    return lines


def _host(host: Host) -> str:
    before, after = loads(host)
    return f"{host.name}: {', '.join(host_parts(host))}; before: {before}" + (f"; after: {after}" if after else "")


def host_parts(host: Host) -> list[str]:
    """Processors, memory, GPUs and links."""
    return [f"{host.cores} x {host.cpu}", quantity(host.memory, "B", 3), *host.gpus, *host.links]


def loads(host: Host) -> tuple[str, str]:
    """How busy it was with other things before and after; of other hosts than the first only before is known."""
    before, after = (
        f"{each.busy:.0%} busy, load {each.average[0]:.2f}" if each else "" for each in (host.before, host.after)
    )
    return before, after


def title(name: str, column: Column) -> str:
    """A column's head: with the unit, where the cells do not have their own."""
    words = column.title or name.replace("_", " ")
    return f"{words} ({column.unit})" if column.unit and column.unit not in {"s", "B"} else words


def cell(row: Row, name: str, document: Document) -> str:
    """A median with its quartiles: `412 us (405-431)`; nothing where the row has no such quantity."""
    if name not in row.values:
        return ""
    value, unit = row.values[name], document.columns[name].unit
    number, prefix = scaled(value, unit)
    own = f" {prefix}" if unit in {"s", "B"} else ""
    text = f"{plain(number)}{own}"
    spread = row.spread.get(name)
    if spread is None or spread.repeats < 2:
        return text
    factor = number / value if value else 1.0
    to = "-" if spread.low * factor >= 0 else " to "
    return f"{text} ({plain(spread.low * factor, 3)}{to}{plain(spread.high * factor, 3)})"


def _range(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
