"""`python -m hpc_kit.runtime.torchrun`: the options of torchrun and the report of failures, without processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from hpc_kit.errors import ContradictoryEnvironment, RendezvousError
from hpc_kit.run_files import claim_first_failure, read_first_failure
from hpc_kit.runtime import resolve, torchrun
from hpc_kit.runtime.rendezvous.meeting import Meeting
from hpc_kit.runtime.torchrun import agent_world, main
from tests.runtime.launches import Step

RUNTIME = ["-u", "-P", "-m", "hpc_kit.runtime"]


def failed(**exit_codes: int) -> ChildFailedError:
    """Return the error that torchrun raises for these exit codes of workers; torchrun saw the first entry first."""
    failures = {}
    for place, (name, code) in enumerate(exit_codes.items()):
        rank = int(name.removeprefix("rank"))
        failures[rank] = ProcessFailure(local_rank=rank % 2, pid=1, exitcode=code, error_file="<N/A>")
        failures[rank].timestamp = int(time.time()) + place
    return ChildFailedError("train.py", failures)


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> list[Namespace]:
    """Record the options that torchrun receives."""
    seen: list[Namespace] = []
    monkeypatch.setattr(run, "run", seen.append)
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "LOGLEVEL", "TORCH_CPP_LOG_LEVEL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return seen


def run_agent(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Return the exit code of an agent whose torchrun raises this error."""

    def raise_error(_options: Namespace) -> None:
        raise error

    monkeypatch.setattr(run, "run", raise_error)
    return main(["--nproc-per-node=2", "train.py"])


def test_a_step_of_one_task_per_node_is_a_world_of_agents() -> None:
    world = resolve(Step.of(1, 1).environ(1))
    assert [agent_world(world, nnodes) for nnodes in ("1", "1:1", "2", "2:2")] == [world] * 4


def test_several_tasks_on_a_node_would_start_it_several_times() -> None:
    with pytest.raises(ContradictoryEnvironment) as refused:
        agent_world(resolve(Step.of(4, 4).environ(5)), "2")
    assert refused.value.what == "torchrun would be started 4 times on this node"
    assert refused.value.remedy == "srun --ntasks-per-node=1, with torchrun --nproc-per-node=N"


def test_another_number_of_nodes_is_refused_with_both() -> None:
    with pytest.raises(ContradictoryEnvironment, match=r"--nnodes=4 does not fit the srun step 1234\.0"):
        agent_world(resolve(Step.of(1, 1).environ(1)), "4")


