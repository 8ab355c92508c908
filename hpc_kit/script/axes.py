"""Who works with whom, in words, for the head of a script."""

from __future__ import annotations

from typing import NamedTuple

from hpc_kit.spec.job import Axis
from hpc_kit.spec.layout_checks import node_of
from hpc_kit.spec.resolve import Resolved

SHOWN = 4
"""Groups of an axis that are listed; the others follow the same pattern."""

WHAT: dict[Axis, str] = {
    "pp": "stages of the layers, in a row",
    "dp": "replicas, each with its part of the batch",
    "cp": "parts of each sample",
    "tp": "parts of each matrix",
}


class Row(NamedTuple):
    """One axis of the mesh."""

    name: str
    degree: int
    what: str
    groups: str
    """`ranks 0-1 | 2-3, each on one node`."""


def axes(resolved: Resolved) -> list[Row]:
    """The axes along which there is more than one rank, slowest first; of a world that nothing splits, dp."""
    layout, size = resolved.job.layout, resolved.world_size
    degrees = layout.degrees(size)
    named = [axis for axis, degree in degrees.items() if degree > 1] or ["dp"]
    return [Row(axis, degrees[axis], _what(resolved, axis), _groups(resolved, axis)) for axis in named]


def _what(resolved: Resolved, axis: Axis) -> str:
    layout = resolved.job.layout
    if axis != "dp" or not layout.zero:
        return WHAT[axis]
    shards = layout.dp_shard or layout.replicas(resolved.world_size)
    kept = {1: "optimizer state", 2: "gradients and optimizer state", 3: "parameters, gradients and optimizer state"}
    return f"each with its part of the batch; every {shards} share {kept[layout.zero]}"


def _groups(resolved: Resolved, axis: Axis) -> str:
    groups = resolved.job.layout.groups(axis, resolved.world_size)
    text = " | ".join(_ranks(group) for group in groups[:SHOWN])
    more = f" | ... ({len(groups)} groups)" if len(groups) > SHOWN else ""
    return f"ranks {text}{more}{_where(resolved, groups)}"


def _ranks(group: range) -> str:
    if len(group) == 1:
        return str(group[0])
    if group.step == 1:
        return f"{group[0]}-{group[-1]}"
    listed = [str(rank) for rank in group]
    return ",".join(listed if len(listed) <= 4 else [*listed[:2], "...", listed[-1]])


def _where(resolved: Resolved, groups: list[range]) -> str:
    spans = _spans(resolved, groups)
    if spans is None or resolved.nodes == 1:
        return ""
    return ", each on one node" if spans == 1 else f", across {spans} nodes"


def _spans(resolved: Resolved, groups: list[range]) -> int | None:
    """Over how many nodes a group lies at most; None where that is not known."""
    per_node = resolved.ranks_per_node
    place = node_of(resolved.job, resolved.nodes, per_node) if per_node else None
    return None if place is None else max(len({place(rank) for rank in group}) for group in groups)


def spans(resolved: Resolved, *names: Axis) -> int | None:
    """Over how many nodes groups of these axes lie at most; 0 where none has two ranks, None where it is not known."""
    layout, size = resolved.job.layout, resolved.world_size
    degrees = layout.degrees(size)
    each = [_spans(resolved, layout.groups(name, size)) for name in names if degrees[name] > 1]
    known = [number for number in each if number is not None]
    return max(known, default=0) if len(known) == len(each) else None
