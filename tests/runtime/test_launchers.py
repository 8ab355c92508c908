"""torchrun, MPI, plain variables, nobody: who answers, and when the whole is refused."""

from __future__ import annotations

import pytest

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment
from hpc_kit.runtime import World, resolve
from hpc_kit.runtime.launchers import LAUNCHERS
from tests.runtime.launches import Environ, Step, captured_case, worker

MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
PLAIN = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "n1", "MASTER_PORT": "12345"}


def told(world: World) -> tuple[str, int, int | None, int, int | None, int | None, int | None]:
    return (
        world.launcher,
        world.rank,
        world.local_rank,
        world.world_size,
        world.local_world_size,
        world.node_rank,
        world.nnodes,
    )


def test_the_order_is_from_the_innermost_launcher_outwards() -> None:
    assert list(LAUNCHERS) == ["torchrun", "mpi", "slurm", "env", "single"]


def test_nobody_started_a_process_without_variables() -> None:
    world = resolve({})
    assert told(world) == ("single", 0, 0, 1, 1, 0, 1)
    assert (world.master_addr, world.master_port, world.warnings) == (None, None, ())


def test_resolving_reads_no_other_environment_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    environ = Step.of(2, 2).environ(3)
    before = dict(environ)
    assert resolve(environ) == resolve(environ)
    assert environ == before
    assert len({resolve(environ), resolve(environ), resolve({})}) == 2


def test_a_worker_of_torchrun_believes_torchrun() -> None:
    world = resolve(worker(5))
    assert told(world) == ("torchrun", 5, 1, 8, 4, 1, 2)
    assert (world.master_addr, world.master_port, world.name) == ("n1", 29400, "the torchrun run 77")


@pytest.mark.parametrize(
    "around",
    [
        Step.of(1, 1).environ(1),
        Step.of(1).environ(0),
        Step.of(1, 1).environ(1) | {"PMI_RANK": "1", "PMI_SIZE": "2"},
        Step.of(1, 1).environ(1) | {"PMIX_RANK": "1"},
        MPIRUN,
    ],
    ids=["step", "a step for each agent", "pmi2", "pmix", "mpirun"],
)
def test_whatever_started_the_agent(around: Environ) -> None:
    assert told(resolve(around | worker(5))) == ("torchrun", 5, 1, 8, 4, 1, 2)


def test_restarts_of_torchrun_meet_apart() -> None:
    first, second = resolve(worker(5)), resolve(worker(5, TORCHELASTIC_RESTART_COUNT="1"))
    assert first.key != second.key
    assert second.name == "the torchrun run 77, restart 1"


def test_agents_that_are_fewer_than_the_steps_tasks_are_a_warning() -> None:
    world = resolve(Step.of(1, 1, 1).environ(1) | worker(5))
    assert world.warnings == ("2 agents make this world, and the step has 3 tasks (GROUP_WORLD_SIZE)",)


@pytest.mark.parametrize(
    "around", [Step.of(4, 4).environ(5), Step.of(1, 1, 1, 1).environ(2)], ids=["ranks", "agents that did not meet"]
)
def test_torchruns_variables_in_a_later_step_are_refused(around: Environ) -> None:
    with pytest.raises(ContradictoryEnvironment) as refused:
        resolve(around | worker(1, agents=1, per_agent=2))
    assert "torchrun says rank 1 of 2, from 1 agents" in str(refused.value)
    assert f"the srun step has {around['SLURM_STEP_NUM_TASKS']} tasks" in str(refused.value)


def test_torchruns_variables_in_another_jobs_batch_shell_are_refused() -> None:
    shell = captured_case("10_batch_shell_8task_job@22.05")[0] | {"SLURM_JOB_NUM_NODES": "1"}
    with pytest.raises(ContradictoryEnvironment, match="torchrun's variables are of another job"):
        resolve(shell | worker(5))


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"])
def test_a_half_set_torchrun_is_refused(name: str) -> None:
    environ = worker(5)
    del environ[name]
    with pytest.raises(IncompleteEnvironment, match=f"^{name} is not set"):
        resolve(environ)


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT"])
def test_a_torchrun_without_address_is_refused(name: str) -> None:
    with pytest.raises(IncompleteEnvironment, match="torchrun's address is not set"):
        resolve(worker(5) | {name: ""})


