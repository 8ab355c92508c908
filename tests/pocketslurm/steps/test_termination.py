"""Signals to srun, and orders to its step from the supervisor of the job or from other commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketslurm import processes
from tests.pocketslurm.conftest import wait_for
from tests.pocketslurm.running_job import RunningJob, start_job
from tests.preloaded import Preloaded

CATCH = 'for s in INT USR1 USR2 TERM; do trap "echo $SLURM_PROCID $s" $s; done; '
LIVE = "touch up-$SLURM_PROCID; until [ -e over ]; do sleep 0.02; done"


@pytest.fixture(scope="module")
def running_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    """A job of two nodes with a task each."""
    yield from start_job(tmp_path_factory, "-N2", "--ntasks-per-node=1", gpus=0)


@pytest.fixture(autouse=True)
def _fresh(running_job: RunningJob) -> None:
    for path in running_job.folder.iterdir():
        path.unlink()


def running(running_job: RunningJob, program: str, *options: str) -> Preloaded:
    """A step of two tasks, both up."""
    process = running_job.start(*options, "bash", "-c", program)
    for rank in (0, 1):
        wait_for((running_job.folder / f"up-{rank}").exists)
    return process


def step_of(running_job: RunningJob) -> str:
    """The running step: `12.3`."""
    steps = re.findall(r"StepId=(\S+)", running_job.slurm.check_output("scontrol", "show", "step"))
    return next(str(step) for step in steps if not step.endswith(".batch"))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_user_signals_go_to_every_task(running_job: RunningJob, number: signal.Signals) -> None:
    process = running(running_job, 'trap "echo $SLURM_PROCID got it; exit" USR1 USR2; ' + LIVE)
    process.send_signal(number)
    output = running_job.end(process)
    assert (output.status, output.out) == (0, ["0 got it", "1 got it"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_sigterm_makes_srun_kill_its_step(running_job: RunningJob, number: signal.Signals) -> None:
    process = running(running_job, CATCH + LIVE)
    process.send_signal(number)
    output = running_job.end(process)
    assert output.status == 137
    assert {
        "srun: forcing job termination",
        "srun: error: n1: task 0: Killed",
        "srun: error: n2: task 1: Killed",
    } <= set(output.err)
    assert any("CANCELLED AT" in line for line in output.err)


def test_the_first_interrupt_prints_the_states_of_tasks(running_job: RunningJob) -> None:
    process = running(running_job, CATCH + LIVE)
    process.send_signal(signal.SIGINT)
    printed = wait_for(lambda: lines if len(lines := process.output()[1].splitlines()) == 2 else None)
    assert printed[0] == "srun: interrupt (one more within 1 sec to abort)"
    assert printed[1].endswith(" tasks 0-1: running")
    (running_job.folder / "over").touch()
    assert running_job.end(process) == (0, [], sorted(printed))


def test_two_interrupts_end_the_step(running_job: RunningJob) -> None:
    process = running(running_job, CATCH + LIVE)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: process.output()[1])
    process.send_signal(signal.SIGINT)
    output = running_job.end(process)
    assert output.status == 137
    assert [line.split(" StepId")[0] for line in output.err if "Ctrl-C" in line] == ["srun: sending Ctrl-C to"]
    assert not [line for line in output.err if "Killed" in line]


def test_with_status_disabled_an_interrupt_goes_to_the_tasks(running_job: RunningJob) -> None:
    process = running(running_job, 'trap "echo $SLURM_PROCID got it; exit" INT; ' + LIVE, "-X")
    process.send_signal(signal.SIGINT)
    output = running_job.end(process)
    assert (output.status, output.out) == (0, ["0 got it", "1 got it"])


@pytest.mark.parametrize(("start", "code"), [("bash below.sh; exit 0", 0), ("exec bash below.sh", 7)])
def test_a_signal_goes_to_the_task_and_not_to_its_children(running_job: RunningJob, start: str, code: int) -> None:
    (running_job.folder / "below.sh").write_text(f"trap 'exit 7' USR1; {LIVE}\n")
    process = running(running_job, f"trap : USR1; {start}")
    process.send_signal(signal.SIGUSR1)
    if not code:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        (running_job.folder / "over").touch()
    assert running_job.end(process).status == code


def test_stop_and_continue_reach_all_processes_of_a_step(running_job: RunningJob) -> None:
    process = running(running_job, f"bash -c 'echo $$ > below-$SLURM_PROCID; {LIVE}' & wait")
    below = [int(running_job.text(f"below-{rank}")) for rank in (0, 1)]
    running_job.slurm.check_output("scancel", "-s", "STOP", step_of(running_job))
    wait_for(lambda: [state(pid) for pid in below] == ["T", "T"])
    running_job.slurm.check_output("scancel", "-s", "CONT", step_of(running_job))
    wait_for(lambda: "T" not in [state(pid) for pid in below])
    (running_job.folder / "over").touch()
    assert running_job.end(process).status == 0


def state(pid: int) -> str:
    """R, S, or T for one that is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_scancel_signals_the_tasks_of_a_step(running_job: RunningJob) -> None:
    process = running(running_job, 'trap "echo $SLURM_PROCID got it; exit" USR1; ' + LIVE)
    running_job.slurm.check_output("scancel", "-s", "USR1", step_of(running_job))
    output = running_job.end(process)
    assert (output.status, output.out) == (0, ["0 got it", "1 got it"])


def test_scancel_kills_a_step(running_job: RunningJob) -> None:
    process = running(running_job, "touch up-$SLURM_PROCID; exec sleep 100")
    running_job.slurm.check_output("scancel", step_of(running_job))
    output = running_job.end(process)
    assert output.status in {137, 143}
    assert any(line.startswith("srun: Job step aborted: Waiting up to ") for line in output.err)
    assert any("CANCELLED AT" in line for line in output.err)


def test_an_interrupt_ends_the_wait_for_a_place(running_job: RunningJob) -> None:
    first = running(running_job, LIVE)
    second = running_job.start("true")
    wait_for(lambda: second.output()[1])
    second.send_signal(signal.SIGINT)
    error = f"Unable to create step for job {running_job.job_id}: Job/step already completing or completed"
    output = running_job.end(second)
    assert (output.status, output.out) == (1, [])
    assert {"srun: Cancelled pending job step with signal 2", f"srun: error: {error}"} < set(output.err)
    (running_job.folder / "over").touch()
    assert running_job.end(first).status == 0


def test_tasks_do_not_outlive_a_killed_srun(running_job: RunningJob) -> None:
    process = running(running_job, "echo $$ > pid-$SLURM_PROCID; touch up-$SLURM_PROCID; exec sleep 100")
    tasks = [processes.identity(int((running_job.folder / f"pid-{rank}").read_text())) for rank in (0, 1)]
    process.send_signal(signal.SIGKILL)
    assert running_job.end(process).status == -signal.SIGKILL
    wait_for(lambda: not any(map(processes.is_alive, tasks)))
    assert running_job.srun("echo", "free again").out == ["free again"] * 2


def test_a_stopped_task_is_continued_so_that_it_can_end(running_job: RunningJob) -> None:
    process = running(running_job, "echo $$ > pid-$SLURM_PROCID; touch up-$SLURM_PROCID; sleep 100 & wait", "-K")
    stopped, other = (int((running_job.folder / f"pid-{rank}").read_text()) for rank in (0, 1))
    os.kill(stopped, signal.SIGSTOP)
    os.kill(other, signal.SIGKILL)
    assert running_job.end(process).status == 143
