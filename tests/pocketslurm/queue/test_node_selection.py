"""Nodes and shares that a job gets, as on Slurm 22.05.8 (cons_tres, 4 empty nodes with 8 CPUs and 2 GPUs each)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.slurm.components import effective_options
from hpc_kit.slurm.getopt import parse_options
from pocketslurm.queue.job_size import JobRequest, decode_size, encode_size, read_request
from pocketslurm.queue.node_selection import NodeResources, all_nodes, free_nodes, impossible, select_nodes
from pocketslurm.queue.records import Job
from pocketslurm.settings import Settings

NODES = all_nodes(Settings(gpus=2, memory=16000), ["n1", "n2", "n3", "n4"])


def request(line: str) -> JobRequest:
    options, rest = parse_options(line.split())
    assert not rest
    return read_request(effective_options(options))


def shares(line: str, nodes: list[NodeResources] = NODES) -> str | None:
    """Node, CPUs and tasks a node, and its GPUs: `n1:8/8 n2:2/2+0,1`."""
    found = select_nodes(request(line), nodes, NODES)
    if found is None:
        return None
    gpus = [f"+{','.join(map(str, share.gpus))}" if share.gpus else "" for share in found]
    return " ".join(f"{s.node}:{s.cpus}/{s.tasks}{gpu}" for s, gpu in zip(found, gpus, strict=True))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-n1", "n1:1/1"),
        ("-n10", "n1:8/8 n2:2/2"),
        ("-N2", "n1:1/1 n2:1/1"),
        ("-N2 -n3", "n1:2/2 n2:1/1"),
        ("-N2 -n5", "n1:4/4 n2:1/1"),
        ("-N2-4", "n1:1/1 n2:1/1 n3:1/1 n4:1/1"),
        ("-N2-3 -n10", "n1:8/8 n2:1/1 n3:1/1"),
        ("-N1-3 -n2", "n1:1/1 n2:1/1"),
        ("-N2-4 --use-min-nodes", "n1:1/1 n2:1/1"),
        ("-N2-4 -n20 --use-min-nodes", "n1:8/8 n2:8/8 n3:4/4"),
        ("-n4 --ntasks-per-node=2", "n1:2/2 n2:2/2"),
        ("-N2 --ntasks-per-node=3", "n1:3/3 n2:3/3"),
        ("--ntasks-per-node=3", "n1:3/3"),
        ("-N2-3 --ntasks-per-node=2", "n1:2/2 n2:2/2 n3:2/2"),
        ("--ntasks-per-node=2 -n5", "n1:2/2 n2:2/2 n3:2/2"),
        ("-n1 --ntasks-per-node=4", "n1:1/4"),
        ("-n5 -N2 --ntasks-per-node=4", "n1:4/4 n2:4/4"),
        ("-n3 -c4", "n1:8/2 n2:4/1"),
        ("-N3 -n4 -c4", "n1:8/2 n2:4/1 n3:4/1"),
        ("-c3", "n1:3/1"),
        ("--exclusive", "n1:8/8+0,1"),
        ("-N2 --exclusive -n2", "n1:8/1+0,1 n2:8/1+0,1"),
        ("-c2 --exclusive", "n1:8/4+0,1"),
        ("-n4 -w n2,n4", "n2:3/3 n4:1/1"),
        ("-w n[2-3]", "n2:1/1 n3:1/1"),
        ("-N3 -w n3", "n1:1/1 n2:1/1 n3:1/1"),
        ("-x n1", "n2:1/1"),
        ("--gres=gpu:1", "n1:1/1+0"),
        ("-N2 --gpus-per-node=2", "n1:1/1+0,1 n2:1/1+0,1"),
        ("-N2 --gpus=2", "n1:1/1+0 n2:1/1+0"),
        ("-n3 --gpus-per-task=1", "n1:2/2+0,1 n2:1/1+0"),
        ("-n4 --gpus=4", "n1:3/3+0,1 n2:1/1+0,1"),
        ("--cpus-per-gpu=3 --gpus=1", "n1:3/3+0"),
        ("-N2 --gres=gpu:2 --ntasks-per-gpu=1", "n1:2/2+0,1 n2:2/2+0,1"),
        ("--gpus=2 --ntasks-per-gpu=2", "n1:4/4+0,1"),
        ("-n2 -O -N1", "n1:1/2"),
        ("-n20 -O -N2", "n1:1/10 n2:1/10"),
        ("-n1 --mincpus=4", "n1:4/1"),
        ("-n6 --mincpus=4", "n1:6/6"),
        ("-n2 --mem-per-cpu=9000", "n1:1/1 n2:1/1"),
    ],
)
def test_allocations_on_an_empty_cluster(line: str, expected: str) -> None:
    assert impossible(request(line), NODES) is None
    assert shares(line) == expected


def busy(**cpus: int) -> list[NodeResources]:
    return [node._replace(cpus=cpus.get(node.name, 8), whole=node.name not in cpus) for node in NODES]


@pytest.mark.parametrize(
    ("line", "used", "expected"),
    [
        ("-n1", {"n1": 0}, "n2:1/1"),
        ("-n10", {"n1": 7}, "n1:7/7 n2:3/3"),
        ("-N2 -n8", {"n1": 1, "n2": 1, "n3": 1}, "n1:1/1 n4:7/7"),
        ("-n12", {"n1": 1, "n2": 5}, "n2:5/5 n3:7/7"),
        ("--exclusive", {"n1": 7}, "n2:8/8+0,1"),
        ("-N4", {"n1": 0}, None),
        ("-N2-4", {"n1": 0}, "n2:1/1 n3:1/1 n4:1/1"),
        ("-w n1", {"n1": 0}, None),
    ],
)
def test_allocations_on_a_busy_cluster(line: str, used: dict[str, int], expected: str | None) -> None:
    assert shares(line, busy(**used)) == expected


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5), st.lists(st.integers(0, 8), min_size=4, max_size=4))
def test_allocations_never_exceed_the_nodes_and_contain_all_tasks(
    ntasks: int, cpus: int, least: int, free: list[int]
) -> None:
    nodes = [node._replace(cpus=left) for node, left in zip(NODES, free, strict=True)]
    asked = JobRequest(ntasks=ntasks, cpus_per_task=cpus, min_cpus=cpus, min_nodes=min(least, ntasks))
    found = select_nodes(asked, nodes, NODES)
    possible = sum(left // cpus for left in free) >= ntasks and sum(left >= cpus for left in free) >= asked.min_nodes
    assert (found is not None) == possible
    for share in found or ():
        assert share.cpus <= next(node.cpus for node in nodes if node.name == share.node)
        assert share.cpus == share.tasks * cpus > 0
    assert found is None or sum(share.tasks for share in found) == ntasks


def test_resources_of_running_jobs_are_not_free() -> None:
    job = Job(
        1, "x", "u", 0, "g", 0, "p", nodes=["n2", "n3"], cpus=[3, 8], mem=[1000, 16000], gpus=[[1], []], tasks=[1, 1]
    )
    assert free_nodes(NODES, [job])[1:3] == [
        NodeResources("n2", 5, 15000, (0,), whole=False),
        NodeResources("n3", 0, 0, (0, 1), whole=False),
    ]
    assert free_nodes(NODES, [job])[0] == NODES[0]


@pytest.mark.parametrize(("line", "reason"), [("-N9", "PartitionNodeLimit"), ("-n100", "PartitionConfig")])
def test_some_jobs_that_cannot_start_wait_instead_of_being_refused(line: str, reason: str) -> None:
    assert impossible(request(line), NODES) == reason


def test_a_request_is_read_back_from_the_record() -> None:
    asked = request("-N2-3 -n4 -w n1,n2 -x n4 --gpus-per-task=1 --exclusive --mem=0")
    assert decode_size(encode_size(asked)) == asked
