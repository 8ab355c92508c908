"""task.sh: signals, the first failure and the exit code of one task. agent.sh: signals for torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_kit.run_files import FIRST_FAILURE, FirstFailure, read_first_failure
from tests.script.shell.conftest import SHELL, Run, await_file, await_state, environment

STOPS = ("TSTP", "TTIN", "TTOU")
SIGNALS = ("HUP", "INT", "QUIT", "ABRT", "ALRM", "TERM", "USR1", "USR2", "URG", "XCPU", *STOPS)
"""Names that `--signal` accepts, without KILL and STOP, which cannot be caught, and CONT, which continues a process."""

COUNTS = """
count=0
trap "count=\\$((count + 1)); touch caught" {name}
touch ready
until [ -e over ]; do sleep 0.02; done
exit $((count + 4))
"""


@contextmanager
def start_program(
    folder: Path, file: str, *words: str, session: bool = True, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a shell file that runs a program, and wait until the program has created the file `ready`."""
    argv = ["bash", str(SHELL / file), *words]
    environ = environment(folder, **(env or {}))
    # The kernel does not stop an orphaned process group, so a shell to be stopped stays in its parent's session.
    process = subprocess.Popen(
        argv, env=environ, cwd=folder, start_new_session=session, process_group=None if session else 0
    )
    try:
        await_file(folder / "ready")
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("signaled", ["tasks", "all"])
@pytest.mark.parametrize("name", SIGNALS)
def test_the_program_receives_a_signal_once_and_its_exit_code_counts(tmp_path: Path, name: str, signaled: str) -> None:
    """Depending on the configuration, Slurm signals only the task, which is the shell, or all processes of the step."""
    program = ("bash", "-c", COUNTS.format(name=name))
    with start_program(tmp_path, "task.sh", *program, env={"HPC_KIT_SIGNALS": signaled}) as process:
        send = os.kill if signaled == "tasks" else os.killpg
        send(process.pid, signal.Signals[f"SIG{name}"])
        await_file(tmp_path / "caught")
        if name in STOPS:
            await_state(process.pid, "T")
            send(process.pid, signal.SIGCONT)
        (tmp_path / "over").touch()
        assert process.wait(timeout=20) == 5
    assert FirstFailure.parse((tmp_path / FIRST_FAILURE).read_text()) is not None


@pytest.mark.parametrize("file", ["task.sh", "agent.sh"])
def test_a_signal_sent_together_with_sigcont_is_not_lost(tmp_path: Path, file: str) -> None:
    """Slurm sends SIGCONT before SIGTERM. Both may be pending when the shell runs."""
    program = 'trap "exit 5" TERM; touch ready; while :; do sleep 0.02; done'
    with start_program(tmp_path, file, "bash", "-c", program) as process:
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
            os.kill(process.pid, number)
        assert process.wait(timeout=20) == 5


@pytest.mark.parametrize("file", ["task.sh", "agent.sh"])
def test_a_stopped_program_continues(tmp_path: Path, file: str) -> None:
    program = "echo $$ >pid; touch ready; until [ -e over ]; do sleep 0.02; done"
    with start_program(tmp_path, file, "bash", "-c", program, session=False) as process:
        pid = int((tmp_path / "pid").read_text())
        os.kill(process.pid, signal.SIGTSTP)
        await_state(process.pid, "T")
        await_state(pid, "T")
        os.kill(process.pid, signal.SIGCONT)
        (tmp_path / "over").touch()
        assert process.wait(timeout=20) == 0


TORCHRUN = """
setsid bash -c 'trap : USR1 USR2; bash -c "$PROGRAM"; exit $?' &
wait $!
"""
"""Starts a worker like torchrun: a shell that leads a process group, with the program as its child."""


@pytest.mark.parametrize(("signaled", "code"), [("tasks", 5), ("all", 4)])
@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_user_signals_for_torchrun_reach_its_workers(tmp_path: Path, name: str, signaled: str, code: int) -> None:
    # A shell cannot trap a signal that its parent ignores. A Python program can.
    program = f"""import os, signal, sys, time
count = 4
def handle(*_):
    global count
    count += 1
    open("caught", "w").close()
signal.signal(signal.SIG{name}, handle)
open("ready", "w").close()
while not os.path.exists("over"):
    time.sleep(0.02)
sys.exit(count)
"""
    own = {"HPC_KIT_SIGNALS": signaled, "PROGRAM": f"exec python3 -c '{program}'"}
    with start_program(tmp_path, "agent.sh", "bash", "-c", TORCHRUN, env=own) as process:
        os.kill(process.pid, signal.Signals[f"SIG{name}"])
        if signaled == "tasks":
            await_file(tmp_path / "caught")
        else:
            time.sleep(0.2)  # time in which no signal may arrive
        (tmp_path / "over").touch()
        assert process.wait(timeout=20) == code
    assert not (tmp_path / FIRST_FAILURE).exists()


def test_only_the_first_failed_task_is_recorded(run: Run, tmp_path: Path) -> None:
    assert run("task.sh", "true").returncode == 0
    assert read_first_failure(tmp_path) is None
    assert run("task.sh", "bash", "-c", "exit 7", SLURM_PROCID="3", SLURMD_NODENAME="n2").returncode == 7
    assert run("task.sh", "false").returncode == 1
    first = read_first_failure(tmp_path)
    assert first is not None
    assert first[:3] == (3, "n2", 7)


def test_a_failed_agent_is_recorded_as_its_first_rank(run: Run, tmp_path: Path) -> None:
    assert run("task.sh", "--ranks=4", "false", SLURM_PROCID="2").returncode == 1
    first = read_first_failure(tmp_path)
    assert first is not None
    assert first.rank == 8


def test_a_task_may_write_its_own_log(run: Run, tmp_path: Path) -> None:
    done = run("task.sh", "--log", "bash", "-c", "echo out; echo err >&2", SLURM_PROCID="5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "rank-5.log").read_text() == "out\nerr\n"


def test_the_arguments_of_the_program_are_unchanged(run: Run) -> None:
    words = ["--ranks=2", "a  b", "", "*", "$HOME", "it's"]
    done = run("task.sh", "printf", "<%s>", *words)
    assert done.stdout == "".join(f"<{word}>" for word in words)


def test_a_full_disk_changes_no_exit_code(run: Run) -> None:
    done = run("task.sh", "bash", "-c", "exit 5", HPC_KIT_RUN="/dev/full")
    assert (done.returncode, done.stderr) == (5, "")


@pytest.mark.parametrize(("file", "rank"), [("task.sh", {}), ("worker.sh", {"HPC_KIT_RANK": "0"})])
@pytest.mark.parametrize(("code", "left"), [(138, (0, True)), (137, (137, False))])
def test_a_stopped_rank_does_not_make_the_launcher_kill_others(
    run: Run, tmp_path: Path, file: str, rank: dict[str, str], code: int, left: tuple[int, bool]
) -> None:
    done = run(file, "bash", "-c", f"exit {code}", HPC_KIT_STOP_CODE="138", **rank)
    assert (done.returncode, (tmp_path / "stopped").exists()) == left
    assert (read_first_failure(tmp_path) is None) == (code == 138)
