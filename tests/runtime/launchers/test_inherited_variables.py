"""Jobs and steps started inside a rank inherit its exported variables, and the runtime ignores them."""

from __future__ import annotations

import os

import pytest

import hpc_kit.runtime.__main__ as runtime_main
from hpc_kit.runtime import resolve
from hpc_kit.runtime.launchers import inherited_variables
from hpc_kit.runtime.program import ProgramCommand
from hpc_kit.runtime.rendezvous import meeting as rendezvous
from hpc_kit.runtime.torch_environment import rank_variables, torch_variables
from tests.runtime.launches import Environ, Step, captured_case, worker

SUBMITTER = Step.of(4, 4, job="77").environ(0)
SHELL = captured_case("10_batch_shell_8task_job@22.05")[0]


def exported(environ: Environ) -> Environ:
    """Return the variables that a rank with this environment passes to its children."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "MASTER", "HPC_KIT", "GLOO", "OMPI", "PMIX")
    variables = torch_variables(resolve(environ), environ)
    exports = {name: value for name, value in variables.items() if value} | {"GLOO_SOCKET_IFNAME": "lo"}
    whole = environ | exports | inherited_variables.export_marker(exports, environ)
    return {name: value for name, value in whole.items() if name.startswith(names)}


def test_the_batch_shell_of_a_job_submitted_by_a_rank_is_no_rank() -> None:
    world = resolve(SHELL | exported(SUBMITTER))
    assert (world.launcher, world.world_size, len(world.warnings)) == ("single", 1, 1)
    assert "RANK = 0 (exported by a rank of another launch, which has started this one)" in world.ignored


@pytest.mark.parametrize("job", ["77", "78"])
def test_steps_started_by_a_rank_have_the_ranks_of_their_step(job: str) -> None:
    step = Step.of(2, 2, hosts=("n3", "n4"), job=job)
    for rank, environ in enumerate(step.environs()):
        world = resolve(environ | {"SLURM_STEP_ID": "1"} | exported(SUBMITTER))
        assert (world.launcher, world.rank, world.master_addr, world.warnings) == ("slurm", rank, "n3", ())


def test_the_interface_is_detected_again_unless_the_user_chose_one() -> None:
    meeting = rendezvous.meet(resolve({}), environ={})
    found = torch_variables(meeting.world, {}, meeting)["GLOO_SOCKET_IFNAME"]
    left = exported(SUBMITTER) | {"GLOO_SOCKET_IFNAME": "ib7"}
    mark = {
        inherited_variables.EXPORT_MARKER: left[inherited_variables.EXPORT_MARKER].replace(
            "GLOO_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=ib7"
        )
    }
    assert torch_variables(meeting.world, SHELL | left | mark, meeting)["GLOO_SOCKET_IFNAME"] == found
    assert "GLOO_SOCKET_IFNAME" not in torch_variables(meeting.world, SHELL | left, meeting)
    meeting.leave()


def test_a_child_of_a_rank_is_that_rank() -> None:
    world = resolve(SUBMITTER | exported(SUBMITTER))
    assert "RANK = 0" in world.agrees
    assert world.master_port == resolve(SUBMITTER).master_port


def test_variables_that_a_script_sets_again_count() -> None:
    left = exported(SUBMITTER)
    by_hand = left | {"RANK": "1", "MASTER_ADDR": "n2", "MASTER_PORT": "29999"}
    assert (resolve(SHELL | by_hand).launcher, resolve(SHELL | by_hand).world_size) == ("env", 8)
    step = Step.of(2, 2).environ(3) | by_hand | {"RANK": left["RANK"]}
    assert (resolve(step).rank, resolve(step).master_port) == (3, 29999)
    assert resolve(SHELL | left | {"HPC_KIT_LAUNCHER": "env"}).launcher == "env"


def test_an_agent_in_a_job_that_a_rank_submitted_may_set_the_same_index_of_the_node() -> None:
    agents = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}
    left = exported(SUBMITTER)
    assert left["NODE_RANK"] == agents["NODE_RANK"]
    step = Step.of(1, 1, hosts=("n3", "n4"), job="78").environ(0)
    world = resolve(step | left | agents | {"MASTER_ADDR": "n3", "MASTER_PORT": "29400"})
    assert (world.launcher, world.rank, world.world_size, world.node_rank) == ("env", 1, 4, 0)


def test_an_address_that_a_script_sets_for_its_steps_does_not_make_its_shell_a_rank() -> None:
    world = resolve(SHELL | exported(SUBMITTER) | {"MASTER_ADDR": "n2", "MASTER_PORT": "29999"})
    assert (world.launcher, world.world_size) == ("single", 1)


def test_a_program_started_without_slurms_variables_is_the_rank_that_started_it() -> None:
    left = {name: value for name, value in exported(SUBMITTER).items() if not name.startswith("SLURM")}
    world = resolve(left)
    assert (world.launcher, world.rank, world.world_size) == ("env", 0, 8)


def test_a_rank_of_a_launch_by_hand_exports_its_address_to_submitted_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(runtime_main, "_run_program", lambda _what: None)
    monkeypatch.setattr(runtime_main, "find_spec", lambda _name: None)
    runtime_main._run_as_rank(ProgramCommand.read(["-m", "train"]), resolve(os.environ), starts_ranks=False)
    left = inherited_variables.inherited_exports(
        SHELL | {name: os.environ[name] for name in (*names, inherited_variables.EXPORT_MARKER)}
    )
    assert left == names


def test_local_rank_0_of_a_task_that_sees_one_gpu_is_kept() -> None:
    own = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "0"}
    environ = Step.of(4, 4).environ(3) | own
    world = resolve(environ)
    assert world.local_rank == 3
    assert world.agrees == ("RANK = 3", "WORLD_SIZE = 8")
    assert "LOCAL_RANK = 0 (the one GPU that this task sees)" in world.ignored
    assert rank_variables(world, environ)["LOCAL_RANK"] == "0"
    # If the user chooses Slurm, all of them are ignored.
    assert rank_variables(world, environ | {"HPC_KIT_LAUNCHER": "slurm"})["LOCAL_RANK"] == "3"


def test_a_torchrun_in_the_new_job_counts_even_with_the_numbers_of_the_submitter() -> None:
    left = exported(SUBMITTER)
    same = {name: left[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    assert resolve(SHELL | left | worker(0) | same).launcher == "torchrun"


def test_an_mpirun_of_another_job_is_recognized_by_its_job_id() -> None:
    rank = captured_case("34_ompi4_mpirun@22.05")[0]
    left = exported(rank)
    shell = SHELL | {"SLURM_JOB_ID": "4711"}
    assert resolve(shell | left).launcher == "single"
    # A new mpirun has another one. Its ranks also carry the marker of the submitting rank.
    assert resolve(shell | left | {"PMIX_NAMESPACE": "5", "OMPI_MCA_ess_base_jobid": "5"}).launcher == "mpi"
    assert resolve(SHELL | {"SLURM_JOB_ID": rank["SLURM_JOB_ID"], "SLURM_STEP_ID": "9"} | left).launcher == "mpi"
