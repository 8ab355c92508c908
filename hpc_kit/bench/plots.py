"""The plots of a document, by matplotlib: as files, and as SVG to stand in a page of its own colours."""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING, Any

from hpc_kit.bench.curves import Curve, Measured, axis_title, curves
from hpc_kit.bench.quantity import quantity, shown
from hpc_kit.plotting import pyplot, save

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hpc_kit.bench.results import Document, Plot

COLOURS = ("#2f6fde", "#d9661f", "#1a936f", "#c2407e", "#7a5cc4", "#9a7b00", "#3d8a9c", "#83838a")
INK, GRID = "#1d1d20", "#dcdce1"

_MARKERS = "os^Dv*Px"
"""So that lines are told apart also without colour."""
_HEADROOM = 1.3
_MOST_MARKERS, _MOST_LETTERS = 40, 60
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


def files(document: Document, folder: Path) -> list[Path]:
    """Write every plot that has something to show as PNG and SVG; the files that were written.

    Raises:
        SpecError: matplotlib is not installed, or a file cannot be written.
    """
    written = []
    for plot in document.plots:
        if not curves(document, plot):
            continue
        for kind in ("png", "svg"):
            path = folder / f"bench_{document.bench}-{plot.name}.{kind}"
            with pyplot().rc_context({**_STYLE, "svg.hashsalt": plot.name}):
                save(figure(document, plot), path)
            written.append(path)
    return written


def svg(document: Measured, plot: Plot, prefix: str) -> str:
    """One plot as an `<svg>` element without its own colours: `var(--c1)` ..., `var(--ink)`, `var(--grid)`.

    Args:
        document: The rows.
        plot: What to draw of them.
        prefix: Before every id, so that several stand in one page.

    Raises:
        SpecError: matplotlib is not installed.
    """
    text = io.StringIO()
    with pyplot().rc_context({**_STYLE, "svg.hashsalt": prefix}):
        drawn = figure(document, plot)
        drawn.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        pyplot().close(drawn)
    return themed(text.getvalue(), prefix)


def themed(text: str, prefix: str) -> str:
    """An SVG file as an element of a page: no prologue, no names of other places, ids and colours of the page's own."""
    text = text[text.index("<svg") :]
    # The page gives it its width; its own in points would not shrink with a window.
    text = re.sub(r'^(<svg[^>]*?)\s+height="[^"]*"([^>]*?)\s+width="[^"]*"', r"\1\2", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(?::\w+)?="[^"]*"', "", text)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(url\(|xlink:href=")#', rf"\g<1>#{prefix}-", text).replace("xlink:href", "href")
    for number, colour in enumerate(COLOURS, 1):
        text = text.replace(colour, f"var(--c{number})")
    return text.replace(INK, "var(--ink)").replace(GRID, "var(--grid)").strip()


def figure(document: Measured, plot: Plot) -> Figure:
    """The figure of one plot."""
    drawn, axes = pyplot().subplots(layout="constrained")
    found = curves(document, plot)
    categories = _categories(found)
    if plot.kind == "lines" and not categories:
        _lines(axes, found)
    else:
        _columns(axes, found, categories or sorted({point.x for curve in found for point in curve.points}), plot)
    for number, (words, height) in enumerate(plot.marks.items()):
        axes.axhline(height, color=INK, linestyle=(0, (1, 1 + number)), linewidth=1.2, label=words)
    _axes(axes, document, plot, numbers=plot.kind == "lines" and not categories)
    crossed = bool(plot.marks) and plot.kind != "lines"
    if crossed:
        # Lines across leave the legend no corner: it stands above them.
        axes.set_ylim(top=_HEADROOM * axes.get_ylim()[1])
    if len(found) + len(plot.marks) > 1 or found[0].name:
        axes.legend(fontsize=9, ncols=1 + crossed, loc="upper right" if crossed else "best")
    return drawn  # type: ignore[no-any-return]


def _categories(found: list[Curve]) -> list[Any]:
    """The values along the axis in the order of their coming, where they are words; none where they are numbers."""
    values = list(dict.fromkeys(point.x for curve in found for point in curve.points))
    return values if any(isinstance(value, str | bool | None) for value in values) else []


def _lines(axes: Axes, found: list[Curve]) -> None:
    for number, curve in enumerate(found):
        points = sorted(curve.points, key=lambda point: float(point.x or 0))
        axes.errorbar(
            [float(point.x or 0) for point in points],
            [point.y for point in points],
            yerr=_bars(points),
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)] if len(points) <= _MOST_MARKERS else None,
            markersize=5,
            linewidth=1.8,
            capsize=3,
            label=curve.name,
        )


def _columns(axes: Axes, found: list[Curve], places: list[Any], plot: Plot) -> None:
    """Bars side by side, or on one another; of lines over words, points."""
    stacked = plot.kind == "stacked"
    width = 0.8 if stacked else 0.8 / max(1, len(found))
    feet = [0.0] * len(places)
    for number, curve in enumerate(found):
        by_place = {point.x: point for point in curve.points}
        points = [by_place[place] for place in places if place in by_place]
        at = [places.index(point.x) for point in points]
        axes.bar(
            [place if stacked else place + (number - (len(found) - 1) / 2) * width for place in at],
            [point.y for point in points],
            width * 0.92,
            bottom=[feet[place] for place in at] if stacked else None,
            yerr=None if stacked else _bars(points),
            color=COLOURS[number % len(COLOURS)],
            ecolor=INK,
            capsize=3,
            label=curve.name,
        )
        for place, point in zip(at, points, strict=True):
            feet[place] += point.y
    names = [shown(place, plot.x) for place in places]
    crowded = sum(map(len, names)) > _MOST_LETTERS
    aside: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor", "fontsize": 8} if crowded else {}
    axes.set_xticks(range(len(places)), names, **aside)
    axes.grid(visible=False, axis="x")


def _bars(points: Any) -> list[list[float]] | None:
    bars = [[point.y - point.low for point in points], [point.high - point.y for point in points]]
    return bars if any(map(any, bars)) else None


def _axes(axes: Axes, measured: Measured, plot: Plot, *, numbers: bool) -> None:
    from matplotlib import ticker

    axes.set_title(plot.title, loc="left", fontsize=11)
    axes.set_xlabel(axis_title(measured, plot, "x"))
    axes.set_ylabel(axis_title(measured, plot, "y"))
    unit = measured.columns[plot.y[0]].unit if plot.y[0] in measured.columns else ""
    points = [point for curve in curves(measured, plot) for point in curve.points]
    if numbers and plot.log_x:
        axes.set_xscale("log", base=2 if plot.x == "bytes" else 10)
    if plot.log_y:
        axes.set_yscale("log")
        # Times seldom span many powers of ten: each of them has more than one tick.
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    elif not any(point.y < 0 for point in points):
        axes.set_ylim(bottom=0)
        if unit == "B" and (most := max(point.high for point in points)) >= 8:
            axes.yaxis.set_major_locator(ticker.MultipleLocator(2 ** (math.frexp(most / 4)[1] - 1)))
    if numbers and plot.x == "bytes":
        axes.xaxis.set_major_formatter(lambda value, _: quantity(value, "B", 3))
    if unit in {"s", "B"} or plot.log_y:
        axes.yaxis.set_major_formatter(lambda value, _: quantity(value, unit if unit in {"s", "B"} else "", 3))
