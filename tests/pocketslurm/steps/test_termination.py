"""Signals to srun, and orders to its step from the job's supervisor or from other commands."""

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
from tests.pocketslurm.inside import Inside, enter

CATCH = 'for s in INT USR1 USR2 TERM; do trap "echo $SLURM_PROCID $s" $s; done; '
LIVE = "touch up-$SLURM_PROCID; until [ -e over ]; do sleep 0.02; done"


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A job of two nodes with a task each."""
    yield from enter(tmp_path_factory, "-N2", "--ntasks-per-node=1", gpus=0)


@pytest.fixture(autouse=True)
def _fresh(inside: Inside) -> None:
    for path in inside.folder.iterdir():
        path.unlink()


def running(inside: Inside, program: str, *options: str) -> subprocess.Popen[str]:
    """A step of two tasks, both up."""
    process = inside.start(*options, "bash", "-c", program)
    for rank in (0, 1):
        wait_for((inside.folder / f"up-{rank}").exists)
    return process


def step_of(inside: Inside) -> str:
    """The running step: `12.3`."""
    steps = re.findall(r"StepId=(\S+)", inside.slurm.said("scontrol", "show", "step"))
    return next(str(step) for step in steps if not step.endswith(".batch"))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_user_signals_go_to_every_task(inside: Inside, number: signal.Signals) -> None:
    process = running(inside, 'trap "echo $SLURM_PROCID got it; exit" USR1 USR2; ' + LIVE)
    process.send_signal(number)
    said = inside.end(process)
    assert (said.status, said.out) == (0, ["0 got it", "1 got it"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_sigterm_makes_srun_kill_its_step(inside: Inside, number: signal.Signals) -> None:
    process = running(inside, CATCH + LIVE)
    process.send_signal(number)
    said = inside.end(process)
    assert said.status == 137
    assert {
        "srun: forcing job termination",
        "srun: error: n1: task 0: Killed",
        "srun: error: n2: task 1: Killed",
    } <= set(said.err)
    assert any("CANCELLED AT" in line for line in said.err)


def test_the_first_interrupt_prints_the_states_of_tasks(inside: Inside) -> None:
    process = running(inside, CATCH + LIVE)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == "srun: interrupt (one more within 1 sec to abort)\n"
    assert process.stderr.readline().endswith(" tasks 0-1: running\n")
    (inside.folder / "over").touch()
    assert inside.end(process) == (0, [], [])


def test_two_interrupts_end_the_step(inside: Inside) -> None:
    process = running(inside, CATCH + LIVE)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    said = inside.end(process)
    assert said.status == 137
    assert [line.split(" StepId")[0] for line in said.err if "Ctrl-C" in line] == ["srun: sending Ctrl-C to"]
    assert not [line for line in said.err if "Killed" in line]


def test_with_status_disabled_an_interrupt_goes_to_the_tasks(inside: Inside) -> None:
    process = running(inside, 'trap "echo $SLURM_PROCID got it; exit" INT; ' + LIVE, "-X")
    process.send_signal(signal.SIGINT)
    said = inside.end(process)
    assert (said.status, said.out) == (0, ["0 got it", "1 got it"])


@pytest.mark.parametrize(("start", "code"), [("bash below.sh; exit 0", 0), ("exec bash below.sh", 7)])
def test_a_signal_goes_to_the_task_and_not_to_its_children(inside: Inside, start: str, code: int) -> None:
    (inside.folder / "below.sh").write_text(f"trap 'exit 7' USR1; {LIVE}\n")
    process = running(inside, f"trap : USR1; {start}")
    process.send_signal(signal.SIGUSR1)
    if not code:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        (inside.folder / "over").touch()
    assert inside.end(process).status == code


def test_stop_and_continue_reach_all_processes_of_a_step(inside: Inside) -> None:
    process = running(inside, f"bash -c '{LIVE}' & echo $! > below-$SLURM_PROCID; wait")
    below = [int((inside.folder / f"below-{rank}").read_text()) for rank in (0, 1)]
    inside.slurm.said("scancel", "-s", "STOP", step_of(inside))
    wait_for(lambda: [state(pid) for pid in below] == ["T", "T"])
    inside.slurm.said("scancel", "-s", "CONT", step_of(inside))
    wait_for(lambda: "T" not in [state(pid) for pid in below])
    (inside.folder / "over").touch()
    assert inside.end(process).status == 0


def state(pid: int) -> str:
    """R, S, or T for one that is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_scancel_signals_the_tasks_of_a_step(inside: Inside) -> None:
    process = running(inside, 'trap "echo $SLURM_PROCID got it; exit" USR1; ' + LIVE)
    inside.slurm.said("scancel", "-s", "USR1", step_of(inside))
    said = inside.end(process)
    assert (said.status, said.out) == (0, ["0 got it", "1 got it"])


def test_scancel_kills_a_step(inside: Inside) -> None:
    process = running(inside, "touch up-$SLURM_PROCID; exec sleep 100")
    inside.slurm.said("scancel", step_of(inside))
    said = inside.end(process)
    assert said.status in {137, 143}
    assert any(line.startswith("srun: Job step aborted: Waiting up to ") for line in said.err)
    assert any("CANCELLED AT" in line for line in said.err)


def test_an_interrupt_ends_the_wait_for_a_place(inside: Inside) -> None:
    first = running(inside, LIVE)
    second = inside.start("true")
    assert second.stderr is not None
    second.stderr.readline()
    second.send_signal(signal.SIGINT)
    assert inside.end(second) == (
        1,
        [],
        [
            "srun: Cancelled pending job step with signal 2",
            f"srun: error: Unable to create step for job {inside.job_id}: Job/step already completing or completed",
        ],
    )
    (inside.folder / "over").touch()
    assert inside.end(first).status == 0


def test_tasks_do_not_outlive_a_killed_srun(inside: Inside) -> None:
    process = running(inside, "echo $$ > pid-$SLURM_PROCID; touch up-$SLURM_PROCID; exec sleep 100")
    tasks = [processes.identity(int((inside.folder / f"pid-{rank}").read_text())) for rank in (0, 1)]
    process.send_signal(signal.SIGKILL)
    assert inside.end(process).status == -signal.SIGKILL
    wait_for(lambda: not any(map(processes.is_alive, tasks)))
    assert inside.srun("echo", "free again").out == ["free again"] * 2


def test_a_stopped_task_is_woken_to_end(inside: Inside) -> None:
    process = running(inside, "echo $$ > pid-$SLURM_PROCID; touch up-$SLURM_PROCID; sleep 100 & wait", "-K")
    stopped, other = (int((inside.folder / f"pid-{rank}").read_text()) for rank in (0, 1))
    os.kill(stopped, signal.SIGSTOP)
    os.kill(other, signal.SIGKILL)
    assert inside.end(process).status == 143
