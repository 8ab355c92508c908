"""The order of the launchers (torchrun, MPI, plain variables, single process), and environments that are refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment
from hpc_kit.runtime import World, launchers, resolve
from hpc_kit.runtime.launchers import LAUNCHERS
from tests.runtime.launches import Environ, Step, captured_case, worker

MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
PALS = {"PALS_RANKID": "5", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "4", "PALS_NODEID": "1", "PMI_SIZE": "8"}
PLAIN = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "n1", "MASTER_PORT": "12345"}


def summarize(world: World) -> tuple[str, int, int | None, int, int | None, int | None, int | None]:
    return (
        world.launcher,
        world.rank,
        world.local_rank,
        world.world_size,
        world.local_world_size,
        world.node_rank,
        world.nnodes,
    )


def test_launchers_are_tried_from_the_innermost_outwards() -> None:
    assert list(LAUNCHERS) == ["torchrun", "ssh", "mpi", "submitit", "slurm", "env", "single"]


def test_a_process_without_variables_has_no_launcher() -> None:
    world = resolve({})
    assert summarize(world) == ("single", 0, 0, 1, 1, 0, 1)
    assert (world.master_addr, world.master_port, world.warnings) == (None, None, ())


def test_resolving_reads_only_the_given_environment_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    environ = Step.of(2, 2).environ(3)
    before = dict(environ)
    assert resolve(environ) == resolve(environ)
    assert environ == before
    assert len({resolve(environ), resolve(environ), resolve({})}) == 2


def test_a_worker_of_torchrun_gets_its_ranks_from_torchrun() -> None:
    world = resolve(worker(5))
    assert summarize(world) == ("torchrun", 5, 1, 8, 4, 1, 2)
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
def test_a_worker_of_torchrun_does_not_depend_on_the_launcher_of_its_agent(around: Environ) -> None:
    assert summarize(resolve(around | worker(5))) == ("torchrun", 5, 1, 8, 4, 1, 2)


def test_more_ranks_of_mpirun_than_agents_of_torchrun_are_a_warning() -> None:
    """`mpirun -n 2 torchrun --nproc-per-node 4` without --nnodes starts two separate trainings."""
    around = MPIRUN | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    (warning,) = resolve(around | worker(1, agents=1)).warnings
    assert warning == (
        "Open MPI's launch has 2 ranks (OMPI_COMM_WORLD_SIZE) and torchrun 1 agents (GROUP_WORLD_SIZE): "
        "torchrun --nnodes=2, where each of them is an agent"
    )
    assert resolve(around | worker(5, agents=2)).warnings == ()
    assert resolve({"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "0"} | worker(5, agents=2)).warnings == ()


def test_restarts_of_torchrun_have_separate_rendezvous() -> None:
    first, second = resolve(worker(5)), resolve(worker(5, TORCHELASTIC_RESTART_COUNT="1"))
    assert first.key != second.key
    assert second.name == "the torchrun run 77, restart 1"


def test_fewer_agents_than_tasks_of_the_step_are_a_warning() -> None:
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
    for left in ({"MASTER_ADDR": "n1-ib0"}, {"MASTER_ADDR": "n2"}):
        with pytest.raises(ContradictoryEnvironment, match="torchrun's variables are of another job"):
            resolve(shell | worker(5) | left)
        assert resolve(shell | worker(5) | left | {"HPC_KIT_LAUNCHER": "torchrun"}).launcher == "torchrun"


@pytest.mark.parametrize("address", ["n1", "n1.site.edu", "N1", "localhost", "127.0.0.1"])
def test_several_agents_on_the_only_node_of_a_job_belong_to_that_job(address: str) -> None:
    shell = captured_case("10_batch_shell_8task_job@22.05")[0] | {"SLURM_JOB_NUM_NODES": "1"}
    world = resolve(shell | worker(5, MASTER_ADDR=address))
    assert (world.nnodes, world.warnings) == (2, ())


def test_several_agents_on_the_node_from_which_the_job_was_submitted_are_a_warning() -> None:
    shell = captured_case("10_batch_shell_8task_job@22.05")[0] | {"SLURM_JOB_NUM_NODES": "1"}
    world = resolve(shell | worker(5) | {"SLURM_SUBMIT_HOST": "n1"})
    (warning,) = world.warnings
    assert world.nnodes == 2
    assert warning.startswith("more agents than the job has nodes: GROUP_WORLD_SIZE = 2, SLURM_JOB_NUM_NODES = 1")


def test_agents_in_a_step_started_from_an_interactive_shell_all_count() -> None:
    for rank, step in enumerate(Step.of(2).environs()):
        mine = worker(rank * 4, MASTER_ADDR="10.0.0.1")
        assert resolve(step | {"SLURM_PTY_PORT": "4711"} | mine).rank == rank * 4


def test_an_mpirun_of_another_job_is_refused_on_task_0_of_an_interactive_shell_too() -> None:
    around = Step.of(1, 1).environ(0) | {"SLURM_PTY_PORT": "4711", "SLURM_SUBMIT_HOST": "n9", "PMIX_HOSTNAME": "n9"}
    left = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"}
    with pytest.raises(ContradictoryEnvironment, match="two launchers claim this process"):
        resolve(around | left)


def test_a_warning_names_the_missing_variable_and_the_submitter() -> None:
    part = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "-5", "SLURM_STEP_NUM_TASKS": "4"}
    (missing,) = resolve(part).warnings
    assert "but no SLURMD_NODENAME:" in missing
    shell = captured_case("10_batch_shell_8task_job@22.05")[0]
    for host, submitted in (("login", False), ("n2", True)):
        world = resolve(shell | {"PMI_RANK": "0", "PMI_SIZE": "2", "SLURM_SUBMIT_HOST": host})
        assert ("that has submitted this one" in world.warnings[-1]) == submitted


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


def test_a_run_id_without_other_variables_is_ignored() -> None:
    world = resolve(Step.of(2, 2).environ(3) | {"TORCHELASTIC_RUN_ID": "77"})
    assert world.launcher == "slurm"
    assert "TORCHELASTIC_RUN_ID = 77 (left by a torchrun outside of this step)" in world.ignored


@pytest.mark.parametrize("environ", [MPIRUN, HYDRA], ids=["Open MPI", "Hydra"])
def test_a_rank_of_mpirun_has_all_values_except_its_node(environ: Environ) -> None:
    assert summarize(resolve(environ)) == ("mpi", 5, 1, 8, 4, None, None)


def test_on_one_node_a_rank_of_mpirun_has_its_node_too() -> None:
    assert summarize(resolve(MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"})) == ("mpi", 5, 1, 8, 8, 0, 1)


@pytest.mark.parametrize(
    ("environ", "node_rank"),
    [
        (
            {
                f"MV2_COMM_WORLD_{name}": value
                for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "5814", strict=True)
            },
            None,
        ),
        ({"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4"}, None),
        (PALS, 1),
        (PALS | {"PMI_RANK": "5", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4"}, 1),
    ],
    ids=["MVAPICH2", "Cray PMI", "PALS", "PALS with Cray PMI"],
)
def test_ranks_of_other_mpis_have_the_same_values(environ: Environ, node_rank: int | None) -> None:
    assert summarize(resolve(environ)) == ("mpi", 5, 1, 8, 4, node_rank, None)


def test_pmi_without_a_local_rank_is_a_launch_with_unknown_nodes() -> None:
    assert summarize(resolve({"PMI_RANK": "5", "PMI_SIZE": "8"})) == ("mpi", 5, None, 8, None, None, None)


@pytest.mark.parametrize("left", [{"PMI_RANK": "5", "PMI_SIZE": "8"}, {"PMIX_RANK": "5"}, PALS])
def test_in_a_batch_shell_pmi_variables_come_from_the_step_of_the_submitter(left: Environ) -> None:
    world = resolve(captured_case("10_batch_shell_8task_job@22.05")[0] | left)
    assert world.launcher == "single"
    assert any("PMI" in note for note in world.ignored) or left == PALS


def test_in_a_step_pmi_variables_belong_to_the_step() -> None:
    world = resolve(Step.of(4, 4).environ(5) | PALS)
    assert (summarize(world), world.agrees) == (("slurm", 5, 1, 8, 4, 1, 2), ("PMI_SIZE = 8",))


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        ({"PMI_RANK": "5"}, "PMI_SIZE"),
        ({"PMI_SIZE": "8"}, "PMI_RANK"),
        ({"OMPI_COMM_WORLD_RANK": "5"}, "OMPI_COMM_WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "8", "SLURM_JOB_ID": "77"}, "OMPI_COMM_WORLD_RANK"),
        ({"PALS_RANKID": "5", "PALS_LOCAL_RANKID": "1"}, "number of ranks"),
        ({"PMIX_RANK": "5"}, "number of ranks"),
    ],
)
def test_a_half_set_mpi_is_refused_with_the_missing_variable(environ: Environ, missing: str) -> None:
    with pytest.raises(IncompleteEnvironment, match=missing):
        resolve(environ)


def test_a_world_of_one_in_a_step_of_eight_names_the_missing_plugin() -> None:
    alone = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    with pytest.raises(ContradictoryEnvironment) as refused:
        resolve(Step.of(*[1] * 8).environ(5) | alone)
    assert "the srun step says rank 5 of 8" in str(refused.value)
    assert "srun --mpi=pmix, so that MPI sees the step's ranks (srun --mpi=list" in str(refused.value)


def test_an_mpirun_on_a_node_outside_of_the_step_is_ignored() -> None:
    step = Step(tuple(range(2)), ("n3", "n4"), job_hosts=("n1", "n2", "n3", "n4"))
    assert resolve(step.environ(1) | MPIRUN | {"PMIX_HOSTNAME": "n4"}).launcher == "mpi"
    with pytest.raises(ContradictoryEnvironment):
        resolve(step.environ(1) | MPIRUN | {"PMIX_HOSTNAME": "n2"})


SUBMITIT = {
    "SUBMITIT_EXECUTOR": "local",
    "SUBMITIT_LOCAL_GLOBALID": "1",
    "SUBMITIT_LOCAL_LOCALID": "1",
    "SUBMITIT_LOCAL_NTASKS": "2",
    "SUBMITIT_LOCAL_JOB_ID": "4711",
}


def test_a_task_of_submitits_local_executor_has_its_rank() -> None:
    world = resolve(SUBMITIT)
    assert (summarize(world), world.name) == (("submitit", 1, 1, 2, 2, 0, 1), "submitit's local job 4711")
    assert resolve(SUBMITIT | Step.of(1).environ(0)).launcher == "submitit"
    with pytest.raises(ContradictoryEnvironment, match="two launchers"):
        resolve(SUBMITIT | Step.of(2, 2).environ(3))


def test_tasks_of_submitits_slurm_executor_are_tasks_of_the_step() -> None:
    left = SUBMITIT | {"SUBMITIT_EXECUTOR": "slurm"}
    assert resolve(left | Step.of(2, 2).environ(3)).launcher == "slurm"


@pytest.mark.parametrize(
    ("address", "launcher"),
    [
        ("n1", "single"),
        ("n1.cluster.example", "single"),
        ("n1-ib0", "torchrun"),
        ("10.0.0.1", "torchrun"),
        ("n3", "torchrun"),
        ("n03", "torchrun"),
    ],
)
def test_a_torchrun_on_nodes_of_another_job_is_ignored_if_the_host_name_is_certain(address: str, launcher: str) -> None:
    shell = captured_case("10_batch_shell_8task_job@22.05")[0]
    shell |= {"SLURM_JOB_NODELIST": "n[3-4]", "SLURM_NODELIST": "n[3-4]", "SLURMD_NODENAME": "n3"}
    assert resolve(shell | worker(5, MASTER_ADDR=address) | {"SLURM_SUBMIT_HOST": "n1.example"}).launcher == launcher
    # A job submitted on the login host inherits nothing from a rank.
    assert resolve(shell | worker(5, MASTER_ADDR=address)).launcher == "torchrun"


def test_variables_ignored_as_those_of_another_job_are_listed_and_can_be_forced() -> None:
    shell = captured_case("10_batch_shell_8task_job@22.05")[0] | {"SLURMD_NODENAME": "n2", "SLURM_SUBMIT_HOST": "n9"}
    lefts = {"torchrun": worker(5, MASTER_ADDR="n9"), "mpi": MPIRUN | {"PMIX_HOSTNAME": "n9"}}
    for launcher, left in lefts.items():
        world = resolve(shell | left)
        assert world.launcher == "single"
        assert world.warnings[1].endswith(f"this is one process; to use them, set HPC_KIT_LAUNCHER={launcher}")
        assert resolve(shell | left | {"HPC_KIT_LAUNCHER": launcher}).launcher == launcher


def find_my_launcher(environ: Mapping[str, str]) -> World | None:
    """A launcher of a plug-in."""
    return replace(resolve({}), launcher="mine", name="my launcher") if "MINE" in environ else None


def install_plugin(monkeypatch: pytest.MonkeyPatch, folder: Path, line: str) -> None:
    """Install a package with an entry point."""
    (folder / "mine-1.0.dist-info").mkdir()
    (folder / "mine-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (folder / "mine-1.0.dist-info/entry_points.txt").write_text(f"[{launchers.PLUGIN_GROUP}]\n{line}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_a_launcher_plugin_is_used_if_no_other_matches_or_if_it_is_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_plugin(monkeypatch, tmp_path, "mine = tests.runtime.launchers.test_launchers:find_my_launcher")
    launchers.plugin_launchers.cache_clear()
    try:
        assert resolve({"MINE": "1"} | PLAIN).launcher == "mine"
        assert resolve({"MINE": "1"} | worker(5)).launcher == "torchrun"
        assert resolve({"MINE": "1", "HPC_KIT_LAUNCHER": "mine"} | worker(5)).name == "my launcher"
        with pytest.raises(IncompleteEnvironment, match="single, mine"):
            resolve({"HPC_KIT_LAUNCHER": "yours"})
    finally:
        launchers.plugin_launchers.cache_clear()


def test_a_launcher_plugin_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_plugin(monkeypatch, tmp_path, "broken = no_such_module:launcher")
    launchers.plugin_launchers.cache_clear()
    try:
        with pytest.raises(IncompleteEnvironment, match="the launcher 'broken' cannot be loaded"):
            resolve({})
    finally:
        launchers.plugin_launchers.cache_clear()


def test_variables_that_slurm_sets_in_every_job_are_no_mpirun() -> None:
    names = ("OMPI_MCA_plm_slurm_args", "PRTE_MCA_plm_slurm_args", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP")
    world = resolve(Step.of(2, 2).environ(3) | dict.fromkeys(names, "slurm"))
    assert (world.launcher, world.ignored) == (
        "slurm",
        (f"{', '.join(names)} (set in every job by Slurm; no sign of MPI)",),
    )


def test_mpirun_counts_before_the_step_of_its_daemon() -> None:
    assert summarize(resolve(Step.of(1, 1).environ(1) | MPIRUN))[:4] == ("mpi", 5, 1, 8)


def test_a_step_with_the_same_ranks_adds_its_nodes() -> None:
    """Children of a rank of Open MPI under `srun --mpi=pmix` inherit the variables that MPI_Init has set."""
    assert summarize(resolve(Step.of(4, 4).environ(5) | MPIRUN)) == ("slurm", 5, 1, 8, 4, 1, 2)


def test_mpi_variables_of_another_launch_in_a_step_are_refused() -> None:
    with pytest.raises(ContradictoryEnvironment) as refused:
        resolve(Step.of(4, 4).environ(2) | MPIRUN)
    assert "the srun step says rank 2 of 8" in str(refused.value)
    assert "MPI says rank 5 of 8 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)" in str(refused.value)


def test_plain_variables_count_without_a_launcher() -> None:
    world = resolve(PLAIN)
    assert summarize(world) == ("env", 3, None, 4, None, None, None)
    assert (world.master_addr, world.master_port) == ("n1", 12345)


def test_plain_variables_count_in_a_batch_shell() -> None:
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


def test_the_users_choice_has_priority() -> None:
    step = Step.of(1).environ(0) | PLAIN
    with pytest.raises(ContradictoryEnvironment):
        resolve(step)
    assert resolve(step | {"HPC_KIT_LAUNCHER": "env"}).world_size == 4
    assert resolve(step | {"HPC_KIT_LAUNCHER": "single"}).world_size == 1


@pytest.mark.parametrize(
    ("choice", "words"), [("slrum", "HPC_KIT_LAUNCHER names no launcher"), ("slurm", "has not started this process")]
)
def test_an_impossible_choice_is_refused(choice: str, words: str) -> None:
    with pytest.raises(IncompleteEnvironment, match=words):
        resolve({"HPC_KIT_LAUNCHER": choice})


def pass_through_container(step: Environ, *names: str) -> Environ:
    """Return the variables of a step that `docker run -e NAME ...` passes on."""
    return {name: step[name] for name in ("SLURM_JOB_ID", "SLURM_PROCID", *names)}


@pytest.mark.parametrize("node", [0, 1])
def test_in_a_container_a_step_without_its_size_does_not_contradict_a_launcher(node: int) -> None:
    around = pass_through_container(Step.of(1, 1).environ(node), "SLURM_NODEID")
    assert summarize(resolve(around | worker(4 * node + 1)))[:4] == ("torchrun", 4 * node + 1, 1, 8)
    assert summarize(resolve(around | MPIRUN))[:4] == ("mpi", 5, 1, 8)


def test_a_world_of_one_is_refused_in_a_step_of_unknown_size_too() -> None:
    around = pass_through_container(Step.of(1, 1).environ(1), "SLURM_NODEID")
    with pytest.raises(IncompleteEnvironment, match="SLURM_STEP_NUM_TASKS is not set"):
        resolve(around | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"})


INSIDE = {
    "torchrun": worker(1, agents=1, per_agent=2),
    "mpi": MPIRUN,
    "submitit": SUBMITIT,
    "env": PLAIN | {"WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_SIZE": "8", "CROSS_RANK": "0", "CROSS_SIZE": "1"},
}


@pytest.mark.parametrize(("launcher", "inside"), INSIDE.items(), ids=INSIDE)
@pytest.mark.parametrize("step", [Step.of(4), Step.of(2, 2)], ids=["one node", "two nodes"])
def test_a_launcher_in_an_interactive_shell_counts_there_and_not_in_later_steps(
    launcher: str, inside: Environ, step: Step
) -> None:
    shell = step.environ(0) | {"SLURM_PTY_PORT": "4711"}
    assert resolve(shell | inside).launcher == launcher
    for environ in step.environs()[1:]:
        with pytest.raises(ContradictoryEnvironment, match="two launchers claim this process"):
            resolve(environ | {"SLURM_PTY_PORT": "4711"} | inside)


def test_torchrun_agents_under_mpirun_are_checked_against_its_size_and_hosts() -> None:
    environ = captured_case("74_torchrun_under_mpirun_3nodes@22.05")[4]
    assert resolve(environ).warnings == ()
    for change in ({"OMPI_COMM_WORLD_SIZE": "1"}, {"PMIX_HOSTNAME": "n1"}):
        with pytest.raises(ContradictoryEnvironment, match="two launchers"):
            resolve(environ | change)


def test_flux_may_run_one_process_in_a_step_of_its_brokers() -> None:
    flux = {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1", "FLUX_TASK_LOCAL_ID": "0", "FLUX_JOB_NNODES": "1"}
    assert summarize(resolve(Step.of(1, 1).environ(1) | flux)) == ("mpi", 0, 0, 1, 1, 0, 1)


OTHERS = {
    "torchrun": Step.of(1, 1).environ(1) | worker(1, agents=1, per_agent=2),
    "mpi": Step.of(4, 4).environ(2) | MPIRUN,
    "slurm": Step.of(4, 4).environ(2) | MPIRUN | {"RANK": "7", "WORLD_SIZE": "9"},
}


@pytest.mark.parametrize(("launcher", "environ"), OTHERS.items(), ids=OTHERS)
def test_the_chosen_launcher_has_priority_and_is_named_in_a_refusal(launcher: str, environ: Environ) -> None:
    with pytest.raises(ContradictoryEnvironment, match="HPC_KIT_LAUNCHER"):
        resolve(environ)
    world = resolve(environ | {"HPC_KIT_LAUNCHER": launcher})
    assert (world.launcher, world.agrees) == (launcher, ())
    left = any("not asked: HPC_KIT_LAUNCHER" in note for note in world.ignored)
    assert left == (launcher != "slurm")


def test_a_chosen_mpi_provides_rank_and_size() -> None:
    environ = Step.of(4).environ(2) | {"PMI_RANK": "1", "PMI_SIZE": "2", "HPC_KIT_LAUNCHER": "mpi"}
    assert summarize(resolve(environ))[:4] == ("mpi", 1, None, 2)


def test_more_ranks_of_mpirun_than_tasks_in_a_job_submitted_from_a_node_are_a_warning() -> None:
    shell = captured_case("10_batch_shell_8task_job@22.05")[0] | {"SLURM_NTASKS": "4"}
    assert resolve(shell | MPIRUN).warnings == ()
    (warning,) = resolve(shell | MPIRUN | {"SLURM_SUBMIT_HOST": "n1"}).warnings
    assert warning.startswith("more ranks than the job has tasks: OMPI_COMM_WORLD_RANK = 5, OMPI_COMM_WORLD_SIZE = 8")
    assert resolve(shell | MPIRUN | {"SLURM_SUBMIT_HOST": "n1", "SLURM_NTASKS": "8"}).warnings == ()


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SLURM_JOB_ID": "7", "PMI_RANK": "3", "PMI_SIZE": "8"}, "PMI_RANK = 3, PMI_SIZE = 8"),
        ({"PBS_VNODENUM": "3"}, "4 nodes or more (PBS_VNODENUM)"),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "4"}, "have all of SLURM_*"),
    ],
)
def test_a_process_that_may_be_one_of_several_gets_a_warning(environ: Environ, words: str) -> None:
    world = resolve(environ)
    assert world.launcher == "single"
    (warning,) = world.warnings
    assert words in warning
    assert resolve(environ | {"HPC_KIT_LAUNCHER": "single"}).launcher == "single"


def test_ranks_of_prun_in_a_job_count_if_the_script_sets_their_number() -> None:
    shell = captured_case("10_batch_shell_8task_job@22.05")[0]
    rank = {"PMIX_RANK": "3", "PMIX_NAMESPACE": "prte-n1-99@2", "WORLD_SIZE": "8"}
    daemon = Step.of(1, 1).environ(1)
    assert [summarize(resolve(around | rank))[:4] for around in (shell, daemon)] == [("mpi", 3, None, 8)] * 2


COMPOSER = {"NODE_RANK": "1", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


def test_an_agent_per_node_that_sets_torchs_variables_counts_if_they_match_the_step() -> None:
    """Composer's launcher sets these names and no others (composer/cli/launcher.py)."""
    inside = COMPOSER | {"MASTER_ADDR": "n1", "MASTER_PORT": "29400"}
    assert summarize(resolve(Step.of(1, 1).environ(1) | inside)) == ("env", 5, 1, 8, 4, 1, None)
    for wrong in ({"NODE_RANK": "0"}, {"RANK": "6"}, {"WORLD_SIZE": "12"}, {"LOCAL_RANK": "0"}):
        with pytest.raises(ContradictoryEnvironment, match="two launchers"):
            resolve(Step.of(1, 1).environ(1) | inside | wrong)


def test_a_local_rank_of_0_with_the_right_rank_means_one_visible_device_per_task() -> None:
    step = Step.of(4, 4).environ(5)
    assert resolve(step | {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "0"}).local_rank == 1
    for wrong in (
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "2"},
        {"RANK": "4", "WORLD_SIZE": "8", "LOCAL_RANK": "0"},
    ):
        with pytest.raises(ContradictoryEnvironment, match="two launchers"):
            resolve(step | wrong)


def test_a_rank_without_a_plugin_does_not_wait_for_the_import_that_finds_plugins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program without torch would start a third later."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "importlib.metadata", raising=False)
    launchers.plugin_launchers.cache_clear()
    try:
        assert resolve({}).launcher == "single"
        assert "importlib.metadata" not in sys.modules
    finally:
        launchers.plugin_launchers.cache_clear()
