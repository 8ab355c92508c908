"""Degrees of parallelism against model, batch and nodes: what is refused, with its numbers, and what costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.check.prerequisites import find_missing
from hpc_kit.errors import SpecError
from hpc_kit.spec import load
from hpc_kit.spec.cluster import Cluster, Node
from hpc_kit.spec.job import Job, Layout, Model, format_layout
from hpc_kit.spec.layout_checks import rank_bytes
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.spec.resources import Resources
from hpc_kit.submission.submit import submit
from tests.pictures import coordinates

layouts = st.builds(Layout, dp=st.integers(1, 4), pp=st.integers(1, 4), tp=st.integers(1, 4), cp=st.integers(1, 3))


def fit(
    layout: Any = None, model: Any = None, nodes: int = 4, tasks: int = 2, mem: str | None = None, **more: Any
) -> Resolved:
    resources = Resources(nodes=nodes, ntasks_per_node=tasks, **more)
    made = Job(
        name="job",
        command=("true",),
        resources=resources,
        layout=Layout(**(layout or {})),
        model=Model(**(model or {})),
    )
    cluster = Cluster(name="c", node=Node(gpus=0, mem=mem))
    root = Path("/project")
    return resolve(load.load(made, cluster, root=root), root=root)


def refusal(*arguments: Any, **named: Any) -> str:
    with pytest.raises(SpecError) as caught:
        fit(*arguments, **named)
    return str(caught.value)


@given(layouts, st.sampled_from(["pp", "dp", "cp", "tp"]))
def test_ranks_of_a_group_differ_in_one_axis_only_and_every_rank_is_in_a_group(layout: Layout, axis: Any) -> None:
    size = layout.size(0)
    groups = layout.groups(axis, size)
    assert sorted(rank for group in groups for rank in group) == list(range(size))
    for group in groups:
        rows = [coordinates(layout, rank, size) for rank in group]
        assert [row.pop(axis) for row in rows] == list(range(len(group)))
        assert all(row == rows[0] for row in rows)


def test_the_program_gets_exactly_the_degrees_that_the_job_names() -> None:
    assert format_layout(Layout(), Model()) == ""
    layout = Layout(dp=2, pp=2, zero=1, global_batch=64, micro_batches=4)
    assert format_layout(layout, Model(heads=8)) == "dp=2 pp=2 zero=1 global_batch=64 micro_batches=4 heads=8"


@pytest.mark.parametrize(
    ("layout", "model", "words"),
    [
        ({"tp": 8}, {"heads": 12}, ("tp does not divide the model's heads", "tp = 8", "heads = 12", "tp = 6 or 12")),
        ({"tp": 8}, {"width": 100}, ("tp does not divide the model's width", "width = 100", "tp = 5 or 10")),
        ({"cp": 8}, {"sequence": 100}, ("cp does not divide the model's sequence", "cp = 5 or 10")),
        ({"pp": 8}, {"layers": 6}, ("more stages than layers", "pp = 8", "layers = 6", "pp = 6 or less")),
        ({"global_batch": 50}, {}, ("global_batch = 50", "dp 8 x micro_batches 1 = 8", "= 48 or global_batch = 56")),
        ({"global_batch": 4}, {}, ("the global batch does not divide", "do     set global_batch = 8")),
        (
            {"pp": 4, "micro_batches": 3},
            {},
            ("fewer micro-batches than stages", "pp = 4: idle for 50% of a step", "micro_batches = 16: 16%"),
        ),
        ({"zero": 3, "dp_shard": 3}, {}, ("dp_shard does not divide dp", "dp_shard = 3", "dp = 8", "dp_shard = 2")),
        ({"dp_shard": 2}, {}, ("needs zero = 1, 2 or 3", "zero = 0")),
    ],
)
def test_an_impossible_layout_is_refused_with_its_numbers(layout: Any, model: Any, words: tuple[str, ...]) -> None:
    text = refusal(layout, model)
    for word in words:
        assert word in text, text


def test_a_layout_that_fits_is_accepted_without_a_note() -> None:
    layout = {"pp": 2, "tp": 2, "global_batch": 32, "micro_batches": 4}
    resolved = fit(layout, {"layers": 2, "heads": 4, "width": 64, "sequence": 32}, mem="1G")
    assert resolved.notes == ()


def test_tensor_parallelism_across_nodes_is_noted_with_its_traffic() -> None:
    model = {"layers": 4, "width": 128, "sequence": 64}
    (note,) = fit({"tp": 4, "global_batch": 64}, model).notes
    # 16 sums of 32 samples x 64 x 128 x 4 bytes, of which a ring sends 2 x 3 / 4.
    assert (
        note
        == "tp 4 spans 2 nodes: 16 sums a step and rank go over the network, 24 MiB in float32; tp = 2 stays inside"
    )
    (note,) = fit({"cp": 8}).notes
    assert note.startswith("cp 8 spans 4 nodes: every layer's sums go over the network")


def test_the_remedy_for_a_group_across_nodes_counts_the_inner_axes() -> None:
    (note,) = fit({"tp": 2, "cp": 2}).notes  # 2 ranks a node: the two of cp are 2 apart
    assert note.endswith("; 4 ranks on a node keep it inside")


@pytest.mark.parametrize(
    ("distribution", "spans"), [("block", 0), ("plane=2", 0), ("cyclic", 2), ("plane=1", 2), ("arbitrary", 0)]
)
def test_the_distribution_decides_which_ranks_share_a_node(distribution: str, spans: int) -> None:
    notes = fit({"tp": 2}, distribution=distribution).notes
    assert len(notes) == (spans > 0)
    for note in notes:
        assert note.startswith(f"tp 2 spans {spans} nodes: ")
        assert note.endswith("; --distribution=block keeps it inside")


@pytest.mark.parametrize(
    ("layout", "each"),
    [
        ({}, 16), ({"pp": 2, "tp": 2}, 4), ({"zero": 1}, 8 + 8 / 8), ({"zero": 2}, 4 + 12 / 8), ({"zero": 3}, 2),
        ({"zero": 3, "dp_shard": 2}, 8), ({"zero": 1, "pp": 2}, (8 + 8 / 4) / 2),
    ],
)  # fmt: skip
def test_the_memory_of_a_rank_is_that_of_the_papers(layout: Any, each: float) -> None:
    job = Job(layout=Layout(**layout), model=Model(parameters=1000))
    assert rank_bytes(job, 8) == 1000 * each
    assert rank_bytes(Job(), 8) is None
    assert rank_bytes(Job(model=Model(layers=2, width=10)), 1) == 2400 * 16


def test_more_memory_than_a_node_has_is_refused_with_both_numbers() -> None:
    billion = {"parameters": 2**30}
    text = refusal({}, billion, mem="16G")
    assert "with dp, zero 0, 16.0 GiB of parameters, gradients and moments a rank; 2 ranks: 32.0 GiB" in text
    assert "of its 16.0" in text
    fit({"zero": 3}, billion, mem="16G")
    fit({}, billion)
    assert "of its 8.0" in refusal({}, billion, mem="8G")


@pytest.mark.parametrize("own", [0, "0", "0G"])
def test_a_job_with_mem_0_has_the_whole_memory_of_a_node(own: Any) -> None:
    cluster = Cluster(name="c", node=Node(gpus=0, mem="64G"))
    made = Job(name="job", command=("true",), resources=Resources(mem=own), model=Model(parameters=10**9))
    resolve(load.load(made, cluster, root=Path("/project")), root=Path("/project"))


def test_the_embedded_slurms_nodes_share_this_machines_memory() -> None:
    model = {"layers": 96, "heads": 64, "width": 65536, "sequence": 64, "parameters": 5_000_000_000_000}
    job = Job(
        name="job", command=("true",), resources=Resources(nodes=2, ntasks_per_node=2), layout=Layout(zero=3),
        model=Model(**model),
    )  # fmt: skip
    root = Path("/project")
    small = Cluster(name="c", slurm="embedded", node=Node(gpus=0))
    found = resolve(load.load(job, small, root=root), root=root)
    (note,) = found.notes
    assert note.startswith("the model does not fit this machine: 5,000,000,000,000 parameters: with ")
    assert "; 4 ranks: 74505.8 GiB of its " in note
    (finding,) = [each for each in find_missing(found, root) if each.code == "KIT607"]
    assert (finding.severity, finding.what) == ("warning", "the model does not fit this machine")
    with pytest.raises(SpecError, match="does not fit this machine"):
        submit(job, small, root=root)
    big = Cluster(name="c", slurm="embedded", node=Node(gpus=0, mem="40T"))
    assert resolve(load.load(job, big, root=root), root=root).notes == ()
