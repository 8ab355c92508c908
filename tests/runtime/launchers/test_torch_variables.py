"""Launchers that set torch's variables, recognized by their additional variables. Each case names its source."""

from __future__ import annotations

import pytest

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment
from hpc_kit.runtime import World, resolve
from tests.runtime.launches import Environ, Step, captured_case

Told = tuple[int, int | None, int, int | None, int | None, int | None]


def summarize(world: World) -> Told:
    return (world.rank, world.local_rank, world.world_size, world.local_world_size, world.node_rank, world.nnodes)


def plain(**others: str) -> Environ:
    return {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "n1", "MASTER_PORT": "23456"} | others


RAY = plain(LOCAL_RANK="1", LOCAL_WORLD_SIZE="4", NODE_RANK="1", RAY_RAYLET_PID="99", RAY_JOB_ID="01000000")
"""ray.train.torch.config; worker_pool.cc (RAY_RAYLET_PID, RAY_JOB_ID)."""
DEEPSPEED = plain(LOCAL_RANK="1", CROSS_RANK="1", CROSS_SIZE="2", LOCAL_SIZE="4")
"""deepspeed/launcher/launch.py."""
PYTORCHJOB = plain(WORLD_SIZE="8", PET_NNODES="8", PET_NODE_RANK="5", PET_NPROC_PER_NODE="auto")
"""kubeflow/trainer, pull request 1840."""

CASES: dict[str, tuple[Environ, Told]] = {
    "Kubernetes": (plain(), (5, None, 8, None, None, None)),
    "Ray Train": (RAY, (5, 1, 8, 4, 1, None)),
    "deepspeed": (DEEPSPEED, (5, 1, 8, 4, 1, 2)),
    "PyTorchJob": (PYTORCHJOB, (5, 0, 8, 1, 5, 8)),
    # PyTorchConfiguration(node_count=2, process_count=8).
    "Azure ML": (plain(LOCAL_RANK="1", NODE_RANK="1"), (5, 1, 8, None, 1, None)),
    "one node": (plain(LOCAL_RANK="5", LOCAL_WORLD_SIZE="8"), (5, 5, 8, 8, 0, 1)),
    "one node of deepspeed": (
        plain(LOCAL_RANK="5", CROSS_RANK="0", CROSS_SIZE="1", LOCAL_SIZE="8"),
        (5, 5, 8, 8, 0, 1),
    ),
    "one group": (plain(GROUP_WORLD_SIZE="1"), (5, 5, 8, 8, 0, 1)),
    # Horovod's cross rank counts only the nodes that have this local rank, so it is not a node index.
    "Horovod's names": (plain(LOCAL_RANK="1", CROSS_RANK="1", CROSS_SIZE="2"), (5, 1, 8, None, None, None)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_launcher_that_sets_torch_variables_counts_with_its_other_variables(
    case: tuple[Environ, Told],
) -> None:
    world = resolve(case[0])
    assert (world.launcher, summarize(world)) == ("env", case[1])


@pytest.mark.parametrize("inner", [RAY, DEEPSPEED], ids=["Ray Train", "deepspeed"])
@pytest.mark.parametrize(
    "around",
    [
        Step.of(1, 1).environ(1),
        Step.of(1).environ(0),
        captured_case("10_batch_shell_8task_job@22.05")[0],
        captured_case("46_ompi4_in_salloc_shell@22.05")[0],
    ],
    ids=["agents of a step", "a step for each agent", "batch shell", "mpirun"],
)
def test_agents_may_be_tasks_of_a_step_or_of_an_mpirun(inner: Environ, around: Environ) -> None:
    world = resolve(around | inner)
    assert (world.launcher, world.rank, world.world_size, world.local_rank) == ("env", 5, 8, 1)
    assert world.name in {"the launch by Ray Train", "the launch by deepspeed"}


@pytest.mark.parametrize("inner", [RAY, DEEPSPEED, plain()], ids=["Ray Train", "deepspeed", "unknown"])
def test_torch_variables_in_a_step_of_several_tasks_per_node_are_ignored(inner: Environ) -> None:
    with pytest.raises(ContradictoryEnvironment, match="two launchers claim this process"):
        resolve(Step.of(4, 4).environ(2) | inner)


def test_half_set_torch_variables_are_no_launcher_inside_a_step() -> None:
    for missing in ("LOCAL_RANK", "MASTER_PORT", "NODE_RANK"):
        with pytest.raises(ContradictoryEnvironment):
            resolve(Step.of(1, 1).environ(1) | {name: value for name, value in RAY.items() if name != missing})


def test_a_pod_for_several_processes_is_refused_without_torchrun() -> None:
    """kubeflow/trainer, issue 1790: RANK is the index of the pod, WORLD_SIZE is the number of processes."""
    with pytest.raises(ContradictoryEnvironment, match="RANK counts the pods, and WORLD_SIZE the processes") as refused:
        resolve(plain(RANK="1", PET_NNODES="2", PET_NODE_RANK="1", PET_NPROC_PER_NODE="4"))
    assert str(refused.value.remedy).startswith("torchrun PROGRAM.py")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"PET_NNODES": "2", "PET_NODE_RANK": "1"}, "2 nodes (PET_NNODES)"),
        ({"PET_NNODES": "1:4"}, "4 nodes (PET_NNODES)"),
        ({"PET_NNODES": "1", "PET_NPROC_PER_NODE": "8"}, "8 processes a node (PET_NPROC_PER_NODE)"),
        ({"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-1"}, "2 hosts (SM_HOSTS)"),
        ({"PBS_JOBID": "7.pbs", "PBS_NUM_NODES": "4"}, "4 nodes (PBS_NUM_NODES)"),
        ({"NHOSTS": "4", "PE_HOSTFILE": "/spool/pe_hostfile"}, "4 hosts (NHOSTS)"),
        ({"AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_NODE_INDEX": "1"}, "2 nodes (AWS_BATCH_JOB_NUM_NODES)"),
        ({"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}, "2 nodes (SKYPILOT_NUM_NODES)"),
        ({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "batch3 1 h1 42 h2 42"}, "3 hosts (LSB_MCPU_HOSTS)"),
    ],
)
def test_one_process_with_room_for_more_gets_a_warning_with_its_launcher(environ: Environ, words: str) -> None:
    world = resolve(environ)
    assert (world.launcher, world.world_size, len(world.warnings)) == ("single", 1, 1)
    assert world.warnings[0].startswith(f"this job has {words}, and this is one process: ")


