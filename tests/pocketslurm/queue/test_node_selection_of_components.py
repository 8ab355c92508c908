"""Nodes for all components of a heterogeneous job together: a job that fits an idle cluster starts."""

from __future__ import annotations

import pytest

from pocketslurm.queue.node_selection import ComponentRequest, NodeResources, all_nodes, select_for_components
from pocketslurm.settings import Settings
from tests.pocketslurm.queue.test_node_selection import request

NODES = all_nodes(Settings(memory=16000), ["n1", "n2", "n3", "n4"])
LARGE = Settings().cpus + 1


def placed(
    *lines: str, among: tuple[list[NodeResources], ...] = (), free: list[NodeResources] = NODES
) -> list[str] | None:
    """The nodes of each component, that may be given its own nodes."""
    totals = [*among, *[NODES] * (len(lines) - len(among))]
    parts = [
        ComponentRequest(request(line), [node for node in free if node in own], own)
        for line, own in zip(lines, totals, strict=True)
    ]
    found = select_for_components(parts)
    return None if found is None else [" ".join(share.node for share in shares) for shares in found]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("-N1", "-N1"), ["n1", "n2"]),
        (("-N1", "-N1 -w n1"), ["n2", "n1"]),
        (("-N2 -w n3", "-N2 -w n1"), ["n2 n3", "n1 n4"]),
        (("-N2", "-N1 -x n2,n3,n4"), ["n2 n3", "n1"]),
        (("-N1-4", "-N1"), ["n1", "n2"]),
        (("-N2-3", "-N2-3", ), ["n1 n2", "n3 n4"]),
        (("-N1-3 -n20", "-N1"), ["n1 n2 n3", "n4"]),
        (("-N1 -w n1", "-N1 -w n1"), None),
        (("-N3", "-N2"), None),
        ((f"-n1 -c{LARGE}", "-n1"), None),
    ],
)  # fmt: skip
def test_components_do_not_share_resources(lines: tuple[str, ...], expected: list[str] | None) -> None:
    assert placed(*lines) == expected


def test_a_component_with_fewer_possible_nodes_is_placed_first() -> None:
    assert placed("-N1", "-N1", among=(NODES, NODES[:1])) == ["n2", "n1"]


def test_only_free_resources_are_allocated() -> None:
    assert placed("-N1", "-N1 -w n1", free=NODES[2:]) is None
    assert placed("-N1", "-N1", free=NODES[2:]) == ["n3", "n4"]
