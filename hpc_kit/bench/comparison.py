"""Two results of one bench, row by row: how many times as much, and how sure that is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from hpc_kit.bench.machine import Machine
from hpc_kit.bench.quantity import shown
from hpc_kit.bench.results import Column, Document, Row, Value
from hpc_kit.bench.sample import SURE, uncertainty
from hpc_kit.errors import AnswerNo, SpecError
from hpc_kit.planner.calibration import LIBRARY

CONDITIONS = ("load", "machine")
"""What must be alike, and can be said to be no matter: `--despite load`."""

MOST_APART = 0.15
"""Shares of a host's processors that were busy with other things may differ by so much."""


class Ratio(NamedTuple):
    """One quantity of one row: the second result over the first."""

    labels: dict[str, Value]
    column: str
    first: float
    second: float
    ratio: float
    uncertainty: float | None
    """One standard error of the ratio; None where there were too few repeats."""
    verdict: Literal["better", "worse", "other", "same", "?"]
    """same: within the uncertainty; other: it differs, and neither is better; ?: that cannot be told."""


class Comparison(NamedTuple):
    """All that two results have in common, and what they have not."""

    ratios: tuple[Ratio, ...]
    only_first: int
    """Rows."""
    only_second: int
    notes: tuple[str, ...]
    named_first: str = ""
    """What labels say of them that those in both do not: `algorithm ring, star`."""
    named_second: str = ""


def compare(first: Document, second: Document, despite: Sequence[str] = ()) -> Comparison:
    """The second result over the first.

    Args:
        first: The one to compare with.
        second: The other.
        despite: Of `CONDITIONS`, those that may differ.

    Raises:
        SpecError: They are of two benches, or a condition is none.
        AnswerNo: The hosts were not as busy with other things, or are other hosts, or no row is in both.
    """
    if first.bench != second.bench:
        raise SpecError(
            "these are results of two benches",
            found=f"{first.bench} and {second.bench}",
            remedy="two results of one: hpc-kit bench compare A.json B.json",
        )
    for name in despite:
        if name not in CONDITIONS:
            raise SpecError(f"unknown condition {name!r}", remedy=f"--despite {','.join(CONDITIONS)}")
    _refuse_machines(first, second, despite)
    _refuse_load(first, second, despite)
    ours = {_key(row): row for row in first.results}
    theirs = {_key(row): row for row in second.results}
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
        notes=(*_notes(first, second), *_from_nothing(both, first.columns)),
        named_first=_named([row for key, row in ours.items() if key not in theirs], both),
        named_second=_named([row for key, row in theirs.items() if key not in ours], both),
    )


def _key(row: Row) -> tuple[tuple[str, Value], ...]:
    # Where no other algorithm was asked for, rows do not say that theirs is the library's.
    return tuple(sorted(label for label in row.labels.items() if label != ("algorithm", LIBRARY)))


def _named(alone: Sequence[Row], both: Sequence[tuple[Row, Row]]) -> str:
    """The values of labels that no row in both has."""
    common = {label for pair in both for row in pair for label in row.labels.items()}
    values: dict[str, dict[Value, None]] = {}
    for name, value in (label for row in alone for label in row.labels.items() if label not in common):
        values.setdefault(name, {})[value] = None
    return "; ".join(f"{name} {', '.join(shown(value, name) for value in each)}" for name, each in values.items())


def _ratios(first: Row, second: Row, columns: dict[str, Column]) -> list[Ratio]:
    found = []
    for name, column in columns.items():
        one, other = first.values.get(name), second.values.get(name)
        if column.kind == "reckoned" or not one or other is None:
            continue
        ratio, sure = other / one, 0.0 if column.kind == "counted" else None
        errors = [uncertainty(row.spread.get(name)) for row in (first, second)]
        if errors[0] is not None and errors[1] is not None and other:
            sure = abs(ratio) * math.hypot(errors[0] / one, errors[1] / other)
        found.append(Ratio(first.labels, name, one, other, ratio, sure, _verdict(ratio, sure, column)))
    return found


def _from_nothing(pairs: Sequence[tuple[Row, Row]], columns: dict[str, Column]) -> tuple[str, ...]:
    """Of what is 0 in the first only there is no ratio: that is said instead."""
    compared = [name for name, column in columns.items() if column.kind != "reckoned"]
    names = [
        name for name in compared if any(one.values.get(name) == 0 != other.values.get(name, 0) for one, other in pairs)
    ]
    return (f"no ratio to 0, in some row: {', '.join(names)}",) if names else ()


def _verdict(ratio: float, sure: float | None, column: Column) -> Literal["better", "worse", "other", "same", "?"]:
    if sure is None:
        return "same" if ratio == 1 else "?"
    if abs(ratio - 1) <= SURE * sure:
        return "same"
    if column.better == "none":
        return "other"
    return "better" if (ratio < 1) == (column.better == "lower") else "worse"


def _refuse_load(first: Document, second: Document, despite: Sequence[str]) -> None:
    one, other = _busy(first.machine), _busy(second.machine)
    # One look may meet a hiccup: only where both looks at each are apart was the load surely another.
    if max(min(one), min(other)) - min(max(one), max(other)) > MOST_APART and "load" not in despite:
        raise AnswerNo(
            "the two were taken under different load",
            found=f"the first: {_looks(one)}\nthe second: {_looks(other)}",
            remedy="measure both on an idle machine; or, to see the ratios in spite of it: --despite load",
        )


def _busy(machine: Machine) -> tuple[float, ...]:
    """The busiest host's share before, and, where somebody looked, after."""
    before = max((host.before.busy for host in machine.hosts), default=0.0)
    after = [host.after.busy for host in machine.hosts if host.after]
    return (before, max(after)) if after else (before,)


def _looks(busy: Sequence[float]) -> str:
    looks = " and ".join(f"{share:.0%} {when}" for share, when in zip(busy, ("before", "after"), strict=False))
    return f"{looks}, of its processors busy with other things"


def _load_notes(first: Document, second: Document) -> list[str]:
    """What the looks at the load leave open: what came and went in between nobody has seen."""
    one, other = _busy(first.machine), _busy(second.machine)
    if max(*one, *other) - min(*one, *other) <= MOST_APART:
        return []
    return [f"the load was not always alike: the first: {_looks(one)}; the second: {_looks(other)}"]


def _refuse_machines(first: Document, second: Document, despite: Sequence[str]) -> None:
    one, other = (Counter(_kind(document.machine)) for document in (first, second))
    if one != other and "machine" not in despite:
        raise AnswerNo(
            "the two were taken on different machines",
            found=f"{_told(one)}\n{_told(other)}",
            remedy="to see the ratios in spite of it: --despite machine",
        )


def _kind(machine: Machine) -> list[str]:
    return [", ".join([f"{host.cores} x {host.cpu}", *host.gpus]) for host in machine.hosts]


def _told(kinds: Counter[str]) -> str:
    return "; ".join(f"{number} host{'s' * (number > 1)} of {kind}" for kind, number in kinds.items())


def _notes(first: Document, second: Document) -> tuple[str, ...]:
    notes = [f"the {word} was interrupted" for word, each in (("first", first), ("second", second)) if each.interrupted]
    notes += _load_notes(first, second)
    one, other = first.machine.versions, second.machine.versions
    notes += [
        f"{name}: {one.get(name, 'none')} and {other.get(name, 'none')}"
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    ]
    return tuple(notes)
