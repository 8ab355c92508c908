"""Plots as elements of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_kit.bench import plots as draw
from hpc_kit.bench.curves import curves
from hpc_kit.errors import SpecError
from hpc_kit.report.section import Picture

if TYPE_CHECKING:
    from hpc_kit.bench.curves import Measured
    from hpc_kit.bench.results import Plot


def pictures(measured: Measured, plots: Sequence[Plot], prefix: str) -> tuple[list[Picture], list[str]]:
    """The plots that have something to show; without matplotlib none, and a note that says how to get it.

    Args:
        measured: The rows.
        plots: What to draw of them.
        prefix: Before every id in the page.
    """
    wanted = [plot for plot in plots if curves(measured, plot)]
    try:
        return [
            Picture(plot.title, draw.svg(measured, plot, f"{prefix}-p{number}")) for number, plot in enumerate(wanted)
        ], []
    except SpecError as error:
        return [], [f"No plots: {error.what}: {error.found}; {error.remedy}"]
