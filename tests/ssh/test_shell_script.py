"""The plain shell script of a launch, run by hand with a real sshd or on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.ssh.conftest import Hosts

pytestmark = pytest.mark.slow

SPEAK = 'echo "rank $RANK of $WORLD_SIZE"; '


@pytest.fixture
def script(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return the script of a program with two ranks per host on two hosts. Its `ssh` reads the test's configuration."""
    wrapper = hosts.project / "bin" / "ssh"
    wrapper.parent.mkdir()
    # The profile of the hosts' shell prints a greeting.
    wrapper.write_text(f'#!/bin/sh\nprintf Welcome\nexec {hosts.home}/bin/ssh "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    marks = ("--set", f"env.MARK={hosts.mark}", "--set", f"env.PYTHONPATH={ROOT}")

    def render_script(code: str, *options: str, nodes: int = 2) -> Path:
        words = ["render", "--shell", *options, "-j", f"{nodes}x2", *marks, "--", "bash", "-c", SPEAK + code]
        done = subprocess.run([sys.executable, "-m", "hpc_kit", *words], capture_output=True, text=True, check=True)
        file = hosts.project / "job.sh"
        file.write_text(done.stdout)
        return file

    return render_script


def test_the_exit_code_is_that_of_the_first_failed_rank(hosts: Hosts, script: Callable[..., Path]) -> None:
    words = ["bash", str(script('[ "$RANK" = 3 ] && exit 7; exec sleep 600')), "n1", "n2"]
    done = subprocess.run(words, cwd=hosts.project, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (7, ""), done.stdout
    assert "hpc-kit: rank 3 ended with exit code 7: see rank-3.log\n" in done.stdout
    (log,) = (hosts.project / "runs" / "bash").glob("*/rank-3.log")
    assert log.read_text() == "rank 3 of 4\n"
    assert hosts.await_none() == []


def test_ctrl_c_ends_all_hosts(hosts: Hosts, script: Callable[..., Path]) -> None:
    process = subprocess.Popen(
        ["bash", script("exec sleep 600"), "n1", "n2"], cwd=hosts.project, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 240
    runs = hosts.project / "runs" / "bash"
    while len([log for log in runs.glob("*/rank-*.log") if log.read_text()]) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert hosts.await_none() == []


STANDALONE = 'test -z "$HPC_KIT_SSH_HOSTS" && echo "at $MASTER_ADDR $MASTER_PORT"; '


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("status", [0, 7])
def test_a_standalone_launch_needs_only_torch(
    hosts: Hosts, script: Callable[..., Path], nodes: int, status: int
) -> None:
    """Each rank has its rank and master address. The first failed rank sets the exit code, and all ranks end."""
    last = 2 * nodes - 1
    # Rank 1 fails after all ranks have printed, because the output of a rank killed earlier would depend on timing.
    spoken = f'[ "$(cat runs/bash/*/rank-*.log | grep -c "^at ")" -ge {2 * nodes} ]'
    fails = f"for i in $(seq 300); do {spoken} && break; sleep 0.1; done; exit {status}"
    code = f'[ "$RANK" = {last} ] && {{ {fails}; }}; [ {status} = 0 ] || exec sleep 600'
    file = script(STANDALONE + code, "--standalone", nodes=nodes)
    assert "hpc_kit" not in re.sub("(?m)^#.*", "", file.read_text())
    words = ["bash", str(file), *("n1", "n2")[: nodes if nodes > 1 else 0]]
    done = subprocess.run(words, cwd=hosts.project, capture_output=True, text=True, timeout=200)
    assert done.returncode == status, done.stdout + done.stderr
    logs = [log.read_text().splitlines() for log in sorted((hosts.project / "runs" / "bash").glob("*/rank-*.log"))]
    place = logs[last][1]
    for rank, lines in enumerate(logs):
        output = [f"rank {rank} of {2 * nodes}", place]
        assert lines[:2] == (
            output[: len(lines)] if status and rank != last else output
        )  # a rank may be killed before it prints this
    _, address, port = place.split()
    assert (address, 10000 <= int(port) < 30000) == ("127.0.0.1" if nodes == 1 else "127.0.77.1", True)
    assert hosts.await_none() == []