def test_torchrun_gets_all_values_of_the_step(options: list[Namespace], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    assert main(["--nproc-per-node=2", "train.py", "--lr", "0.1"]) == 0
    (seen,) = options
    assert (seen.nnodes, seen.node_rank, seen.rdzv_backend, seen.master_addr) == ("1", 0, "static", "127.0.0.1")
    assert (seen.training_script, seen.training_script_args) == (sys.executable, [*RUNTIME, "train.py", "--lr", "0.1"])
    assert (seen.module, seen.no_python, seen.rdzv_id) == (False, True, "alone")
    assert (os.environ["OMP_NUM_THREADS"], os.environ["GLOO_SOCKET_IFNAME"]) == ("4", "lo")
    assert os.environ["HPC_KIT_AGENT_HOST"] == "n2"


def test_the_interface_of_the_submitting_rank_is_not_kept(
    options: list[Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib7")
    assert main(["train.py"]) == 0
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib7"
    monkeypatch.setenv("HPC_KIT_EXPORTED", "77.0 GLOO_SOCKET_IFNAME=ib7")
    assert main(["train.py"]) == 0
    assert (os.environ["GLOO_SOCKET_IFNAME"], len(options)) == ("lo", 2)


def test_a_module_is_run_as_one(options: list[Namespace]) -> None:
    assert main(["--rdzv-id=mine", "-m", "app.train", "x"]) == 0
    assert (options[0].training_script_args, options[0].rdzv_id) == ([*RUNTIME, "-m", "app.train", "x"], "mine")


@pytest.mark.usefixtures("options")
def test_without_a_run_torchs_own_first_failure_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_agent(monkeypatch, failed(rank1=-9, rank0=1)) == 137
    assert capsys.readouterr().err == "hpc-kit: rank 1 ended by SIGKILL\n"


@pytest.mark.usefixtures("options")
@pytest.mark.parametrize(
    ("status", "code"), [(255, 255), (-35, 163)], ids=["sys.exit(-1)", "a real-time signal without a name"]
)
def test_a_code_above_128_is_a_signal_only_if_one_has_this_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int, code: int
) -> None:
    assert run_agent(monkeypatch, failed(rank1=status)) == code
    assert capsys.readouterr().err == f"hpc-kit: rank 1 ended with exit code {code}\n"


@pytest.mark.usefixtures("options")
def test_a_killed_worker_is_recorded_by_its_agent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    assert run_agent(monkeypatch, failed(rank3=-9, rank2=1)) == 137
    first = read_first_failure(tmp_path)
    assert first is not None
    assert (first.rank, first.host, first.exit_code) == (3, "n2", 137)
    assert capsys.readouterr().err == "hpc-kit: rank 3 ended by SIGKILL: see rank-3.log\n"


@pytest.mark.usefixtures("options")
def test_the_recorded_worker_counts_and_not_the_one_seen_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    claim_first_failure(tmp_path, 3, "n2", 3)
    assert run_agent(monkeypatch, failed(rank2=1, rank3=-15)) == 3
    assert capsys.readouterr().err == "hpc-kit: rank 3 ended with exit code 3: see rank-3.log\n"


@pytest.mark.usefixtures("options")
def test_a_worker_for_which_other_ranks_waited_is_reported_with_their_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    claim_first_failure(tmp_path, 3, "n2", 1, "rank 2 waited for it in vain: its process 77 is stopped")
    assert run_agent(monkeypatch, failed(rank2=1)) == 1
    reason = "rank 2 waited for it in vain: its process 77 is stopped"
    assert capsys.readouterr().err == f"hpc-kit: rank 3 is missing: {reason}: see rank-3.log\n"


@pytest.mark.usefixtures("options")
def test_a_worker_that_the_stop_signal_ended_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    monkeypatch.setenv("HPC_KIT_STOP_CODE", "138")
    assert run_agent(monkeypatch, failed(rank2=-signal.SIGUSR1, rank3=-15)) == 138
    assert read_first_failure(tmp_path) is None


@pytest.mark.usefixtures("options")
def test_an_agent_ended_by_another_node_is_no_first_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    claim_first_failure(tmp_path, 0, "n1", 3)
    assert run_agent(monkeypatch, failed(rank2=1)) == 1
    assert capsys.readouterr().err == "hpc-kit: rank 2 ended with exit code 1 after rank 0 on n1\n"


@pytest.mark.usefixtures("options")
def test_a_stopped_agent_ends_silently(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_agent(monkeypatch, SignalException("stopped", signal.SIGTERM)) == 143
    assert capsys.readouterr().err == ""


WORKER = """
trap 'echo worker' USR1
trap 'kill $!; exit' TERM
(trap 'echo its own' USR1; echo up; while :; do sleep 0.02; done) &
while :; do wait; done
"""


@pytest.mark.parametrize(("signalled", "received"), [("all", False), ("tasks", True), ("", True)])
def test_user_signals_go_to_the_workers_of_torchrun(
    options: list[Namespace], monkeypatch: pytest.MonkeyPatch, signalled: str, received: bool
) -> None:
    monkeypatch.setenv("HPC_KIT_SIGNALS", signalled)
    lines: list[str] = []

    def run_one_worker(seen: Namespace) -> None:
        options.append(seen)
        argv = ["bash", "-c", WORKER]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as worker:
            assert worker.stdout is not None
            lines.append(worker.stdout.readline())
            os.kill(os.getpid(), signal.SIGUSR1)
            if received:
                lines.append(worker.stdout.readline())
            os.kill(worker.pid, signal.SIGTERM)
            lines.extend(worker.stdout)

    monkeypatch.setattr(run, "run", run_one_worker)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    try:
        assert main(["train.py"]) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert lines == ["up\n", *["worker\n"] * received]


def test_agents_that_do_not_meet_are_an_error_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_no_rendezvous(*_: object, **__: object) -> Meeting:
        raise RendezvousError("1 of 2 ranks did not come within 5 s")

    monkeypatch.setattr(torchrun, "meet", raise_no_rendezvous)
    assert main(["train.py"]) == 1
    assert capsys.readouterr().err == "hpc-kit: 1 of 2 ranks did not come within 5 s\n"
