"""Nodes and tasks that a step requests, with the numbers and messages of Slurm 22.05.8."""

from __future__ import annotations

import pytest

from pocketslurm.errors import CommandError
from pocketslurm.queue.records import Job
from pocketslurm.steps.options import read_options
from pocketslurm.steps.request import StepRequest, step_request

JOB = Job(
    12, "job", "ada", 1000, "users", 100, "main", state="RUNNING", nodes=["n1", "n2", "n3", "n4"],
    cpus=[4, 4, 4, 4], mem=[1000] * 4, gpus=[[0, 1]] * 4, tasks=[2, 2, 2, 2],
)  # fmt: skip
OF_JOB = {"SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "2"}
OF_NODES = {"SLURM_JOB_NUM_NODES": "4"}


def request(line: str, environ: dict[str, str] = OF_JOB, *, allocated: bool = False) -> StepRequest:
    return step_request(read_options([*line.split(), "true"], environ), environ, JOB, allocated=allocated)


def refusal(line: str, environ: dict[str, str] = OF_JOB) -> str:
    with pytest.raises(CommandError) as caught:
        request(line, environ)
    return caught.value.text_for("srun")


@pytest.mark.parametrize(
    ("line", "environ", "nodes", "ntasks"),
    [
        ("", OF_JOB, (4, 4), 8),
        ("", OF_NODES, (4, 4), 4),
        ("", {}, (4, 4), 4),
        ("-N2", OF_NODES, (2, 2), 2),
        ("-N2", OF_JOB, (2, 2), 8),
        ("-N2 --ntasks-per-node=3", OF_NODES, (2, 2), 6),
        ("-N1-3", OF_NODES, (1, 3), 3),
        ("-n2", OF_NODES, (2, 2), 2),
        ("-n2", OF_JOB, (2, 2), 2),
        ("-n2", {}, (2, 2), 2),
        ("-n6 -N4", {}, (4, 4), 6),
        ("-c2", OF_NODES, (4, 4), 8),
        ("-c2", {}, (4, 4), 8),
        ("-w n2", {}, (1, 1), 1),
        ("-w n2", OF_JOB, (4, 4), 8),
        ("-w n2,n3 -n2 -N2", OF_JOB, (2, 2), 2),
        ("-x n2", {}, (3, 3), 3),
        ("--ntasks-per-gpu=1", {}, (4, 4), 8),
    ],
)
def test_nodes_and_tasks(line: str, environ: dict[str, str], nodes: tuple[int, int], ntasks: int) -> None:
    found = request(line, environ)
    assert ((found.min_nodes, found.max_nodes), found.ntasks) == (nodes, ntasks)


def test_fewer_tasks_than_nodes_use_fewer_nodes_with_a_warning() -> None:
    found = request("-N4 -n2", {})
    assert (found.min_nodes, found.max_nodes, found.ntasks) == (2, 2, 2)
    assert found.notes == ("Warning: can't run 2 processes on 4 nodes, setting nnodes to 2",)


def test_more_names_than_nodes_are_cut_with_a_warning() -> None:
    found = request("-N2 -n2 -w n[1-3]", {})
    assert found.hosts == ("n1", "n2")
    assert "(3 > 2). Eliminating nodes from the nodelist." in found.notes[0]


def test_tasks_per_node_that_do_not_fit_are_ignored_with_a_warning() -> None:
    found = request("-N2 -n6 --ntasks-per-node=2", {})
    assert (found.tasks_per_node, found.ntasks) == (0, 6)
    assert found.notes[0].endswith("number of requested nodes 2. Ignoring --ntasks-per-node.")


@pytest.mark.parametrize(
    ("line", "count"),
    [("-n3", 3), ("-n3 -c2", 6), ("-n3 -O", 0), ("-n2 --gpus-per-task=1 --cpus-per-gpu=2", 4)],
)
def test_cpus_of_all_tasks(line: str, count: int) -> None:
    assert request(line, {}).cpu_count == count


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        ("", True),
        ("--exact", False),
        ("-c1", False),
        ("-c1 -O", True),
        ("--exact -O", False),
        ("--exclusive", False),
        ("--exclusive=user", True),
        ("--overlap", True),
        ("--overlap -c1", False),
    ],
)
def test_steps_that_use_all_cpus_of_their_nodes(line: str, whole: bool) -> None:
    assert request(line).whole is whole


def test_a_step_uses_all_cpus_of_its_own_allocation() -> None:
    assert request("", {}, allocated=True).cpu_count == 16
    assert request("-n3", {}, allocated=True).cpu_count == 3


@pytest.mark.parametrize(
    ("line", "environ", "shown"),
    [
        ("-n2", OF_JOB, "cyclic"),
        ("-n8", OF_JOB, "block"),
        ("-n8 -m cyclic", OF_JOB, "cyclic"),
        ("-n8", {**OF_JOB, "SLURM_DISTRIBUTION": "cyclic:block"}, "cyclic:block"),
        ("-n8 -m plane=2", OF_JOB, "plane"),
        ("-n8 --mem=0", OF_JOB, ""),
    ],
)
def test_slurm_distribution(line: str, environ: dict[str, str], shown: str) -> None:
    assert request(line, environ).shown == shown


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("-N5 -n5", "srun: error: Only allocated 4 nodes asked for 5\n"),
        (
            "-N4 -n4 -x n1",
            "srun: error: Only allocated 3 nodes asked for 4\nsrun: error: Are required nodes explicitly excluded?\n",
        ),
        ("-x n[1-4]", "srun: error: Hostlist is empty!  Can't run job.\n"),
        (
            "-w n1 -x n1",
            "srun: error: Requested node n1 is also in the excluded list.\nsrun: error: Job not submitted.\n",
        ),
        ("-r1 -w n1", "srun: error: -r,--relative not allowed with -w,--nodelist or -x,--exclude.\n"),
        ("--exclusive --overlap", "srun: error: --exclusive and --overlap are mutually exclusive\n"),
        ("--exact --whole", "srun: error: --exact and --whole are mutually exclusive.\n"),
        ("-v -Q", "srun: error: don't specify both --verbose (-v) and --quiet (-Q)\n"),
        (
            "-N3 -r2",
            "srun: error: --relative and --nodes option incompatible with count of allocated nodes (2+3>4)\n",
        ),
        ("-m bogus", "srun: error: Invalid --distribution specification\n"),
        (
            "-w ./hosts",
            "srun: error: a file of nodes is not supported by the embedded Slurm: name the nodes of ./hosts\n",
        ),
        (
            "-m arbitrary -w n2,n1,n2",
            "srun: error: --distribution=arbitrary is not supported by the embedded Slurm: give --nodelist\n",
        ),
        ("--gres=lustre:1", "srun: error: Invalid generic resource (gres) specification\n"),
    ],
)
def test_contradictions_are_refused_as_by_slurm(line: str, output: str) -> None:
    assert refusal(line, {}) == output


def test_a_host_file_is_refused() -> None:
    assert refusal("-n2", {"SLURM_HOSTFILE": "hosts"}).startswith("srun: error: SLURM_HOSTFILE is not supported")


def test_a_plane_needs_its_size() -> None:
    assert refusal("-m plane", {}).splitlines()[0] == "srun: error: Invalid plane size or size not specified"
    assert request("-m plane -n8", {"SLURM_DIST_PLANESIZE": "3"}).distribution.plane_size == 3
