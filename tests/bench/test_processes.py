"""What a bench has started ends with it: children too, and by SIGTERM as by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.bench import processes, training_runs
from tests.conftest import ROOT

STAYS = "trap '' TERM; sleep 1000 & echo $! >{}; wait; wait"


def wait_until_gone(pid: int, seconds: float = 20.0) -> bool:
    """Whether a process is gone soon; one whose end nobody has asked for is."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def wait_for_pid(path: Path) -> int:
    """The process id in a file, as soon as it is there."""
    while not path.exists() or not path.read_text().endswith("\n"):
        time.sleep(0.02)
    return int(path.read_text())


def test_a_process_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    with processes.ended_together(0.1) as start:
        process = start(["sh", "-c", STAYS.format(tmp_path / "pid")], os.environ, subprocess.DEVNULL)
        child = wait_for_pid(tmp_path / "pid")
    assert process.returncode == -signal.SIGKILL
    assert wait_until_gone(child)


def test_sigterm_to_one_rank_ends_its_training(tmp_path: Path) -> None:
    script = "sleep 1000 & echo $! >{}; wait".format(tmp_path / "pid")
    call = f"training_runs.run_program(['sh', '-c', {script!r}], os.environ, 1000)"
    rank = f"from hpc_kit.bench import training_runs; import os; {call}"
    with subprocess.Popen([sys.executable, "-c", rank], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        child = wait_for_pid(tmp_path / "pid")
        process.terminate()
        assert wait_until_gone(child)


def test_a_program_that_takes_too_long_leaves_no_child(tmp_path: Path) -> None:
    script = "sleep 1000 & echo $! >{}; wait".format(tmp_path / "pid")
    assert training_runs.run_program(["sh", "-c", script], os.environ, 2) == "not ended within 2 s"
    assert wait_until_gone(wait_for_pid(tmp_path / "pid"))


@pytest.mark.parametrize("last", ["exit 4", "kill -KILL $$"])
def test_the_first_failed_process_is_found_and_a_killed_one_has_priority(last: str) -> None:
    kills = "kill" in last
    scripts = ["exit 0", "exit 3" if kills else last, f"sleep 0.5; {last if kills else 'exit 3'}"]
    with processes.ended_together() as start:
        running = [start(["sh", "-c", script], os.environ, subprocess.DEVNULL) for script in scripts]
        assert processes.ExitOrder(running).first_failure() == (2 if kills else 1)
        assert processes.ExitOrder([start(["true"], os.environ, subprocess.DEVNULL)]).first_failure() is None


def test_a_signal_while_a_process_starts_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Interrupted(subprocess.Popen[str]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        processes.interruptible(),
        processes.ended_together() as start,
    ):
        start(["sleep", "1000"], os.environ, subprocess.DEVNULL)
    assert started[0].returncode == -signal.SIGTERM


def test_the_end_of_a_process_is_described() -> None:
    assert processes.describe_failure("rank 1", 3)[0] == "rank 1 failed with exit code 3"
    assert processes.describe_failure("rank 1", -11)[0] == "rank 1 was ended by SIGSEGV"
    assert "out of memory" in processes.describe_failure("rank 1", -9)[1]


def test_sigterm_acts_like_ctrl_c_and_an_ignored_sighup_stays_ignored() -> None:
    before, terminates = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        with processes.interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is terminates
    finally:
        signal.signal(signal.SIGHUP, before)
