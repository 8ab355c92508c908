"""Fits the planner's constants to measured runs, and measures their errors on runs that were left out.

    python -m bench.planner.fit CASES.csv LABELS.csv [--write] [--cross OUT.csv]

Levenberg-Marquardt on the logarithms of step time and peak memory; the width of its prior limits every constant.
`--cross` leaves out whole models or whole GPU counts, part by part, and predicts them from the rest. `--write` changes
hpc_kit/planner/constants.toml: the constants, or with `--cross` the errors of the runs that were left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.planner.parameters import FIXED, FREE, Parameter, expected_errors, render, rendered_errors
from hpc_kit.planner import constants
from hpc_kit.planner.cases import PlannerCase, filled_share, fits_memory, parse_case, read_cases, reported_memory
from hpc_kit.planner.constants import CONSTANTS_FILE, Constants, select_constants
from hpc_kit.planner.hardware import GIB
from hpc_kit.planner.layout import TrainingLayout
from hpc_kit.planner.memory import peak_memory
from hpc_kit.planner.step_time import step_time

Array = NDArray[np.float64]


@dataclass
class Row:
    """A measured run."""

    case_id: str
    group: str
    layout: TrainingLayout
    one: PlannerCase
    model: str
    time: float | None
    memory: float | None
    fits: bool | None
    weight: float


def kinds(run: TrainingLayout) -> tuple[str, str, str]:
    return run.machine.gpu.generation, run.machine.fabric, run.framework


def key_for(name: str, run: TrainingLayout, known: Collection[str]) -> str:
    """Return the key of the constant that applies to a run."""
    own = [f"{name}.{kind}" for kind in kinds(run) if f"{name}.{kind}" in known]
    return own[-1] if own else name


AVERAGES = {"dgxc", "megatron_h100", "recompute_2205", "sc21_table1", "torchtitan"}
"""Sets of published tables, each run of which is the mean of a long one: it counts twice."""


def load(cases: Path, labels: Path) -> list[Row]:
    """Read the runs that can be predicted, with their measured values.

    A run weighs 1 / sqrt(runs of its set), so that large sets do not dominate. The weight stays when other runs of the
    set are left out.
    """
    measured = {}
    with labels.open(newline="") as file:
        for label in csv.DictReader(file):
            measured[label["case_id"]] = label
    count = Counter(row["set"] for row in read_cases(cases))
    rows = []
    for row in read_cases(cases):
        one, label = parse_case(row), measured[row["case_id"]]
        if one.layout is None:
            continue
        rows.append(
            Row(
                row["case_id"],
                row["set"],
                one.layout,
                one,
                row["model_name"],
                float(label["step_time_s"]) if label["time_ok"] == "true" and label["step_time_s"] else None,
                float(label["peak_memory_gib"]) if label["peak_memory_gib"] else None,
                {"true": True, "false": False}.get(label["fits"]),
                (2.0 if row["set"] in AVERAGES else 1.0) / math.sqrt(count[row["set"]]),
            )
        )
    return rows


ALL_ROWS = 6
"""Rounds after which a constant is varied on all its rows again, not only on those that changed with it."""


class Problem:
    """Residuals of one quantity over rows; `rows_of` lists the rows that depend on each constant."""

    def __init__(
        self,
        rows: Sequence[Row],
        free: Sequence[Parameter],
        start: dict[str, float],
        predicted: Callable[[TrainingLayout, Constants], float],
        measured: Callable[[Row], float],
    ) -> None:
        self.rows, self.free, self.values = rows, free, dict(start)
        self.predicted = predicted
        self.target = np.log([measured(row) for row in rows])
        self.weight = np.array([row.weight for row in rows])
        self.weight *= len({row.group for row in rows}) / self.weight.sum()
        known = self.values.keys() | {p.key for p in free}
        self.rows_of = [
            np.array([i for i, row in enumerate(rows) if key_for(p.name, row.layout, known) == p.key], dtype=int)
            for p in free
        ]

    def _of(self, at: Array) -> dict[str, float]:
        return {**self.values, **{p.key: p.value(x) for p, x in zip(self.free, at, strict=True)}}

    def predict(self, at: Array, which: Sequence[int] | NDArray[np.int64]) -> Array:
        values = self._of(at)
        known: dict[tuple[str, ...], Constants] = {}
        out = []
        for index in which:
            run = self.rows[index].layout
            kind = kinds(run)
            if kind not in known:
                known[kind] = select_constants(values, *kind)
            out.append(math.log(max(1e-9, self.predicted(run, known[kind]))))
        return np.array(out)

    def solve(self, *, rounds: int, scale: float = 0.04, spread: float = 0.10) -> tuple[dict[str, float], Array]:
        """Return the constants, and their standard errors in the transformed space.

        `scale` turns L1 into L2 near zero; `spread` is the error expected of one set, against which priors are weighed.
        """
        at = np.array([p.transformed(self.values.get(p.key, p.start)) for p in self.free])
        prior = np.array([p.transformed(p.start) for p in self.free])
        width = np.array([p.width for p in self.free])
        all_rows = np.arange(len(self.rows))
        damp, best = 1e-2, math.inf
        error = np.zeros(len(at))
        base = self.predict(at, all_rows)

        def cost(residual: Array, here: Array) -> float:
            soft = np.sqrt(residual**2 + scale**2)
            return float((self.weight * soft).sum() / spread + 0.5 * (((here - prior) / width) ** 2).sum() * 0.02)

        best = cost(base - self.target, at)
        for number in range(rounds):
            jacobian = np.zeros((len(self.rows), len(at)))
            if number % ALL_ROWS == 0:
                looked = list(self.rows_of)
            for column, rows in enumerate(looked):
                moved = at.copy()
                moved[column] += 1e-4
                if len(rows):
                    slopes = (self.predict(moved, rows) - base[rows]) / 1e-4
                    jacobian[rows, column] = slopes
                    looked[column] = rows[slopes != 0]
            residual = base - self.target
            weight = self.weight / np.sqrt(residual**2 + scale**2) / spread
            normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(0.02 / width**2)
            slope = jacobian.T @ (weight * residual) + 0.02 * (at - prior) / width**2
            error = np.sqrt(np.diag(np.linalg.inv(normal)) / 20)
            before = best
            for _ in range(8):
                step = np.linalg.solve(normal + damp * np.diag(np.diag(normal)), slope)
                trial = at - np.clip(step, -0.7, 0.7)
                moved_base = self.predict(trial, all_rows)
                value = cost(moved_base - self.target, trial)
                if value < best:
                    at, base, best, damp = trial, moved_base, value, max(damp / 5, 1e-6)
                    break
                damp *= 5
            if before - best < 1e-4 * before:
                break
        return self._of(at), error


def time_problem(rows: Sequence[Row], start: dict[str, float]) -> Problem:
    """Return the problem of the step times; `start` contains the fitted constants of memory, which decide the fill."""
    timed = [row for row in rows if row.time is not None]
    free = [p for p in FREE if p.about == "time"]
    filled = {
        id(row.layout): filled_share(row.layout, select_constants(start, *kinds(row.layout))) or 0.0 for row in timed
    }

    def predicted(run: TrainingLayout, k: Constants) -> float:
        return step_time(run, k, filled[id(run)]).total

    return Problem(timed, free, start, predicted, lambda row: row.time or 0.0)


HELD = 0.88
FOLDS = 5
Guesses = dict[str, tuple[float, float, bool]]


def memory_problem(rows: Sequence[Row], start: dict[str, float]) -> Problem:
    """Return the problem of the peak memory. Runs without a measured peak must fit."""
    sized = [row for row in rows if row.memory is not None or (row.fits and row.layout.machine.gpu.memory)]
    free = [p for p in FREE if p.about == "memory"]
    unmeasured = {id(row.layout) for row in sized if row.memory is None}

    def predicted(run: TrainingLayout, k: Constants) -> float:
        if id(run) in unmeasured:
            return max(peak_memory(run, k).total, HELD * run.machine.gpu.memory) / GIB
        return reported_memory(run, k).gib

    def measured(row: Row) -> float:
        return row.memory or HELD * row.layout.machine.gpu.memory / GIB

    return Problem(sized, free, start, predicted, measured)


def usable(rows: Sequence[Row], values: dict[str, float]) -> float:
    """Return the share of memory at which most answers are right; a false fit counts twice (it wastes a queue slot).

    Only the sweep with runs out of memory decides, because its framework has its own waste.
    """
    tried = [row for row in rows if row.fits is not None and row.layout.machine.gpu.memory]
    shares = []
    for row in tried:
        peak = (
            peak_memory(row.layout, select_constants(values, *kinds(row.layout))).total / row.layout.machine.gpu.memory
        )
        shares.append((peak, row.fits, row.group))
    swept = [s for s in shares if s[2] == "ultrascale"]

    def loss(limit: float) -> float:
        return sum((2.0 if not fits else 1.0) * ((peak <= limit) != fits) for peak, fits, _ in swept)

    options = [0.70 + 0.005 * i for i in range(70)]
    least = min(map(loss, options))
    best = [option for option in options if loss(option) == least]
    return best[len(best) // 2]


def fit(rows: Sequence[Row], start: dict[str, float], *, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    values, memory_error = memory_problem(rows, start).solve(rounds=rounds)
    if any(row.fits is False for row in rows):
        values["usable.nanotron"] = usable(rows, values)
    values, time_error = time_problem(rows, values).solve(rounds=rounds)
    named = [p for p in FREE if p.about == "time"], [p for p in FREE if p.about == "memory"]
    errors = {
        p.key: float(e)
        for group, error in zip(named, (time_error, memory_error), strict=True)
        for p, e in zip(group, error, strict=True)
    }
    return values, errors


def predictions(rows: Sequence[Row], values: dict[str, float]) -> Guesses:
    out = {}
    for row in rows:
        k = select_constants(values, *kinds(row.layout))
        out[row.case_id] = (
            step_time(row.layout, k, filled_share(row.layout, k) or 0.0).total,
            reported_memory(row.layout, k).gib,
            fits_memory(row.layout, k),
        )
    return out


def table(rows: Sequence[Row], guesses: Guesses) -> str:
    lines = []
    for name in sorted({row.group for row in rows}):
        mine = [row for row in rows if row.group == name and row.case_id in guesses]
        time = [abs(guesses[r.case_id][0] / r.time - 1) for r in mine if r.time]
        bias = [guesses[r.case_id][0] / r.time - 1 for r in mine if r.time]
        memory = [abs(guesses[r.case_id][1] / r.memory - 1) for r in mine if r.memory]
        text = (
            f"{name:15} time n {len(time):4} {np.mean(time):7.1%} ({np.median(time):6.1%}) bias {np.mean(bias):+7.1%}"
        )
        if memory:
            text += f"   memory {np.mean(memory):7.1%} ({np.median(memory):6.1%})"
        lines.append(text)
    return "\n".join(lines)


def expected(rows: Sequence[Row], guesses: Guesses) -> dict[str, Any]:
    """Return the errors of predicted runs in the form of constants.toml."""
    return expected_errors(
        [
            (
                row.group,
                row.layout,
                abs(guesses[row.case_id][0] / row.time - 1) if row.time else None,
                abs(guesses[row.case_id][1] / row.memory - 1) if row.memory else None,
            )
            for row in rows
            if row.case_id in guesses
        ]
    )


def write_predictions(path: Path, guesses: Guesses) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["case_id", "step_time_s", "peak_memory_gib", "fits"])
        for case_id, (time, memory, fitting) in guesses.items():
            out.writerow([case_id, f"{time:.6g}", f"{memory:.6g}", str(fitting).lower()])


def folds(rows: Sequence[Row], by: str) -> list[set[str]]:
    """Return five parts, each with whole models, GPU counts or layouts (tp and pp) of every set, or with one tp."""
    keys: dict[str, Callable[[Row], float | str]] = {
        "models": lambda row: row.model,
        "gpus": lambda row: row.layout.gpus,
        "tp": lambda row: row.layout.tp,
        "layouts": lambda row: f"{row.layout.tp} {row.layout.pp}",
    }
    order = [by, *(name for name in keys if name != by)]
    parts: list[set[str]] = [set() for _ in range(FOLDS)]
    for name in sorted({row.group for row in rows}):
        mine = [row for row in rows if row.group == name]
        for kind in order:
            known = sorted({keys[kind](row) for row in mine}, key=str)
            if len(known) > 1:
                for row in mine:
                    parts[known.index(keys[kind](row)) % FOLDS].add(row.case_id)
                break
    return parts


def cross(rows: Sequence[Row], start: dict[str, float], rounds: int, by: str) -> Guesses:
    """Predict each row with constants that were fitted without its model (or GPU count)."""
    out: Guesses = {}
    for number, left in enumerate(folds(rows, by), start=1):
        values, _ = fit([row for row in rows if row.case_id not in left], start, rounds=rounds)
        out |= predictions([row for row in rows if row.case_id in left], values)
        print(f"part {number}: {len(left)} left out", file=sys.stderr, flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--start", type=Path, help="constants of an earlier fit (JSON) to begin with")
    parser.add_argument("--keep", type=Path, help="write the constants as JSON")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--cross", type=Path, help="predictions of runs left out, as CSV for the scorer")
    parser.add_argument("--by", choices=("models", "gpus", "layouts"), default="models", help="what --cross leaves out")
    parser.add_argument("--predictions", type=Path)
    given = parser.parse_args()
    rows = load(given.cases, given.labels)
    start = {**FIXED, **{p.key: p.start for p in FREE}}
    if given.start and given.start.exists():
        start |= {
            k: v
            for k, v in json.loads(given.start.read_text()).items()
            if k in {p.key for p in FREE} | {"usable.nanotron"}
        }
    if given.cross:
        others = cross(rows, start, given.rounds, given.by)
        print("left out\n" + table(rows, others))
        write_predictions(given.cross, others)
        if given.write:
            before, _, _ = CONSTANTS_FILE.read_text().partition("[error]")
            CONSTANTS_FILE.write_text(before + rendered_errors(expected(rows, others)))
        return
    values, errors = fit(rows, start, rounds=given.rounds)
    guesses = predictions(rows, values)
    for p in FREE:
        print(f"  {p.key:32} {values[p.key]:12.5g}  prior {p.start:10.4g}  +- {errors[p.key]:.2f}")
    print("usable.nanotron", values["usable.nanotron"])
    print(table(rows, guesses))
    if given.keep:
        given.keep.write_text(json.dumps(values, indent=1))
    if given.write:
        CONSTANTS_FILE.write_text(render(values, errors, len(rows), constants.constants_table()["error"]))
    if given.predictions:
        write_predictions(given.predictions, guesses)


if __name__ == "__main__":
    main()
