"""The header of a script: the groups of ranks, and their nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpc_kit.script.context import mesh_axes
from hpc_kit.script.render import render_resolved
from hpc_kit.spec import load
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job import Job, Launch, Layout
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.spec.resources import Resources

BATCH = "each with its part of the batch"


def fit(layout: Any, nodes: int = 4, tasks: int = 2, launch: Launch | None = None, **more: Any) -> Resolved:
    resources = Resources(nodes=nodes, ntasks_per_node=tasks, **more)
    job = Job(
        name="job", command=("true",), template="hybrid", resources=resources, layout=Layout(**layout),
        launch=launch or Launch(),
    )  # fmt: skip
    return resolve(load.load(job, Cluster(name="c"), root=Path("/p")), root=Path("/p"))


def rows(layout: Any, **more: Any) -> list[str]:
    return [" ".join(map(str, row)) for row in mesh_axes(fit(layout, **more))]


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
def test_groups_are_listed_with_their_nodes(layout: Any, expected: list[str]) -> None:
    assert rows(layout) == expected


def test_one_node_is_not_named_and_many_groups_are_abbreviated() -> None:
    assert rows({"tp": 2}, nodes=1, tasks=2) == ["tp 2 parts of each matrix ranks 0-1"]
    (_, tp) = rows({"tp": 4}, nodes=16, tasks=4)
    assert tp == "tp 4 parts of each matrix ranks 0-3 | 4-7 | 8-11 | 12-15 | ... (16 groups), each on one node"
    (dp, _) = rows({"tp": 4}, nodes=16, tasks=4)
    assert "ranks 0,4,...,60 | 1,5,...,61 | " in dp


def test_nodes_are_omitted_if_they_are_unknown() -> None:
    assert rows({"tp": 2}, distribution="arbitrary")[-1].endswith("6-7")


def test_torchruns_ranks_are_neighbours() -> None:
    launch = Launch(launcher="torchrun", nproc_per_node=2)
    assert rows({"tp": 2}, tasks=1, launch=launch)[-1].endswith("6-7, each on one node")


@pytest.mark.parametrize(
    ("layout", "more", "words"),
    [
        ({"tp": 2}, {}, "in every layer: their ranks are neighbours, so that the links inside a node carry it."),
        ({"tp": 2}, {"nodes": 1}, "in every layer: their ranks are neighbours"),
        ({"tp": 2}, {"distribution": "cyclic"}, "in every layer, and here over the network: the note above names"),
        ({"cp": 4}, {}, "in every layer, and here over the network"),
        ({"tp": 2}, {"distribution": "arbitrary"}, ""),
        ({"pp": 2}, {}, ""),
    ],
)
def test_axes_that_communicate_in_every_layer_are_noted_with_their_place(layout: Any, more: Any, words: str) -> None:
    text = render_resolved(fit(layout, **more), root=Path("/p"))
    assert words in text if words else "tp and cp communicate" not in text


def test_the_header_mentions_that_nodes_divide_the_stages_only_if_they_do() -> None:
    output = "the nodes divide the stages"
    made = {name: fit({"pp": 2}, distribution=name) for name in ("block", "cyclic")}
    jobs = {name: structs.replace(each.job, template="pipeline") for name, each in made.items()}
    texts = {
        name: render_resolved(structs.replace(each, job=jobs[name]), root=Path("/p")) for name, each in made.items()
    }
    assert [output in text for text in texts.values()] == [True, False]


@pytest.mark.parametrize(
    ("layout", "more", "output"),
    [
        ({"tp": 2}, {}, "block"), ({"pp": 2}, {}, "block"), ({"cp": 2}, {}, "block"),
        ({"zero": 3, "dp_shard": 2}, {}, "block"), ({"zero": 3}, {}, None), ({}, {}, None),
        ({"tp": 2}, {"nodes": 1}, None), ({"tp": 2}, {"distribution": "cyclic"}, "cyclic"),
        ({"tp": 2}, {"tasks": 1, "launch": Launch(launcher="torchrun", nproc_per_node=2)}, None),
    ],
)  # fmt: skip
def test_the_layout_chooses_the_distribution_of_ranks(layout: Any, more: Any, output: str | None) -> None:
    assert fit(layout, **more).job.resources.distribution == output
