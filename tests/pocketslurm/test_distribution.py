"""Distributions of tasks over nodes. The layouts in the tables come from a real Slurm 22.05."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.errors import DirectiveError
from hpc_kit.slurm.option_values import format_distribution, parse_step_distribution
from pocketslurm.distribution import distribute_tasks

SLOTS = st.lists(st.integers(1, 16), min_size=1, max_size=8)
KINDS = st.sampled_from(["block", "cyclic", "plane=1", "plane=3", "cyclic:block"])


@pytest.mark.parametrize(
    ("ntasks", "slots", "text", "nodes"),
    [
        (8, [2, 2, 2, 2], "block", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (8, [2, 2, 2, 2], "cyclic", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (5, [2, 2, 2], "block", [[0, 1], [2, 3], [4]]),
        (3, [2, 2], "block", [[0, 1], [2]]),
        (6, [2, 2, 2], "plane=2", [[0, 1], [2, 3], [4, 5]]),
        (7, [3, 3, 3], "cyclic", [[0, 3, 6], [1, 4], [2, 5]]),
        (8, [6, 2], "plane=2", [[0, 1, 4, 5, 6, 7], [2, 3]]),
        (4, [1, 3], "cyclic", [[0], [1, 2, 3]]),
        (4, [3, 1], "block", [[0, 1, 2], [3]]),
        (16, [4, 4], "block", [list(range(8)), list(range(8, 16))]),
        (9, [2, 2, 2, 2], "block", [[0, 1, 2], [3, 4], [5, 6], [7, 8]]),
        (7, [3, 3, 3], "block", [[0, 1, 2], [3, 4], [5, 6]]),
        (10, [4, 2], "cyclic", [[0, 2, 4, 6, 8, 9], [1, 3, 5, 7]]),
        (6, [4, 1, 1], "plane=2", [[0, 1, 4, 5], [2], [3]]),
        (1, [0, 0], "block", [[0], []]),
    ],
)
def test_layouts(ntasks: int, slots: list[int], text: str, nodes: list[list[int]]) -> None:
    assert distribute_tasks(ntasks, slots, parse_step_distribution(text)) == nodes


@given(st.integers(1, 80), SLOTS, KINDS)
def test_every_task_runs_once_and_in_ascending_order_on_each_node(ntasks: int, slots: list[int], text: str) -> None:
    nodes = distribute_tasks(ntasks, slots, parse_step_distribution(text))
    assert len(nodes) == len(slots)
    assert sorted(task for node in nodes for task in node) == list(range(ntasks))
    assert all(node == sorted(node) for node in nodes)


@given(st.integers(1, 80), SLOTS, KINDS)
def test_no_node_is_overfull_while_another_has_free_cpus(ntasks: int, slots: list[int], text: str) -> None:
    nodes = distribute_tasks(ntasks, slots, parse_step_distribution(text))
    if ntasks <= sum(slots) and ntasks >= len(slots):
        assert all(len(node) <= room for node, room in zip(nodes, slots, strict=True))


@given(st.integers(1, 80), st.lists(st.integers(1, 4), min_size=2, max_size=6))
def test_the_first_task_is_always_on_the_first_node(ntasks: int, slots: list[int]) -> None:
    for text in ("block", "cyclic", "plane=2"):
        assert distribute_tasks(ntasks, slots, parse_step_distribution(text))[0][0] == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("block", "block"),
        ("BLOCK:Cyclic", "block:cyclic"),
        ("cyclic:*:fcyclic", "cyclic:fcyclic"),
        ("*", "block"),
        ("plane=4", "plane"),
        ("cyclic,Pack", "cyclic,pack"),
        ("nopack", "block,nopack"),
        ("hostfile", "arbitrary"),
    ],
)
def test_distributions_are_printed_in_the_spelling_of_slurm(text: str, shown: str) -> None:
    assert format_distribution(parse_step_distribution(text)) == shown


def test_a_plane_may_take_its_size_from_the_environment() -> None:
    assert parse_step_distribution("plane", "3").plane_size == 3


@pytest.mark.parametrize(
    "text", ["plane", "plane=0", "fcyclic", "block:round", "blok", "block:block:block:block", "block,x"]
)
def test_a_malformed_distribution_is_refused(text: str) -> None:
    with pytest.raises(DirectiveError):
        parse_step_distribution(text)
