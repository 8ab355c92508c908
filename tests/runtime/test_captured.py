"""Environments captured on real clusters: each rank's `World` has the values that the launch itself reported."""

from __future__ import annotations

import pytest

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime import resolve
from tests.runtime.launches import Case, captured

NUMBERS = ("rank", "local_rank", "world_size", "local_world_size", "node_rank", "nnodes")

CASES = captured()
RANKS = [case for case in CASES if case["expect"] == "ranks"]
SHELLS = [case for case in CASES if case["expect"] == "single"]
REFUSED = [case for case in CASES if case["expect"] == "refused"]

OF_THE_JOB = {
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NNODES",
    "SLURM_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
    "HOSTNAME",
}

NOT_TOLD_BY_MPIRUN = {"node_rank", "nnodes"}


def name(case: Case) -> str:
    return case["case"]


def test_captures_of_both_releases_exist() -> None:
    assert {case["case"].rpartition("@")[2] for case in CASES} == {"22.05", "26.05"}


@pytest.mark.parametrize("case", [*RANKS, *SHELLS], ids=name)
def test_every_rank_has_the_values_of_its_launch(case: Case) -> None:
    for rank in case["ranks"]:
        world, truth = resolve(rank["env"]), rank["truth"]
        told = {name: getattr(world, name) for name in (*NUMBERS, "launcher")}
        if truth["launcher"] == "mpi" and truth["nnodes"] != 1:
            assert {told.pop(name) for name in NOT_TOLD_BY_MPIRUN} == {None}
        assert told == {name: truth[name] for name in told}


@pytest.mark.parametrize("case", RANKS, ids=name)
def test_rank_0_is_sought_on_its_host(case: Case) -> None:
    for rank in case["ranks"]:
        world = resolve(rank["env"])
        where = (world.master_addr,) if world.master_addr else world.hosts
        assert rank["truth"]["first_host"] in where


@pytest.mark.parametrize("case", RANKS, ids=name)
def test_all_ranks_agree_on_port_and_key(case: Case) -> None:
    worlds = [resolve(rank["env"]) for rank in case["ranks"]]
    assert len({(world.key, world.master_port, world.world_size) for world in worlds}) == 1


@pytest.mark.parametrize("case", RANKS, ids=name)
def test_a_launch_has_no_warnings(case: Case) -> None:
    assert [resolve(rank["env"]).warnings for rank in case["ranks"]] == [()] * len(case["ranks"])


@pytest.mark.parametrize("case", SHELLS, ids=name)
def test_a_batch_shell_of_several_tasks_gets_the_advice_to_use_srun(case: Case) -> None:
    (rank,) = case["ranks"]
    world, tasks = resolve(rank["env"]), int(rank["env"].get("SLURM_NTASKS", "1"))
    assert world.world_size == 1
    of_srun = [f"{tasks} tasks" in warning and "srun" in warning for warning in world.warnings]
    left = "_in_torchrun_" in case["case"] or "_in_mpirun_" in case["case"]
    assert of_srun == [True] * (tasks > 1) + [False] * left
    assert all("that has submitted this one" in warning for warning in world.warnings[1:])


@pytest.mark.parametrize("case", REFUSED, ids=name)
def test_variables_of_another_launch_are_refused_on_every_rank_with_both_numbers(case: Case) -> None:
    for rank in case["ranks"]:
        with pytest.raises(ContradictoryEnvironment) as refused:
            resolve(rank["env"])
        assert f"the srun step {'has' if 'torchrun' in case['case'] else 'says'}" in str(refused.value)
        assert {"RANK", "OMPI_COMM_WORLD_RANK"} & set(str(refused.value.remedy).replace(";", " ").split())


@pytest.mark.parametrize("case", [case for case in CASES if case["expect"] == "ranks"], ids=name)
def test_no_rank_needs_an_optional_variable_of_the_job(case: Case) -> None:
    for rank in case["ranks"]:
        environ = {name: value for name, value in rank["env"].items() if name not in OF_THE_JOB}
        assert resolve(environ).rank == rank["truth"]["rank"]
        assert resolve(environ).local_world_size == rank["truth"]["local_world_size"]
