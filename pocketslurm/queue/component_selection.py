"""Nodes for the components of a heterogeneous job, which begin together and share none: arithmetic alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.queue.node_selection import allocate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pocketslurm.queue.job_size import Request
    from pocketslurm.queue.node_selection import Node, Share


class Part(NamedTuple):
    """A component: what it asks for, what is free for it, and its partition's usable nodes when nothing runs."""

    request: Request
    free: Sequence[Node]
    totals: Sequence[Node]


def places(parts: Sequence[Part]) -> list[list[Share]] | None:
    """The shares of each component, or None while they do not fit at once.

    Where they do not if each takes what it likes in turn, those go first that have the least choice, and if need be
    each has as few nodes as will do.
    """
    in_turn = range(len(parts))
    choosy = sorted(in_turn, key=lambda index: len(candidates(parts[index].request, parts[index].totals)))
    modest = [part._replace(request=part.request._replace(fewest=True)) for part in parts]
    return _one_by_one(parts, in_turn) or _one_by_one(parts, choosy) or _one_by_one(modest, choosy)


def candidates(request: Request, totals: Iterable[Node]) -> set[str]:
    """The nodes that a request can be given some of."""
    names = {node.name for node in totals} - set(request.exclude)
    named_all = len(request.nodelist) >= (request.max_nodes or request.min_nodes)
    return names & set(request.nodelist) if named_all else names


def _one_by_one(parts: Sequence[Part], order: Iterable[int]) -> list[list[Share]] | None:
    found: dict[int, list[Share]] = {}
    taken: set[str] = set()
    for index in order:
        request, free, totals = parts[index]
        named = {name for other in parts if other is not parts[index] for name in other.request.nodelist}
        left = [node for node in totals if node.name not in taken | named]
        names = {node.name for node in left}
        shares = allocate(request, [node for node in free if node.name in names], left)
        if shares is None:
            return None
        found[index] = shares
        taken |= {share.node for share in shares}
    return [found[index] for index in range(len(parts))]