@pytest.mark.parametrize(
    "environ",
    [
        {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "auto"},
        {"SM_HOSTS": '["algo-1"]'},
        {"PBS_NUM_NODES": "1"},
        {"PBS_NUM_NODES": "x"},
        {"LSB_MCPU_HOSTS": "n1 4"},
        {"NHOSTS": "4"},
    ],
)
def test_one_process_in_a_job_for_one_gets_no_warning(environ: Environ) -> None:
    assert resolve(environ).warnings == ()


@pytest.mark.parametrize(
    "environ",
    [
        plain(LOCAL_RANK="5", LOCAL_WORLD_SIZE="8", NODE_RANK="1"),
        plain(LOCAL_RANK="4", LOCAL_WORLD_SIZE="4", NODE_RANK="1"),
        DEEPSPEED | {"CROSS_RANK": "2"},
        plain(GROUP_RANK="1", GROUP_WORLD_SIZE="1"),
    ],
)
def test_impossible_node_ranks_are_refused(environ: Environ) -> None:
    with pytest.raises(ContradictoryEnvironment, match="does not fit"):
        resolve(environ)


LIGHTNING = {"NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23456"}
"""lightning_fabric/strategies/launchers/subprocess_script.py: no RANK."""


def test_a_process_started_by_lightning_on_the_first_node_has_its_local_rank_as_rank() -> None:
    world = resolve(LIGHTNING)
    assert summarize(world) == (1, 1, 2, None, 0, None)
    assert world.sources["rank"] == "LOCAL_RANK, on the first node"


@pytest.mark.parametrize("change", [{"NODE_RANK": "1"}, {"NODE_RANK": ""}, {"LOCAL_RANK": ""}, {"MASTER_PORT": ""}])
def test_on_other_nodes_or_without_a_node_rank_the_rank_stays_unknown(change: Environ) -> None:
    with pytest.raises(IncompleteEnvironment, match="RANK is not set"):
        resolve(LIGHTNING | change)


def test_ranks_started_inside_a_pod_count() -> None:
    assert summarize(resolve(plain(PET_NNODES="2", PET_NODE_RANK="1", PET_NPROC_PER_NODE="4")))[:3] == (5, None, 8)
