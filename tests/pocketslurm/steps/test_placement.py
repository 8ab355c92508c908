"""Placement of a step in its job beside other steps: nodes, waiting, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketslurm.errors import INVALID_GRES, NOT_AVAILABLE, CommandError
from pocketslurm.queue.records import Job, Step
from pocketslurm.steps.options import read_options
from pocketslurm.steps.placement import (
    NO_MEMORY,
    TOO_MANY_CPUS,
    NoRoomNow,
    StepPlacement,
    place_step,
)
from pocketslurm.steps.request import step_request

JOB = Job(
    12, "job", "ada", 1000, "users", 100, "main", state="RUNNING", nodes=["n1", "n2", "n3", "n4"],
    cpus=[4, 4, 4, 4], mem=[1000] * 4, gpus=[[2, 3]] * 4, tasks=[1] * 4, options={"gpus-per-node": "2"},
)  # fmt: skip
WITHOUT_GPUS = JOB._replace(gpus=[[]] * 4, options={})
UNEVEN = WITHOUT_GPUS._replace(nodes=["n1", "n2", "n3"], cpus=[4, 2, 1], mem=[0] * 3, gpus=[[]] * 3)


def other(nodes: str, **fields: object) -> Step:
    """A running step that has its nodes' CPUs."""
    names = nodes.split(",")
    wide = {"cpus": [4] * len(names), "mem": [0] * len(names), "gpus": [[]] * len(names), **fields}
    return Step(12, 0, 0, "other", names, **wide)  # type: ignore[arg-type]


def placed(line: str, *others: Step, job: Job = WITHOUT_GPUS) -> StepPlacement:
    request = step_request(read_options([*line.split(), "true"], {}), {}, job)
    return place_step(job, others, request, 16000)


def shown(found: StepPlacement) -> str:
    """Nodes with CPUs and tasks: `n1:4/0,1`."""
    parts = zip(found.nodes, found.cpus, found.tasks, strict=True)
    return " ".join(f"{node}:{cpus}/{','.join(map(str, tasks))}" for node, cpus, tasks in parts)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-n4", "n1:4/0 n2:4/1 n3:4/2 n4:4/3"),
        ("-N1 -n1", "n1:4/0"),
        ("-N1 -n4", "n1:4/0,1,2,3"),
        ("-N1 -n1 --exact", "n1:1/0"),
        ("-N2 -n3", "n1:4/0,1 n2:4/2"),
        ("-N2 -n8", "n1:4/0,1,2,3 n2:4/4,5,6,7"),
        ("-N2 -n4 -m cyclic", "n1:4/0,2 n2:4/1,3"),
        ("-N2 -n4 -c2", "n1:4/0,1 n2:4/2,3"),
        ("-N1 -n2 -c2", "n1:4/0,1"),
        ("-N1 -n1 -c3", "n1:3/0"),
        ("-N4 -n5 -c2", "n1:4/0,1 n2:2/2 n3:2/3 n4:2/4"),
        ("-N1 -n9 -O", "n1:4/0,1,2,3,4,5,6,7,8"),
        ("-N1 -n1 -w n3", "n3:4/0"),
        ("-N2 -n2 -w n3", "n1:4/0 n3:4/1"),
        ("-N2 -n2 -x n1", "n2:4/0 n3:4/1"),
        ("-N1 -n1 -r2", "n3:4/0"),
        ("-N2 -n2 -r2", "n3:4/0 n4:4/1"),
        ("-n16", "n1:4/0,1,2,3 n2:4/4,5,6,7 n3:4/8,9,10,11 n4:4/12,13,14,15"),
    ],
)
def test_an_empty_job(line: str, expected: str) -> None:
    assert shown(placed(line)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-n7", "n1:4/0,1,2,3 n2:2/4,5 n3:1/6"),
        ("-N1 -n2", "n1:4/0,1"),
        ("-N2 -n6", "n1:4/0,1,2,3 n2:2/4,5"),
    ],
)
def test_nodes_of_different_size(line: str, expected: str) -> None:
    assert shown(placed(line, job=UNEVEN)) == expected


def test_nodes_without_a_step_come_first() -> None:
    assert shown(placed("-N1 -n1 --exact", other("n1", cpus=[1]))) == "n2:1/0"
    assert shown(placed("-N1 -n1 --exact", other("n1,n2,n3,n4", cpus=[3, 3, 3, 3]))) == "n1:1/0"


def test_a_step_of_whole_nodes_waits_for_other_steps() -> None:
    with pytest.raises(NoRoomNow):
        placed("-N4 -n4", other("n2", cpus=[1]))
    assert shown(placed("-N3 -n3", other("n2", cpus=[1]))) == "n1:4/0 n3:4/1 n4:4/2"


def test_exact_steps_share_a_node_until_its_cpus_are_gone() -> None:
    taken = other("n1,n2,n3,n4", cpus=[3, 3, 3, 3])
    assert shown(placed("-N1 -n1 --exact", taken)) == "n1:1/0"
    with pytest.raises(NoRoomNow):
        placed("-N1 -n2 --exact", taken)
    with pytest.raises(NoRoomNow):
        placed("-N4 -n4 -c2", other("n2", cpus=[3]))


def test_a_step_with_overlap_and_other_steps_ignore_each_other() -> None:
    assert shown(placed("-N4 -n16 --overlap", other("n1,n2,n3,n4"))) == shown(placed("-N4 -n16"))
    assert shown(placed("-N4 -n16", other("n1,n2,n3,n4", overlap=True))) == shown(placed("-N4 -n16"))


