"""What a bench leaves: numbers with their spread, the machine that gave them, and how they are to be drawn.

In JSON a result is flat, `{**labels, **values, "spread": {...}}`: `columns` names those that were measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from hpc_kit.bench.machine import Machine
from hpc_kit.errors import SpecError

FORMAT = 1
SPREAD = "spread"

Value = str | int | float | bool | None
"""What a label or a parameter may be."""


class Column(Struct, frozen=True, kw_only=True):
    """A measured quantity."""

    unit: str = ""
    """s, B, GB/s, ...; seconds and bytes are shown with a fitting prefix."""
    better: Literal["lower", "higher", "none"] = "lower"
    title: str = ""
    """Its name for readers, where the column's own does not do."""
    kind: Literal["measured", "counted", "reckoned"] = "measured"
    """counted: exactly, so that any difference is one; reckoned: from others of its row, which are compared instead."""


class Spread(Struct, frozen=True, kw_only=True):
    """Behind a median: quartiles, standard deviation, how many repeats it is of, and those before them."""

    low: float
    high: float
    std: float
    repeats: int
    warmup: int = 0


class Row(Struct, frozen=True, kw_only=True):
    """One point: what it was taken for, and the medians."""

    labels: dict[str, Value]
    values: dict[str, float]
    spread: dict[str, Spread] = {}


class Plot(Struct, frozen=True, kw_only=True):
    """A picture of rows. lines and bars: one column, error bars from quartiles; stacked: columns on one another.

    Attributes:
        name: Of its files, behind the bench's.
        x: The label along the axis.
        y: Columns; one, but for stacked.
        series: The labels whose values tell lines, or bars side by side, apart.
        where: What the labels of a row must be for it to be drawn.
        marks: Dotted lines across, by what they mean: `{"one device": 3.75}`.
    """

    name: str
    title: str
    x: str
    y: tuple[str, ...]
    kind: Literal["lines", "bars", "stacked"] = "lines"
    series: tuple[str, ...] = ()
    where: dict[str, Value] = {}
    log_x: bool = False
    log_y: bool = False
    marks: dict[str, float] = {}
    x_title: str = ""
    y_title: str = ""


class Document(Struct, frozen=True, kw_only=True):
    """All of one bench; `interrupted` also while it is not over, so that what a killed one leaves is marked.

    What was asked for and could not be measured is named in `missing`, and a note says why.
    """

    bench: str
    title: str
    command: list[str]
    started: str
    machine: Machine
    columns: dict[str, Column]
    results: list[Row] = []
    parameters: dict[str, Any] = {}
    ended: str = ""
    interrupted: bool = True
    plots: list[Plot] = []
    notes: list[str] = []
    missing: list[str] = []
    hpc_kit: str = ""
    format: int = FORMAT


def entry(row: Row) -> dict[str, Any]:
    """A row as the flat object that it is in JSON."""
    spread = {SPREAD: msgspec.to_builtins(row.spread)} if row.spread else {}
    return {**row.labels, **row.values, **spread}


def encode(document: Document) -> bytes:
    """The JSON of a document; a number that is none (nan, inf) is null there."""
    whole = msgspec.to_builtins(document)
    whole["results"] = [entry(row) for row in document.results]
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def decode(data: bytes | str) -> Document:
    """Read a document back.

    Raises:
        msgspec.MsgspecError: It is no JSON, or no document of a bench.
    """
    whole = msgspec.json.decode(data)
    if isinstance(whole, dict) and isinstance(whole.get("columns"), dict) and isinstance(whole.get("results"), list):
        whole["results"] = [_split(each, set(whole["columns"])) for each in whole["results"]]
    return msgspec.convert(whole, Document)


def _split(flat: object, measured: set[str]) -> object:
    if not isinstance(flat, dict):
        return flat
    return {
        "labels": {name: value for name, value in flat.items() if name not in measured and name != SPREAD},
        "values": {name: value for name, value in flat.items() if name in measured and value is not None},
        "spread": flat.get(SPREAD, {}),
    }


def read(path: Path) -> Document:
    """The document in a file.

    Raises:
        SpecError: There is none, or the file holds something else, or is of a later hpc_kit.
    """
    try:
        document = decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise SpecError(
            f"cannot read {path} as the result of a bench",
            found=str(error),
            remedy="hpc-kit bench comm --json > A.json writes one; hpc-kit bench --help lists the others",
        ) from error
    if document.format > FORMAT:
        raise SpecError(
            f"{path} is the result of a later hpc_kit",
            found=f"format {document.format} of hpc_kit {document.hpc_kit}; this one knows {FORMAT}",
            remedy="pip install --upgrade hpc_kit",
        )
    return document
