"""The head of a script: which ranks work together, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_kit.script.axes import axes
from hpc_kit.spec import files
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job import Job, Launch
from hpc_kit.spec.layout import Layout
from hpc_kit.spec.resolve import resolve
from hpc_kit.spec.resources import Resources

BATCH = "each with its part of the batch"


def rows(layout: Any, nodes: int = 4, tasks: int = 2, launch: Launch | None = None, **more: Any) -> list[str]:
    resources = Resources(nodes=nodes, ntasks_per_node=tasks, **more)
    job = Job(name="job", command=("true",), resources=resources, layout=Layout(**layout), launch=launch or Launch())
    resolved = resolve(files.load(job, Cluster(name="c"), root=Path("/p")), root=Path("/p"))
    return [" ".join(map(str, row)) for row in axes(resolved)]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({}, [f"dp 8 replicas, {BATCH} ranks 0-7, across 4 nodes"]),
        (
            {"pp": 2, "tp": 2},
            [
                "pp 2 stages of the layers, in a row ranks 0,4 | 1,5 | 2,6 | 3,7, across 2 nodes",
                f"dp 2 replicas, {BATCH} ranks 0,2 | 1,3 | 4,6 | 5,7, across 2 nodes",
                "tp 2 parts of each matrix ranks 0-1 | 2-3 | 4-5 | 6-7, each on one node",
            ],
        ),
        ({"zero": 3, "dp_shard": 2}, [
            f"dp 8 {BATCH}; every 2 share parameters, gradients and optimizer state ranks 0-7, across 4 nodes"
        ]),
    ],
)  # fmt: skip
def test_groups_are_told_with_their_places(layout: Any, expected: list[str]) -> None:
    assert rows(layout) == expected


def test_one_node_needs_no_places_and_many_groups_are_cut_short() -> None:
    assert rows({"tp": 2}, nodes=1, tasks=2) == ["tp 2 parts of each matrix ranks 0-1"]
    (_, tp) = rows({"tp": 4}, nodes=16, tasks=4)
    assert tp == "tp 4 parts of each matrix ranks 0-3 | 4-7 | 8-11 | 12-15 | ... (16 groups), each on one node"
    (dp, _) = rows({"tp": 4}, nodes=16, tasks=4)
    assert "ranks 0,4,...,60 | 1,5,...,61 | " in dp


def test_places_are_left_out_where_they_are_not_known() -> None:
    assert rows({"tp": 2}, distribution="arbitrary")[-1].endswith("6-7")


def test_torchruns_ranks_are_neighbours() -> None:
    launch = Launch(launcher="torchrun", nproc_per_node=2)
    assert rows({"tp": 2}, tasks=1, launch=launch)[-1].endswith("6-7, each on one node")
