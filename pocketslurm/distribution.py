"""Distributes the tasks of a step to nodes as Slurm does: block, cyclic and plane.

Everything here is arithmetic. A *slot* is room for one task; a node with 8 CPUs and 2 CPUs a task has 4. More tasks
than slots are allowed, every node then takes its share of the excess.
"""

from __future__ import annotations

from itertools import accumulate, count, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpc_kit.slurm.option_values import Distribution


def distribute_tasks(ntasks: int, slots: Sequence[int], distribution: Distribution) -> list[list[int]]:
    """Return the task numbers of each node by a distribution other than "arbitrary".

    >>> from hpc_kit.slurm.option_values import parse_distribution as parse
    >>> distribute_tasks(5, [2, 2, 2], parse("block")), distribute_tasks(5, [2, 2, 2], parse("cyclic"))
    ([[0, 1], [2, 3], [4]], [[0, 3], [1, 4], [2]])
    """
    slots = [max(1, room) for room in slots]
    if distribution.nodes == "cyclic":
        return _cyclic(ntasks, slots)
    if distribution.nodes == "plane":
        return _plane(ntasks, slots, distribution.plane_size or 1)
    counts = _even(ntasks, slots)
    return [list(range(first, last)) for first, last in pairwise(accumulate(counts, initial=0))]


def _even(ntasks: int, slots: Sequence[int]) -> list[int]:
    """Return tasks per node: one to each node round robin while it has free slots, then round robin without limit."""
    counts = [0] * len(slots)
    left = ntasks
    for turn in count():
        for node, room in enumerate(slots):
            if left and (turn < room or turn >= max(slots)):
                counts[node] += 1
                left -= 1
        if not left:
            break
    return counts


def _cyclic(ntasks: int, slots: Sequence[int]) -> list[list[int]]:
    excess = -(-max(0, ntasks - sum(slots)) // len(slots))
    nodes: list[list[int]] = [[] for _ in slots]
    task = 0
    for turn in range(max(slots) + excess):
        for node, room in enumerate(slots):
            if task < ntasks and turn < room + excess:
                nodes[node].append(task)
                task += 1
    return nodes


def _plane(ntasks: int, slots: Sequence[int], size: int) -> list[list[int]]:
    counts = _plane_counts(ntasks, slots, size)
    nodes: list[list[int]] = [[] for _ in slots]
    task = 0
    while task < ntasks:
        for node, most in zip(nodes, counts, strict=True):
            block = min(size, most - len(node))
            node.extend(range(task, task + block))
            task += block
    return nodes


def _plane_counts(ntasks: int, slots: Sequence[int], size: int) -> list[int]:
    """Return tasks per node: one each, then blocks of `size` round robin, first to nodes with free slots."""
    counts = [int(node < ntasks) for node in range(len(slots))]
    left = ntasks - sum(counts)
    taken, full = 1, False  # each node has one task of its first block already
    while left:
        for node, room in enumerate(slots):
            block = min(size - taken, left)
            block = block if full else max(0, min(block, room - counts[node]))
            counts[node] += block
            left -= block
        full = all(tasks >= room for tasks, room in zip(counts, slots, strict=True))
        taken = 0
    return counts
