"""Compares two results of one benchmark row by row: the ratio and its uncertainty."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from hpc_kit.bench.machine import MeasuredMachine
from hpc_kit.bench.option_checks import check_known_names
from hpc_kit.bench.results import SIGNIFICANT_ERRORS, BenchResult, Column, ResultRow, Value, format_label, median_error
from hpc_kit.errors import AnswerNo, SpecError
from hpc_kit.planner.calibration import LIBRARY
from hpc_kit.slurm.units import format_count

CONDITIONS = ("load", "machine")
"""Conditions that must match unless `--despite` allows a difference."""

MAX_LOAD_DIFFERENCE = 0.15
"""Maximum difference in the share of processors that were busy with other work."""


Verdict = Literal["better", "worse", "other", "same", "?"]
"""same: within the uncertainty. other: different, but neither is better. ?: unknown."""


class Ratio(NamedTuple):
    """One quantity of one row: the second result divided by the first."""

    labels: dict[str, Value]
    column: str
    first: float
    second: float
    ratio: float
    uncertainty: float | None
    """One standard error of the ratio; None with too few repeats."""
    verdict: Verdict


class Comparison(NamedTuple):
    """Ratios of the common rows, and the rows that only one result has."""

    ratios: tuple[Ratio, ...]
    only_first: int
    """Number of rows."""
    only_second: int
    notes: tuple[str, ...]
    labels_only_first: str = ""
    """Labels of these rows that no common row has: `algorithm ring, star`."""
    labels_only_second: str = ""


def compare_results(first: BenchResult, second: BenchResult, despite: Sequence[str] = ()) -> Comparison:
    """Divide the second result by the first. Conditions of `CONDITIONS` in `despite` may differ.

    Raises:
        SpecError: The results are of two different benchmarks, or a condition is unknown.
        AnswerNo: The load or the hosts differ, or no row is in both results.
    """
    if first.bench != second.bench:
        raise SpecError(
            "these are results of two benches",
            found=f"{first.bench} and {second.bench}",
            remedy="two results of one: hpc-kit bench compare A.json B.json",
        )
    check_known_names("condition", despite, CONDITIONS)
    if "machine" not in despite:
        _check_machines(first, second)
    notes = [f"the {word} was interrupted" for word, each in (("first", first), ("second", second)) if each.interrupted]
    notes += _compare_loads(first, second, refused="load" not in despite)
    versions, others = first.machine.versions, second.machine.versions
    notes += [
        f"{name}: {versions.get(name, 'none')} and {others.get(name, 'none')}"
        for name in {**versions, **others}
        if versions.get(name) != others.get(name)
    ]
    ours = {_row_key(row): row for row in first.results}
    theirs = {_row_key(row): row for row in second.results}
    both = [(ours[key], theirs[key]) for key in ours if key in theirs]
    if not both:
        raise AnswerNo(
            "no row is in both results",
            found=f"{len(ours)} and {len(theirs)} rows",
            remedy="measure both with the same options; the command of each is in its file",
        )
    return Comparison(
        ratios=tuple(ratio for pair in both for ratio in _ratios(*pair, first.columns)),
        only_first=len(ours) - len(both),
        only_second=len(theirs) - len(both),
        notes=tuple(notes),
        labels_only_first=_distinct_labels([row for key, row in ours.items() if key not in theirs], both),
        labels_only_second=_distinct_labels([row for key, row in theirs.items() if key not in ours], both),
    )


def _row_key(row: ResultRow) -> tuple[tuple[str, Value], ...]:
    # Rows have the label algorithm only if several algorithms were measured.
    return tuple(sorted(label for label in row.labels.items() if label != ("algorithm", LIBRARY)))


def _distinct_labels(alone: Sequence[ResultRow], both: Sequence[tuple[ResultRow, ResultRow]]) -> str:
    """Return the values of labels that no row in both results has."""
    common = {label for pair in both for row in pair for label in row.labels.items()}
    texts: dict[str, dict[str, None]] = {}
    for row in alone:
        for name, value in row.labels.items():
            if (name, value) not in common:
                texts.setdefault(name, {})[format_label(value, name)] = None
    return "; ".join(f"{name} {', '.join(each)}" for name, each in texts.items())


def _ratios(first: ResultRow, second: ResultRow, columns: dict[str, Column]) -> list[Ratio]:
    found = []
    for name, column in columns.items():
        one, other = first.values.get(name), second.values.get(name)
        if column.kind == "reckoned" or not one or other is None:
            continue
        ratio, uncertainty = other / one, 0.0 if column.kind == "counted" else None
        errors = [median_error(row.spread.get(name)) for row in (first, second)]
        if errors[0] is not None and errors[1] is not None and other:
            # Relative errors of independent values add up in squares.
            uncertainty = abs(ratio) * math.hypot(errors[0] / one, errors[1] / other)
        found.append(Ratio(first.labels, name, one, other, ratio, uncertainty, _verdict(ratio, uncertainty, column)))
    return found


def _verdict(ratio: float, uncertainty: float | None, column: Column) -> Verdict:
    if uncertainty is None:
        return "same" if ratio == 1 else "?"
    if abs(ratio - 1) <= SIGNIFICANT_ERRORS * uncertainty:
        return "same"
    if column.better == "none":
        return "other"
    return "better" if (ratio < 1) == (column.better == "lower") else "worse"


def _compare_loads(first: BenchResult, second: BenchResult, *, refused: bool) -> list[str]:
    """Return a note if the load differed in one of the measurements; load in between is unknown.

    Raises:
        AnswerNo: The load differs, and is `refused`.
    """
    one, other = _busy_shares(first.machine), _busy_shares(second.machine)
    found = [_describe_busy(busy) for busy in (one, other)]
    # One measurement may hit a short peak. The load differs only if the ranges of the two results are apart.
    if max(min(one), min(other)) - min(max(one), max(other)) > MAX_LOAD_DIFFERENCE and refused:
        raise AnswerNo(
            "the two were taken under different load",
            found="the first: {}\nthe second: {}".format(*found),
            remedy="measure both on an idle machine; or, to see the ratios in spite of it: --despite load",
        )
    if max(*one, *other) - min(*one, *other) <= MAX_LOAD_DIFFERENCE:
        return []
    return ["the load was not always alike: the first: {}; the second: {}".format(*found)]


def _describe_busy(shares: tuple[float, ...]) -> str:
    known = " and ".join(f"{share:.0%} {when}" for share, when in zip(shares, ("before", "after"), strict=False))
    return f"{known}, of its processors busy with other things"


def _busy_shares(machine: MeasuredMachine) -> tuple[float, ...]:
    """Return the busiest host's share before the benchmark and, if measured, after it."""
    before = max((host.before.busy for host in machine.hosts), default=0.0)
    after = [host.after.busy for host in machine.hosts if host.after]
    return (before, max(after)) if after else (before,)


def _check_machines(first: BenchResult, second: BenchResult) -> None:
    one, other = _describe_hosts(first.machine), _describe_hosts(second.machine)
    if one != other:
        raise AnswerNo(
            "the two were taken on different machines",
            found=f"{one}\n{other}",
            remedy="to see the ratios in spite of it: --despite machine",
        )


def _describe_hosts(machine: MeasuredMachine) -> str:
    """Return the kinds of hosts with their numbers, sorted: equal texts mean equal machines."""
    kinds = Counter(", ".join([f"{host.cores} x {host.cpu}", *host.gpus]) for host in machine.hosts)
    return "; ".join(f"{format_count(number, 'host')} of {kind}" for kind, number in sorted(kinds.items()))
