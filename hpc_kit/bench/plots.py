"""Plots of a result by matplotlib: as files, and as SVG elements that use the colours of a page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.bench.results import (
    BenchResult,
    Column,
    Plot,
    ResultRow,
    Value,
    column_title,
    format_label,
    format_quantity,
)
from hpc_kit.plotting import pyplot, save

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = ("#2f6fde", "#d9661f", "#1a936f", "#c2407e", "#7a5cc4", "#9a7b00", "#3d8a9c", "#83838a")
INK, GRID = "#1d1d20", "#dcdce1"

_MARKERS = "os^Dv*Px"
"""Markers distinguish lines without colour."""
_HEADROOM = 1.3
"""Factor on the height of a plot with marks, as room for the legend."""
_MAX_MARKERS = 40
"""Maximum number of points of a line with markers."""
_MAX_LETTERS = 60
"""Maximum number of letters of all bar names in a row; longer ones are rotated."""
_STYLE: dict[str, Any] = {
    "figure.figsize": (7.6, 4.3),
    "figure.dpi": 120,
    "font.size": 10,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def draw_files(document: BenchResult, folder: Path) -> list[Path]:
    """Write every plot with data as PNG and SVG; return the files.

    Raises:
        SpecError: matplotlib is not installed, or a file cannot be written.
    """
    written, data = [], PlotData(document.columns, document.results)
    for plot in document.plots:
        if not plot_curves(data, plot):
            continue
        for kind in ("png", "svg"):
            path = folder / f"bench_{document.bench}-{plot.name}.{kind}"
            with pyplot().rc_context({**_STYLE, "svg.hashsalt": plot.name}):
                save(draw_figure(data, plot), path)
            written.append(path)
    return written


def inline_svg(data: PlotData, plot: Plot, prefix: str) -> str:
    """Return one plot as an `<svg>` element with CSS variables `--c1`, ..., `--ink`, `--grid` as colours.

    Every id begins with the prefix, so that one page can contain several plots.

    Raises:
        SpecError: matplotlib is not installed.
    """
    text = io.StringIO()
    # With a fixed salt and no date, the same result gives the same bytes.
    with pyplot().rc_context({**_STYLE, "svg.hashsalt": prefix}):
        figure = draw_figure(data, plot)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        pyplot().close(figure)
    return use_page_colours(text.getvalue(), prefix)


def use_page_colours(text: str, prefix: str) -> str:
    """Turn an SVG file into an element of a page: no prologue, unique ids, CSS variables as colours."""
    text = text[text.index("<svg") :]
    # The page sets the width; a fixed width in points would not shrink with the window.
    text = re.sub(r'^(<svg[^>]*?)\s+height="[^"]*"([^>]*?)\s+width="[^"]*"', r"\1\2", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # In an HTML page, an element needs no namespace, and xlink:href is obsolete.
    text = re.sub(r'\s+xmlns(?::\w+)?="[^"]*"', "", text)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(url\(|xlink:href=")#', rf"\g<1>#{prefix}-", text).replace("xlink:href", "href")
    for number, colour in enumerate(COLOURS, 1):
        text = text.replace(colour, f"var(--c{number})")
    return text.replace(INK, "var(--ink)").replace(GRID, "var(--grid)").strip()


def draw_figure(data: PlotData, plot: Plot) -> Figure:
    """Draw the figure of one plot."""
    figure, axes = pyplot().subplots(layout="constrained")
    curves = plot_curves(data, plot)
    categories = _categories(curves)
    has_lines = plot.kind == "lines" and not categories
    if has_lines:
        _draw_lines(axes, curves)
    else:
        _draw_bars(axes, curves, categories or sorted({point.x for curve in curves for point in curve.points}), plot)
    for number, (name, height) in enumerate(plot.marks.items()):
        axes.axhline(height, color=INK, linestyle=(0, (1, 1 + number)), linewidth=1.2, label=name)
    _label_axes(axes, data, plot, has_numbers=has_lines)
    has_crossed_bars = bool(plot.marks) and plot.kind != "lines"
    if has_crossed_bars:
        # Horizontal marks leave no free corner, so the legend goes above them.
        axes.set_ylim(top=_HEADROOM * axes.get_ylim()[1])
    if len(curves) + len(plot.marks) > 1 or curves[0].name:
        axes.legend(fontsize=9, ncols=1 + has_crossed_bars, loc="upper right" if has_crossed_bars else "best")
    return figure  # type: ignore[no-any-return]


def _categories(curves: list[Curve]) -> list[Any]:
    """Return the values of the x axis in order of appearance if they are words; none for numbers."""
    values = list(dict.fromkeys(point.x for curve in curves for point in curve.points))
    return values if any(isinstance(value, str | bool | None) for value in values) else []


def _draw_lines(axes: Axes, curves: list[Curve]) -> None:
    for number, curve in enumerate(curves):
        points = sorted(curve.points, key=lambda point: float(point.x or 0))
        axes.errorbar(
            [float(point.x or 0) for point in points],
            [point.y for point in points],
            yerr=_error_bars(points),
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)] if len(points) <= _MAX_MARKERS else None,
            markersize=5,
            linewidth=1.8,
            capsize=3,
            label=curve.name,
        )


def _draw_bars(axes: Axes, curves: list[Curve], categories: list[Any], plot: Plot) -> None:
    """Draw bars side by side or stacked."""
    stacked = plot.kind == "stacked"
    width = 0.8 if stacked else 0.8 / max(1, len(curves))
    bottoms = [0.0] * len(categories)
    for number, curve in enumerate(curves):
        by_category = {point.x: point for point in curve.points}
        points = [by_category[category] for category in categories if category in by_category]
        indices = [categories.index(point.x) for point in points]
        # Side by side, the bars of one category are centred on it.
        offset = 0.0 if stacked else (number - (len(curves) - 1) / 2) * width
        axes.bar(
            [index + offset for index in indices],
            [point.y for point in points],
            width * 0.92,
            bottom=[bottoms[index] for index in indices] if stacked else None,
            yerr=None if stacked else _error_bars(points),
            color=COLOURS[number % len(COLOURS)],
            ecolor=INK,
            capsize=3,
            label=curve.name,
        )
        for index, point in zip(indices, points, strict=True):
            bottoms[index] += point.y
    names = [format_label(category, plot.x) for category in categories]
    crowded = sum(map(len, names)) > _MAX_LETTERS
    style: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor", "fontsize": 8} if crowded else {}
    axes.set_xticks(range(len(categories)), names, **style)
    axes.grid(visible=False, axis="x")


def _error_bars(points: Any) -> list[list[float]] | None:
    bars = [[point.y - point.low for point in points], [point.high - point.y for point in points]]
    return bars if any(map(any, bars)) else None


def _label_axes(axes: Axes, data: PlotData, plot: Plot, *, has_numbers: bool) -> None:
    """Set titles, scales and ticks; `has_numbers`: the x axis has numbers, not categories."""
    from matplotlib import ticker

    axes.set_title(plot.title, loc="left", fontsize=11)
    unit = data.columns[plot.y[0]].unit if plot.y[0] in data.columns else ""
    axes.set_xlabel(plot.x_title or plot.x.replace("_", " "))
    title = "" if plot.kind == "stacked" else column_title(plot.y[0], data.columns.get(plot.y[0]))
    title = plot.y_title or title
    # The tick labels of seconds and bytes contain their units.
    axes.set_ylabel(title if unit in {"", "s", "B"} or "(" in title else f"{title} ({unit})".strip())
    points = [point for curve in plot_curves(data, plot) for point in curve.points]
    if has_numbers and plot.log_x:
        axes.set_xscale("log", base=2 if plot.x == "bytes" else 10)
    if plot.log_y:
        axes.set_yscale("log")
        # Times seldom span many powers of ten, so each power gets several ticks.
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    elif not any(point.y < 0 for point in points):
        axes.set_ylim(bottom=0)
        if unit == "B" and (most := max(point.high for point in points)) >= 8:
            # Ticks at multiples of a power of two, about four of them.
            axes.yaxis.set_major_locator(ticker.MultipleLocator(2 ** (math.frexp(most / 4)[1] - 1)))
    if has_numbers and plot.x == "bytes":
        axes.xaxis.set_major_formatter(lambda value, _: format_quantity(value, "B", 3))
    if unit in {"s", "B"} or plot.log_y:
        axes.yaxis.set_major_formatter(lambda value, _: format_quantity(value, unit if unit in {"s", "B"} else "", 3))


class PlotData(NamedTuple):
    """The rows of a plot, and the columns that they may have."""

    columns: Mapping[str, Column]
    results: Sequence[ResultRow]


class CurvePoint(NamedTuple):
    """A median and its quartiles."""

    x: Value
    y: float
    low: float
    high: float


class Curve(NamedTuple):
    """One line, or the bars of one colour."""

    name: str
    points: tuple[CurvePoint, ...]


def plot_curves(data: PlotData, plot: Plot) -> list[Curve]:
    """Return the curves of a plot; rows without its label or column are skipped."""
    allowed = {name: value if isinstance(value, tuple) else (value,) for name, value in plot.where.items()}
    rows = [
        row
        for row in data.results
        if plot.x in row.labels and all(row.labels.get(name) in values for name, values in allowed.items())
    ]
    if plot.kind == "stacked":
        found = [Curve(column_title(name, data.columns.get(name)), _points(rows, plot.x, name)) for name in plot.y]
    else:
        groups: dict[str, list[ResultRow]] = {}
        for row in rows:
            name = " ".join(format_label(row.labels.get(label), label) for label in plot.series)
            groups.setdefault(name, []).append(row)
        found = [Curve(name, _points(group, plot.x, plot.y[0])) for name, group in groups.items()]
    return [curve for curve in found if curve.points]


def _points(rows: list[ResultRow], x: str, column: str) -> tuple[CurvePoint, ...]:
    points = []
    for row in rows:
        if column in row.values:
            value, spread = row.values[column], row.spread.get(column)
            low, high = (spread.low, spread.high) if spread else (value, value)
            points.append(CurvePoint(row.labels[x], value, min(low, value), max(high, value)))
    return tuple(points)
