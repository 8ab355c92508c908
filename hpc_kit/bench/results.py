"""Results of a benchmark: rows with their spread, the machine, and plots; numbers with units.

In JSON a row is flat, `{**labels, **values, "spread": {...}}`; `columns` names the measured ones.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from hpc_kit.bench.machine import MeasuredMachine
from hpc_kit.errors import SpecError, explain_file_errors

FORMAT = 1
SPREAD = "spread"

Value = str | int | float | bool | None
"""Value of a label or a parameter."""


class Column(Struct, frozen=True, kw_only=True):
    """A measured quantity."""

    unit: str = ""
    """s, B, GB/s, ...; seconds and bytes are shown with a prefix."""
    better: Literal["lower", "higher", "none"] = "lower"
    title: str = ""
    """Name for readers, if the column's own name is unclear."""
    kind: Literal["measured", "counted", "reckoned"] = "measured"
    """counted: exact, so that any difference matters. reckoned: computed from other columns, which are compared
    instead."""


class Spread(Struct, frozen=True, kw_only=True):
    """Spread behind a median: quartiles, standard deviation, and the numbers of repeats and warm-ups."""

    low: float
    high: float
    std: float
    repeats: int
    warmup: int = 0


class ResultRow(Struct, frozen=True, kw_only=True):
    """One row: its labels and the medians."""

    labels: dict[str, Value]
    values: dict[str, float]
    spread: dict[str, Spread] = {}


class Plot(Struct, frozen=True, kw_only=True):
    """A plot of rows: one column as lines or bars with quartiles as error bars, or stacked columns.

    Attributes:
        name: Part of the file names, after the name of the benchmark.
        x: Label of the x axis.
        y: Columns; several only if stacked.
        series: Labels whose values distinguish lines or bars.
        where: Label values of the rows to draw; a tuple allows several values.
        marks: Dotted horizontal lines by name: `{"one device": 3.75}`.
    """

    name: str
    title: str
    x: str
    y: tuple[str, ...]
    kind: Literal["lines", "bars", "stacked"] = "lines"
    series: tuple[str, ...] = ()
    where: Mapping[str, Value | tuple[Value, ...]] = {}
    log_x: bool = False
    log_y: bool = False
    marks: dict[str, float] = {}
    x_title: str = ""
    y_title: str = ""


class BenchResult(Struct, kw_only=True):
    """The result of one benchmark.

    It is `interrupted` until the end, so that the file of a killed benchmark is marked. `missing` names parts that
    could not be measured; notes give the reasons.
    """

    bench: str
    title: str
    command: list[str]
    started: str
    machine: MeasuredMachine
    columns: dict[str, Column]
    results: list[ResultRow] = []
    parameters: dict[str, Any] = {}
    ended: str = ""
    interrupted: bool = True
    plots: list[Plot] = []
    notes: list[str] = []
    missing: list[str] = []
    hpc_kit: str = ""
    format: int = FORMAT


def encode_result(document: BenchResult) -> bytes:
    """Encode a result as JSON; nan and inf become null."""
    whole = msgspec.to_builtins(document)
    whole["results"] = [
        {**row["labels"], **row["values"], **({SPREAD: row["spread"]} if row["spread"] else {})}
        for row in whole["results"]
    ]
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def decode_result(data: bytes | str) -> BenchResult:
    """Decode a result.

    Raises:
        msgspec.MsgspecError: The data is not the JSON of a result.
    """
    whole = msgspec.json.decode(data)
    if isinstance(whole, dict) and isinstance(whole.get("columns"), dict) and isinstance(whole.get("results"), list):
        whole["results"] = [_unflatten_row(each, set(whole["columns"])) for each in whole["results"]]
    return msgspec.convert(whole, BenchResult)


def _unflatten_row(flat: object, measured: set[str]) -> object:
    if not isinstance(flat, dict):
        return flat
    return {
        "labels": {name: value for name, value in flat.items() if name not in measured and name != SPREAD},
        "values": {name: value for name, value in flat.items() if name in measured and value is not None},
        "spread": flat.get(SPREAD, {}),
    }


