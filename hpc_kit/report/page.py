"""Sections of a report and the HTML page that contains them; all text is escaped, nothing is loaded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

from hpc_kit.bench import plots as draw
from hpc_kit.bench.plots import PlotData, plot_curves
from hpc_kit.bench.results import Plot
from hpc_kit.errors import SpecError


def render_page(sections: Sequence[Section], made: str) -> str:
    """Render the HTML of a report: a section for each run or benchmark. `made` is a line with date and program."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code_markup"] = markup_code
    # A set would lose the order.
    names = dict.fromkeys(section.name for section in sections)
    title = sections[0].title if len(sections) == 1 else ", ".join(names)
    return environment.get_template("page.html.j2").render(
        sections=disambiguate_titles(sections), title=title, made=made
    )


def disambiguate_titles(sections: Sequence[Section]) -> list[Section]:
    """Add the source to titles that several sections share."""
    number = Counter(section.title for section in sections)
    return [
        section._replace(title=f"{section.title}: {section.source}") if number[section.title] > 1 else section
        for section in sections
    ]


def markup_code(text: str) -> Markup:
    """Return a note as HTML, with text in backticks as code."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


class ReportTable(NamedTuple):
    """Rows of text; all columns after the first `left` ones are numbers."""

    caption: str
    heads: list[str]
    rows: list[list[str]]
    left: int = 1


class ReportText(NamedTuple):
    """A file or output, shown open or folded behind its title."""

    title: str
    text: str
    shown: bool = False


class Picture(NamedTuple):
    """A plot as an `<svg>` element, already escaped."""

    title: str
    svg: str


class Section(NamedTuple):
    """One run or one benchmark."""

    name: str
    title: str
    source: str
    """Folder or file that distinguishes sections with the same title."""

    headline: str
    """Outcome in one sentence."""

    failed: bool
    """True unless the outcome is a success."""

    failure: ReportText | None
    """Error message of the rank that failed first."""

    facts: list[tuple[str, str]]
    pictures: list[Picture]
    tables: list[ReportTable]
    notes: list[str]
    texts: list[ReportText]


def draw_pictures(measured: PlotData, plots: Sequence[Plot], prefix: str) -> tuple[list[Picture], list[str]]:
    """Draw the plots that have data. Every id begins with the prefix.

    Without matplotlib, return a note on how to install it.
    """
    wanted = [plot for plot in plots if plot_curves(measured, plot)]
    try:
        return [
            Picture(plot.title, draw.inline_svg(measured, plot, f"{prefix}-p{number}"))
            for number, plot in enumerate(wanted)
        ], []
    except SpecError as error:
        return [], [f"No plots: {error.what}: {error.found}; {error.remedy}"]