def test_a_run_id_alone_is_left_over() -> None:
    world = resolve(Step.of(2, 2).environ(3) | {"TORCHELASTIC_RUN_ID": "77"})
    assert world.launcher == "slurm"
    assert "TORCHELASTIC_RUN_ID = 77 (left by a torchrun outside of this step)" in world.left


@pytest.mark.parametrize("environ", [MPIRUN, HYDRA], ids=["Open MPI", "Hydra"])
def test_a_rank_of_mpirun_knows_all_but_its_node(environ: Environ) -> None:
    assert told(resolve(environ)) == ("mpi", 5, 1, 8, 4, None, None)


def test_on_one_node_it_knows_its_node_too() -> None:
    assert told(resolve(MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"})) == ("mpi", 5, 1, 8, 8, 0, 1)


def test_pmi_without_local_rank_is_no_mpirun() -> None:
    assert resolve({"PMI_RANK": "5", "PMI_SIZE": "8"}).launcher == "single"


def test_names_that_slurm_sets_in_every_job_are_no_mpirun() -> None:
    names = ("OMPI_MCA_plm_slurm_args", "PRTE_MCA_plm_slurm_args", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP")
    world = resolve(Step.of(2, 2).environ(3) | dict.fromkeys(names, "slurm"))
    assert (world.launcher, world.left) == (
        "slurm",
        (f"{', '.join(names)} (set in every job by Slurm; no sign of MPI)",),
    )


@pytest.mark.parametrize("around", [Step.of(1, 1).environ(1), Step.of(4, 4).environ(5)], ids=["daemon", "same ranks"])
def test_mpirun_counts_before_the_step_of_its_daemon_or_of_its_own_ranks(around: Environ) -> None:
    assert told(resolve(around | MPIRUN))[:4] == ("mpi", 5, 1, 8)


def test_mpi_of_another_launch_in_a_step_is_refused() -> None:
    with pytest.raises(ContradictoryEnvironment) as refused:
        resolve(Step.of(4, 4).environ(2) | MPIRUN)
    assert "the srun step says rank 2 of 8" in str(refused.value)
    assert "MPI says rank 5 of 8 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)" in str(refused.value)


def test_plain_variables_are_believed_where_no_launcher_is() -> None:
    world = resolve(PLAIN)
    assert told(world) == ("env", 3, None, 4, None, None, None)
    assert (world.master_addr, world.master_port) == ("n1", 12345)


def test_plain_variables_are_believed_in_a_batch_shell() -> None:
    assert resolve(captured_case("10_batch_shell_8task_job@22.05")[0] | PLAIN).launcher == "env"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "3"}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "4"}, "RANK is not set"),
        ({"RANK": "3", "WORLD_SIZE": "4"}, "the ranks have no address to meet at"),
        (PLAIN | {"MASTER_PORT": ""}, "but no MASTER_PORT"),
    ],
)
def test_half_set_plain_variables_are_refused(environ: Environ, words: str) -> None:
    with pytest.raises(IncompleteEnvironment) as refused:
        resolve(environ)
    assert words in str(refused.value)


def test_a_world_size_of_one_is_no_launch() -> None:
    assert resolve({"WORLD_SIZE": "1", "LOCAL_RANK": "0"}).launcher == "single"


@pytest.mark.parametrize("environ", [PLAIN | {"RANK": "4"}, worker(8), MPIRUN | {"OMPI_COMM_WORLD_RANK": "8"}])
def test_a_rank_beyond_the_world_is_refused(environ: Environ) -> None:
    with pytest.raises(ContradictoryEnvironment, match="does not fit world_size"):
        resolve(environ)


def test_the_user_has_the_last_word() -> None:
    step = Step.of(1).environ(0) | PLAIN
    with pytest.raises(ContradictoryEnvironment):
        resolve(step)
    assert resolve(step | {"HPC_KIT_LAUNCHER": "env"}).world_size == 4
    assert resolve(step | {"HPC_KIT_LAUNCHER": "single"}).world_size == 1


@pytest.mark.parametrize(
    ("choice", "words"), [("slrum", "HPC_KIT_LAUNCHER names no launcher"), ("slurm", "has not started this process")]
)
def test_a_last_word_that_cannot_be_is_refused(choice: str, words: str) -> None:
    with pytest.raises(IncompleteEnvironment, match=words):
        resolve({"HPC_KIT_LAUNCHER": choice})