def read_result(path: Path) -> BenchResult:
    """Read a result from a file.

    Raises:
        SpecError: The file is missing, is not a result, or was written by a later hpc_kit.
    """
    remedy = "hpc-kit bench comm --json > A.json writes one; hpc-kit bench --help lists the others"
    what = f"cannot read {path} as the result of a bench"
    with explain_file_errors(SpecError, what, remedy, also=(msgspec.MsgspecError,)):
        document = decode_result(path.read_bytes())
    if document.format > FORMAT:
        raise SpecError(
            f"{path} is the result of a later hpc_kit",
            found=f"format {document.format} of hpc_kit {document.hpc_kit}; this one reads {FORMAT}",
            remedy="pip install --upgrade hpc_kit",
        )
    return document


SIGNIFICANT_ERRORS = 2.0
"""Standard errors between two values that count as different."""

_MEDIAN_FACTOR = math.sqrt(math.pi / 2)
"""Standard error of a median, in units of that of the mean, for a normal distribution."""
_QUARTILE_DISTANCE = 1.349
"""Distance between the quartiles of a normal distribution, in standard deviations."""


def summarize(values: Sequence[float], warmup: int = 0) -> tuple[float, Spread]:
    """Return the median of repeats and their spread; `warmup` counts earlier runs that do not count."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return statistics.median(values), Spread(
        low=low, high=high, std=statistics.pstdev(values), repeats=len(values), warmup=warmup
    )


def median_error(spread: Spread | None) -> float | None:
    """Return the standard error of a median, or None with fewer than three repeats.

    It is computed from the quartiles, so that a single noisy repeat has little effect.
    """
    if spread is None or spread.repeats < 3:
        return None
    # Quartiles of a few values lie too close together, on average by this factor (simulated: within 9 % from 3 on).
    few = spread.repeats / (spread.repeats - 1)
    return few * _MEDIAN_FACTOR * (spread.high - spread.low) / _QUARTILE_DISTANCE / math.sqrt(spread.repeats)


def column_title(name: str, column: Column | None) -> str:
    """Return the name of a column for readers."""
    return (column.title if column else "") or name.replace("_", " ")


_SECOND_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_quantity(value: float, unit: str, digits: int = 4) -> str:
    """Format `412.3 us`, `64 MiB`, `0.31 GB/s`: seconds and bytes get a prefix."""
    number, shown = scale_to_unit(value, unit)
    return f"{format_number(number, digits)} {shown}".rstrip()


def scale_to_unit(value: float, unit: str) -> tuple[float, str]:
    """Scale seconds or bytes to a suitable unit; other units stay."""
    if unit == "s":
        size, shown = next(((size, name) for size, name in _SECOND_UNITS if abs(value) >= size), _SECOND_UNITS[-1])
        return (value / size, shown) if value else (value, unit)
    if unit == "B":
        # frexp returns the exponent of two, without the rounding errors of a logarithm.
        power = min(len(_BYTE_UNITS) - 1, max(0, math.frexp(abs(value))[1] - 1) // 10) if math.isfinite(value) else 0
        return value / 1024**power, _BYTE_UNITS[power]
    return value, unit


def format_number(number: float, digits: int = 4) -> str:
    """Format a number with `digits` digits, without an exponent unless needed: `0.0412`, `1234`."""
    # Whole numbers, nan and inf have no decimals.
    if not math.isfinite(number) or number == int(number):
        return f"{number:.0f}"
    text = f"{number:.{digits}g}"
    return f"{number:.0f}" if "e+" in text else text


def format_label(value: Value, name: str = "") -> str:
    """Format a label; labels named bytes or size are formatted as bytes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in {"bytes", "size"} and isinstance(value, int | float):
        return format_quantity(value, "B")
    if isinstance(value, float):
        return format_number(value)
    return "" if value is None else str(value)
