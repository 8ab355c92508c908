"""Medians and what is behind them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hpc_kit.bench.results import Spread

SURE = 2.0
"""Standard errors by which two must differ to be called different."""

_OF_MEDIAN = math.sqrt(math.pi / 2)
"""The standard error of a median is that of a mean times this, where deviations are normal."""
_QUARTILES_APART = 1.349
"""Standard deviations between the quartiles of a normal distribution."""


def summary(values: Sequence[float], warmup: int = 0) -> tuple[float, Spread]:
    """The median of repeats, and their spread; `warmup` is how many came before and do not count."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return statistics.median(values), Spread(
        low=low, high=high, std=statistics.pstdev(values), repeats=len(values), warmup=warmup
    )


def uncertainty(spread: Spread | None) -> float | None:
    """The standard error of a median, by its quartiles: one repeat that met some noise does not count much.

    None where there are too few repeats to tell.
    """
    if spread is None or spread.repeats < 3:
        return None
    return _OF_MEDIAN * (spread.high - spread.low) / _QUARTILES_APART / math.sqrt(spread.repeats)
