"""The lines and bars of a plot, out of a document's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from hpc_kit.bench.quantity import shown
from hpc_kit.bench.results import Column, Plot, Row, Value


class Measured(Protocol):
    """Rows and what their columns are: a document, or whatever is drawn like one."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """The quantities."""

    @property
    def results(self) -> Sequence[Row]:
        """The rows."""


class Point(NamedTuple):
    """A median and its quartiles."""

    x: Value
    y: float
    low: float
    high: float


class Curve(NamedTuple):
    """One line, or one colour of bars."""

    name: str
    points: tuple[Point, ...]


def curves(document: Measured, plot: Plot) -> list[Curve]:
    """What is to be drawn; rows without the label or the column are left out."""
    rows = [row for row in document.results if _fits(row, plot)]
    if plot.kind == "stacked":
        found = [Curve(_title(document, name), _points(rows, plot.x, name)) for name in plot.y]
    else:
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(_name(row, plot), []).append(row)
        found = [Curve(name, _points(group, plot.x, plot.y[0])) for name, group in groups.items()]
    return [curve for curve in found if curve.points]


def axis_title(document: Measured, plot: Plot, axis: str) -> str:
    """What stands at an axis: what the plot says, or the name and the unit of what is drawn."""
    if axis == "x":
        return plot.x_title or plot.x.replace("_", " ")
    unit = document.columns[plot.y[0]].unit if plot.y[0] in document.columns else ""
    words = plot.y_title or (_title(document, plot.y[0]) if plot.kind != "stacked" else "")
    # Seconds and bytes stand at the ticks, each with the prefix that fits.
    return words if unit in {"", "s", "B"} or "(" in words else f"{words} ({unit})".strip()


def _fits(row: Row, plot: Plot) -> bool:
    return plot.x in row.labels and all(row.labels.get(name) == value for name, value in plot.where.items())


def _points(rows: list[Row], x: str, column: str) -> tuple[Point, ...]:
    points = []
    for row in rows:
        if column in row.values:
            value, spread = row.values[column], row.spread.get(column)
            low, high = (spread.low, spread.high) if spread else (value, value)
            points.append(Point(row.labels[x], value, min(low, value), max(high, value)))
    return tuple(points)


def _name(row: Row, plot: Plot) -> str:
    return " ".join(shown(row.labels.get(name), name) for name in plot.series)


def _title(document: Measured, column: str) -> str:
    known = document.columns.get(column)
    return (known.title if known else "") or column.replace("_", " ")
