"""What each link does: messages to and fro between two ranks, a straight line through their times."""

from __future__ import annotations

import statistics
from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.bench.quantity import plain, quantity
from hpc_kit.bench.results import Row, Value
from hpc_kit.planner.line_fit import fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpc_kit.bench.recorder import Sheet

INSIDE, ACROSS = "inside", "across"
"""Between two ranks of a node, and between nodes."""

MOST_PAIRS = 28
"""All pairs of eight ranks: with more ranks, one pair stands for each node and for each two nodes.

Where these are too many as well, so many of them, spread evenly.
"""


class Pair(NamedTuple):
    """Two ranks and what lies between them."""

    first: int
    second: int
    place: str
    link: str
    """`n1 0-1`, `n1-n2 0-2`: the hosts, the ranks."""


def pairs(hosts: Sequence[str]) -> list[Pair]:
    """The pairs to be measured.

    Args:
        hosts: The host of each rank.
    """
    everyone = list(combinations(range(len(hosts)), 2))
    if len(everyone) > MOST_PAIRS:
        inside, across = _by_hosts(hosts)
        kept = _evenly(inside, max(MOST_PAIRS // 4, MOST_PAIRS - len(across)))
        everyone = kept + _evenly(across, MOST_PAIRS - len(kept))
    return [_pair(one, other, hosts) for one, other in everyone]


def _by_hosts(hosts: Sequence[str]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """A pair of ranks for each host that has two, and one for each two hosts."""
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for one, other in combinations(range(len(hosts)), 2):
        found.setdefault(tuple(sorted((hosts[one], hosts[other]))), (one, other))
    inside = [pair for (first, second), pair in found.items() if first == second]
    return inside, [pair for (first, second), pair in found.items() if first != second]


def _evenly(all_of_them: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    number = len(all_of_them)
    return all_of_them if number <= most else [all_of_them[place * number // most] for place in range(most)]


def left_out(hosts: Sequence[str], measured: Sequence[Pair]) -> str:
    """A sentence on the nodes and pairs of nodes of which no link was measured; none where all were."""
    kinds = dict(zip((INSIDE, ACROSS), map(len, _by_hosts(hosts)), strict=True))
    seen = {
        kind: len({tuple(sorted((hosts[each.first], hosts[each.second]))) for each in measured if each.place == kind})
        for kind in kinds
    }
    if seen == kinds:
        return ""
    return (
        f"Links were measured inside {seen[INSIDE]} of {kinds[INSIDE]} nodes and between {seen[ACROSS]} of"
        f" {kinds[ACROSS]} pairs of nodes, spread evenly; the others may differ."
    )


def _pair(one: int, other: int, hosts: Sequence[str]) -> Pair:
    inside = hosts[one] == hosts[other]
    where = hosts[one] if inside else f"{hosts[one]}-{hosts[other]}"
    return Pair(one, other, INSIDE if inside else ACROSS, f"{where} {one}-{other}")


def labels(backend: str, pair: Pair) -> dict[str, Value]:
    """Of a link's rows."""
    return {"backend": backend, "link": pair.link, "place": pair.place}


def put_fits(rows: Iterable[Row], sheet: Sheet) -> None:
    """Add alpha and beta of every link, and a sentence on the two kinds of them.

    Args:
        rows: Of one message each way, with the labels of a link and `bytes`.
        sheet: Is filled in.
    """
    points: dict[tuple[Value, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        key = tuple(row.labels[name] for name in ("backend", "link", "place"))
        points[key].append((float(row.labels["bytes"] or 0), row.values["seconds"]))
    flat: dict[Value, list[str]] = defaultdict(list)
    of_kind: dict[tuple[Value, Value], list[tuple[float, float]]] = defaultdict(list)
    for (backend, link, place), measured in points.items():
        line = fit(measured)
        if line is None:
            flat[backend].append(str(link))
            continue
        values = {"alpha": line.start, "beta": line.slope * 1e9, "bandwidth": 1e-9 / line.slope}
        if line.start_error is not None and line.slope_error is not None:
            values |= {"alpha_error": line.start_error, "beta_error": line.slope_error * 1e9}
        sheet.put(Row(labels={"backend": backend, "link": link, "place": place}, values=values))
        of_kind[backend, place].append((line.start, 1e-9 / line.slope))
    for backend, names in flat.items():
        sheet.note(f"{backend}: no line through the times of {', '.join(names)}: they do not grow with the size.")
    for backend in dict.fromkeys(backend for backend, _ in of_kind):
        _compare(str(backend), {place: of_kind.get((backend, place), []) for place in (INSIDE, ACROSS)}, sheet)


def _compare(backend: str, kinds: dict[str, list[tuple[float, float]]], sheet: Sheet) -> None:
    """Inside a node against across nodes, the median link of each."""
    middle = {
        place: tuple(statistics.median(column) for column in zip(*found, strict=True))
        for place, found in kinds.items()
        if found
    }
    told = [
        f"{place}: alpha {quantity(alpha, 's', 3)}, {plain(bandwidth, 3)} GB/s"
        for place, (alpha, bandwidth) in middle.items()
    ]
    ratio = ""
    if len(middle) == 2:
        ratio = f"; inside a node {plain(middle[INSIDE][1] / middle[ACROSS][1], 3)} times the bandwidth"
    sheet.note(f"{backend}, the median link {'; '.join(told)}{ratio}.")
