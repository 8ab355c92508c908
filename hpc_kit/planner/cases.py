"""Measured runs and predictions as CSV: the batch mode of `hpc-kit plan`.

A cell that is empty is not known. Where a framework or a generation of hardware has a usual value it is taken, and the
row's note says so; where there is none, nothing is predicted.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from hpc_kit.errors import SpecError, page
from hpc_kit.planner.constants import Rates
from hpc_kit.planner.layout import Run, stages
from hpc_kit.planner.memory import Memory, peak_memory, stage_memory
from hpc_kit.planner.rows import Case
from hpc_kit.planner.step_time import step_time
from hpc_kit.planner.unsaid import fits, rates_of

COLUMNS = ("case_id", "step_time_s", "peak_memory_gib", "fits")
NEEDED = ("case_id", "layers", "hidden", "seq_len", "gpu", "gpus", "dp", "tp", "pp", "global_batch")
FIRST_STAGE = frozenset({"nanotron"})
"""Frameworks whose reported memory is rank 0's."""


class Prediction(Struct, frozen=True):
    """What is said of a row; None: not known."""

    case_id: str
    step_time: float | None
    memory_gib: float | None
    fits: bool | None
    notes: tuple[str, ...] = ()


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a cases file.

    Raises:
        SpecError: It cannot be read, lacks a column, or names a case twice.
    """
    try:
        columns, rows = _table(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(
            f"cannot read {path}",
            found=str(error),
            remedy=f"a CSV file with the columns that {page('planner.md')} lists",
        ) from error
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise SpecError(
            f"{path} has no column {', '.join(missing)}",
            found=", ".join(columns) or "an empty file",
            remedy=f"the columns of {page('planner.md')}",
        )
    seen: set[str] = set()
    for line, row in rows.items():
        if not row["case_id"]:
            raise SpecError(f"{path}, line {line}: no case_id", remedy="a name of its own for each row")
        if row["case_id"] in seen:
            raise SpecError(f"{path}, line {line}: case_id {row['case_id']} appears twice", remedy="keep one")
        seen.add(row["case_id"])
    return list(rows.values())


def _table(path: Path) -> tuple[list[str], dict[int, dict[str, str]]]:
    """Columns, and rows by their line; separated by commas, semicolons or tabs."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        separator = max(",;\t", key=file.readline().count)
        file.seek(0)
        reader = csv.DictReader(file, delimiter=separator)
        columns = [name.strip().lower() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
        # A spreadsheet leaves lines of commas only.
        rows = {line: row for line, row in enumerate(reader, start=2) if any(row.values())}
    return columns, {line: {**row, "case_id": (row.get("case_id") or "").strip()} for line, row in rows.items()}


def reported_memory(run: Run, rates: Rates) -> Memory:
    """The memory that the run's framework reports: of rank 0 or of the GPU that needs most."""
    if run.framework in FIRST_STAGE:
        return stage_memory(run, rates, stages(run.model, run.pp, by_cost=bool(rates.by_cost))[0])
    return peak_memory(run, rates)


def filled_share(run: Run, rates: Rates) -> float | None:
    """Peak memory as a share of the GPU's; None where that is not known."""
    memory = run.machine.gpu.memory
    return peak_memory(run, rates).total / memory if memory else None


def predict(one: Case) -> Prediction:
    """Time, memory and fit of a case; numbers that lead to no finite time are no prediction."""
    run = one.run
    if run is None:
        return Prediction(one.case_id, None, None, None, one.assumed)
    rates = rates_of(run)
    try:
        time = step_time(run, rates, filled_share(run, rates) or 0.0).total
        memory = reported_memory(run, rates).gib
    except (ArithmeticError, ValueError) as error:
        return Prediction(one.case_id, None, None, None, (f"its numbers cannot be reckoned with: {error}",))
    if not (0 < time < math.inf and 0 < memory < math.inf):
        return Prediction(one.case_id, None, None, None, (f"its numbers lead to {time:g} s and {memory:g} GiB",))
    return Prediction(one.case_id, time, memory, fits(run, rates), one.assumed)


def write(path: Path, predictions: Iterable[Prediction]) -> None:
    """The predictions as a CSV file; what is not known stays empty.

    Raises:
        SpecError: The file cannot be written.
    """
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for one in predictions:
                writer.writerow([one.case_id, *map(_cell, (one.step_time, one.memory_gib, one.fits))])
    except OSError as error:
        raise SpecError(f"cannot write {path}", found=str(error), remedy="a folder that exists") from error


def _cell(value: float | bool | None) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value:.6g}"
