"""The straight line behind a link: seconds = start + slope x bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class Line(NamedTuple):
    """A line through measured times."""

    start: float
    """Seconds of an empty message: the latency, alpha."""
    slope: float
    """Seconds a byte: beta; bytes/s are 1 / slope."""
    start_error: float | None
    """One standard error; None where there are no more points than unknowns."""
    slope_error: float | None


def fit(points: Iterable[tuple[float, float]]) -> Line | None:
    """The line through (bytes, seconds); each point's distance counts as a share of its own time.

    So the shortest message weighs as much as the longest. The errors come from what the points lie beside the line.
    None where fewer than two sizes were measured, or time does not grow with them.
    """
    known = [(float(size), seconds) for size, seconds in points if seconds > 0]
    if len({size for size, _ in known}) < 2:
        return None
    weights = [1 / seconds**2 for _, seconds in known]
    total = sum(weights)
    x = sum(w * size for w, (size, _) in zip(weights, known, strict=True)) / total
    y = sum(w * seconds for w, (_, seconds) in zip(weights, known, strict=True)) / total
    spread = sum(w * (size - x) ** 2 for w, (size, _) in zip(weights, known, strict=True))
    slope = sum(w * (size - x) * (seconds - y) for w, (size, seconds) in zip(weights, known, strict=True)) / spread
    if slope <= 0:
        return None
    start = y - slope * x
    if len(known) < 3:
        return Line(start, slope, None, None)
    beside = sum(w * (seconds - start - slope * size) ** 2 for w, (size, seconds) in zip(weights, known, strict=True))
    variance = beside / (len(known) - 2)
    return Line(start, slope, math.sqrt(variance * (1 / total + x**2 / spread)), math.sqrt(variance / spread))
