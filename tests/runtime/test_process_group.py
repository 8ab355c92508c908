"""`with hpc_kit.distributed() as world:` for a world of one, in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import distributed as dist

import hpc_kit
from hpc_kit.cli import doctor
from hpc_kit.errors import IncompleteEnvironment, SpecError
from hpc_kit.run_files import read_first_failure
from hpc_kit.runtime import devices, joined_ranks, placement, process_group, resolve
from hpc_kit.runtime.joined_ranks import timeout_seconds
from hpc_kit.runtime.launchers import inherited_variables
from hpc_kit.runtime.torch_environment import environment_set, torch_variables
from tests.runtime.launches import Step, captured_case

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK")


@pytest.fixture(autouse=True)
def _threads_and_hooks_as_before() -> Iterator[None]:
    import sys

    threads, hook = torch.get_num_threads(), sys.excepthook
    yield
    torch.set_num_threads(threads)
    sys.excepthook = hook
    if dist.is_initialized():
        dist.destroy_process_group()


def test_one_process_gets_a_process_group_which_is_destroyed_at_the_end() -> None:
    before = dict(os.environ)
    with hpc_kit.distributed() as world:
        numbers = torch.ones(3)
        dist.all_reduce(numbers)
        world.barrier()
        assert (world.rank, world.world_size, world.local_rank, world.node_rank, world.nnodes) == (0, 1, 0, 0, 1)
        assert (world.is_main, world.backend, world.device, world.device_ids) == (
            True,
            "gloo",
            torch.device("cpu"),
            None,
        )
        assert (dist.get_world_size(), numbers.tolist()) == (1, [1.0, 1.0, 1.0])
        assert [os.environ[name] for name in NAMES] == ["0", "1", "0", "1", "0", "1", "0"]
        assert (os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")
        assert isinstance(world, hpc_kit.World)
    assert not dist.is_initialized()
    assert dict(os.environ) == before


def test_a_group_inside_a_group_is_the_same() -> None:
    with hpc_kit.distributed() as outer:
        with hpc_kit.distributed() as inner:
            assert inner.rank == outer.rank
        assert dist.is_initialized()
    with hpc_kit.distributed():
        assert dist.is_initialized()


def test_a_group_created_by_the_program_is_not_destroyed() -> None:
    with hpc_kit.distributed(timeout=5):
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        with hpc_kit.distributed() as world:
            assert world.backend == "gloo"
        assert dist.is_initialized()


def test_an_exception_is_recorded_before_the_group_is_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    with pytest.raises(SystemExit), hpc_kit.distributed():
        raise SystemExit(7)
    first = read_first_failure(tmp_path)
    assert first is not None
    assert (first.rank, first.exit_code) == (0, 7)
    assert dist.is_initialized(), "a failing rank does not wait for other ranks"
    assert joined_ranks.current_meeting() is None


def test_an_environment_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(IncompleteEnvironment), hpc_kit.distributed():
        pass


def test_choices_of_the_program_have_priority_over_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def backend_for(name: str) -> str:
        asked.append(name)
        return "gloo"

    monkeypatch.setattr(devices, "choose_backend", backend_for)
    monkeypatch.setenv("HPC_KIT_BACKEND", "gloo")
    with hpc_kit.distributed():
        pass
    with hpc_kit.distributed(backend="auto"):
        pass
    assert asked == ["gloo", "auto"]


def test_threads_come_from_the_cpus_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with hpc_kit.distributed():
        assert (os.environ["OMP_NUM_THREADS"], torch.get_num_threads()) == ("1", 1)


def test_nccl_is_bound_to_the_ranks_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}

    def init_process_group(backend: str, **named: object) -> None:
        given.update(named, backend=backend)

    monkeypatch.setattr(placement, "device_uuid", lambda *_: "GPU-48ae")
    monkeypatch.setattr(devices, "choose_backend", lambda _asked: "nccl")
    monkeypatch.setattr(devices, "select_device", lambda *_: torch.device("cuda", 3))
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with hpc_kit.distributed(timeout=timedelta(minutes=2)) as world:
        assert world.device_ids == [3]
    assert (given["backend"], given["device_id"]) == ("nccl", torch.device("cuda", 3))
    assert given["timeout"] == timedelta(seconds=120)


def test_with_report_rank_0_prints_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_KIT_REPORT", "1")
    with hpc_kit.distributed(), hpc_kit.distributed(report=False):
        pass
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == list(placement.COLUMNS)
    assert line.split()[2:4] == ["cpu", "-"]


def test_doctor_prints_the_same_table() -> None:
    done = CliRunner().invoke(doctor.command, ["--in-job", "--timeout", "60"])
    assert (done.exit_code, done.output.split()[: len(placement.COLUMNS)]) == (0, list(placement.COLUMNS))


@pytest.mark.parametrize(
    ("timeout", "variable", "expected"),
    [(None, "", None), (None, "90", 90.0), (30, "90", 30), (timedelta(minutes=1), "", 60.0), (0.5, "", 0.5)],
)
def test_a_timeout_is_set_by_the_program_or_the_job(
    timeout: float | timedelta | None, variable: str, expected: float | None
) -> None:
    assert timeout_seconds(timeout, {"HPC_KIT_TIMEOUT": variable}) == expected


@pytest.mark.parametrize(("timeout", "variable"), [(None, "soon"), (None, "-3"), (0, ""), (float("inf"), "")])
def test_an_invalid_timeout_is_refused(timeout: float | None, variable: str) -> None:
    with pytest.raises(SpecError, match="is no number of seconds"):
        timeout_seconds(timeout, {"HPC_KIT_TIMEOUT": variable})


def test_a_forgotten_srun_is_reported_with_the_command_to_type(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.orig_argv", ["/opt/venv/bin/python", "train.py", "--name", "a b"])
    joined_ranks.print_warnings(resolve(captured_case("10_batch_shell_8task_job@22.05")[0]))
    assert capsys.readouterr().err == (
        "hpc-kit: warning: this job has 8 tasks (SLURM_NTASKS), and this is one process outside of any step: put srun "
        "in front of the command\n"
        "  do     srun python train.py --name 'a b'\n"
    )


def test_only_rank_0_prints(capsys: pytest.CaptureFixture[str]) -> None:
    environ = Step.of(1, 1).environ(1) | {"MASTER_ADDR": "localhost"}
    joined_ranks.print_warnings(resolve(environ))
    assert capsys.readouterr().err == ""


def test_a_command_gets_the_first_port_and_does_its_own_rendezvous() -> None:
    world = resolve(Step.of(2, 2).environ(3))
    exports = torch_variables(world, {"SLURM_CPUS_PER_TASK": "4"})
    assert (exports.pop(inherited_variables.EXPORT_MARKER) or "").split()[1:] == [
        f"{name}={value}" for name, value in sorted(exports.items()) if name != "OMP_NUM_THREADS"
    ]
    assert exports == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": str(world.master_port),
        "OMP_NUM_THREADS": "4",
    }
    alone = torch_variables(resolve({}), {})
    assert (alone["MASTER_ADDR"], int(alone["MASTER_PORT"] or 0) < 32_768) == ("127.0.0.1", True)


def test_exported_variables_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "n9")
    with environment_set({"MASTER_ADDR": "n1", "RANK": "0"}):
        assert (os.environ["MASTER_ADDR"], os.environ["RANK"]) == ("n1", "0")
    assert (os.environ["MASTER_ADDR"], os.environ.get("RANK")) == ("n9", None)


def test_the_public_class_is_a_world() -> None:
    assert issubclass(process_group.Group, hpc_kit.World)