def test_steps_share_the_memory_of_the_job() -> None:
    first = placed("-N1 -n1 --exact --mem=600")
    assert first.mem == [600]
    taken = other("n1,n2,n3,n4", cpus=[1] * 4, mem=[600] * 4)
    assert placed("-N1 -n1 --exact --mem=400", taken).mem == [400]
    with pytest.raises(NoRoomNow):
        placed("-N1 -n1 --exact --mem=401", taken)
    assert placed("-N1 -n2 --exact --mem-per-cpu=500").mem == [1000]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-n17", TOO_MANY_CPUS),
        ("-N1 -n5", TOO_MANY_CPUS),
        ("-N1 -n1 -c5", TOO_MANY_CPUS),
        ("-N2 -n3 -c3", TOO_MANY_CPUS),
        ("-N1 -n1 -w n9", NOT_AVAILABLE),
        ("-N1 -n1 --mem=2G", NO_MEMORY),
        ("-N1 -n1 --gpus=1", INVALID_GRES),
        ("-N1 -n1 --gres=gpu:1", INVALID_GRES),
    ],
)
def test_a_step_that_never_fits_is_refused(line: str, words: str) -> None:
    for others in ([], [other("n1,n2,n3,n4")]):
        with pytest.raises(CommandError) as caught:
            placed(line, *others)
        assert caught.value.denied == words


@pytest.mark.parametrize("line", ["-N3 -n4 -c3", "-N1 -n5 -O --exact"])
def test_a_step_that_fits_no_single_node_is_refused(line: str) -> None:
    with pytest.raises(CommandError, match=TOO_MANY_CPUS):
        placed(line)
    with pytest.raises(NoRoomNow):
        placed(line, other("n1,n2,n3,n4"))


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("-N2 -n2", [[2, 3], [2, 3]]),
        ("-N2 -n2 --gres=none", [[], []]),
        ("-N2 -n2 --gpus-per-node=1", [[2], [2]]),
        ("-N1 -n2 --gpus-per-task=1", [[2, 3]]),
        ("-N1 -n1 --gpus-per-task=1", [[2]]),
        ("-N2 -n2 --gpus=2", [[2], [2]]),
        ("-N2 -n2 --gpus=3", [[2, 3], [2]]),
        ("-N1 -n1 --gpus=1", [[2]]),
        ("-N1 -n1 --gres=gpu:1", [[2]]),
    ],
)
def test_gpus_of_a_step(line: str, gpus: list[list[int]]) -> None:
    assert placed(line, job=JOB).gpus == gpus


def test_steps_of_a_job_without_gpus_get_none_unless_they_request_some() -> None:
    whole_nodes = JOB._replace(options={"exclusive": ""})
    assert placed("-N1 -n1", job=whole_nodes).gpus == [[]]
    assert placed("-N1 -n1 --gpus=1", job=whole_nodes).gpus == [[2]]


def test_a_total_of_gpus_waits_only_for_gpus_that_other_steps_use() -> None:
    job = JOB._replace(gpus=[[0, 1, 2, 3]] * 4)
    taken = other("n1,n2,n3,n4", cpus=[1] * 4, gpus=[[1, 2, 3]] * 4)
    with pytest.raises(NoRoomNow):
        placed("-N1 -n1 --exact --gpus=4", taken, job=job)
    with pytest.raises(CommandError, match=r"Invalid generic resource \(gres\) specification"):
        placed("-N1 -n1 --exact --gpus=6", other("n1,n2,n3,n4", cpus=[3] * 4, gpus=[[1]] * 4), job=job)


def test_gpus_of_other_steps_are_not_allocated_again() -> None:
    taken = other("n1,n2,n3,n4", cpus=[1] * 4, gpus=[[2]] * 4)
    assert placed("-N1 -n1 --exact --gpus=1", taken, job=JOB).gpus == [[3]]
    with pytest.raises(NoRoomNow):
        placed("-N1 -n1 --exact --gpus-per-node=2", taken, job=JOB)
    with pytest.raises(CommandError, match=INVALID_GRES.replace("(", r"\(").replace(")", r"\)")):
        placed("-N1 -n1 --exact --gpus-per-node=3", taken, job=JOB)


@given(
    st.integers(1, 4), st.integers(1, 20), st.integers(0, 4), st.booleans(), st.sampled_from(["block", "cyclic"]),
    st.lists(st.integers(0, 4), min_size=4, max_size=4),
)  # fmt: skip
def test_no_cpu_is_allocated_twice_and_no_task_is_lost(
    nodes: int, ntasks: int, cpus: int, exact: bool, distribution: str, used: list[int]
) -> None:
    line = f"-N{nodes} -n{ntasks} -m {distribution}" + f" -c{cpus}" * bool(cpus) + " --exact" * exact
    try:
        found = placed(line, other("n1,n2,n3,n4", cpus=used))
    except (NoRoomNow, CommandError):
        return
    free = dict(zip(WITHOUT_GPUS.nodes, [4 - each for each in used], strict=True))
    assert all(0 < count <= free[node] for node, count in zip(found.nodes, found.cpus, strict=True))
    assert sorted(task for tasks in found.tasks for task in tasks) == list(range(ntasks))
    assert all(found.tasks)
    assert len(found.nodes) == min(nodes, ntasks)
