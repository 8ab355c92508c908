"""Blocked or very fast output: the ranks wait, continue to run, and can still be stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_kit.run_files import END
from hpc_kit.ssh import agent
from tests.conftest import ROOT
from tests.ssh.conftest import Hosts

pytestmark = pytest.mark.slow

QUICK = """
import sys
from hpc_kit.cli import main
from hpc_kit.ssh import agent
from hpc_kit.run_files import END
agent.__file__, agent.ALIVE, agent.SILENCE = sys.argv.pop(1), 0.2, float(sys.argv.pop(1))
main()
"""
SILENCE = 8.0
"""Seconds. On a busy machine a process may wait for three."""
FLOOD = "echo here; exec yes $(printf %0999d 7)"


def launch(hosts: Hosts, tmp_path: Path, code: str) -> subprocess.Popen[bytes]:
    """Start a launch of two hosts in which each side considers the other side lost after SILENCE."""
    carried = tmp_path / "agent.py"
    text = Path(agent.__file__).read_text()
    text = re.sub("(?m)^ALIVE = .*", "ALIVE = 0.2", re.sub("(?m)^SILENCE = .*", f"SILENCE = {SILENCE}", text))
    carried.write_text(text)
    words = ["-j", "2x1", "--hosts", "n1,n2", f"--export=PYTHONPATH,MARK={hosts.mark}", "--", "bash", "-c", code]
    return subprocess.Popen(
        [sys.executable, "-c", QUICK, str(carried), str(SILENCE), "launch", *words],
        cwd=hosts.project,
        env={**os.environ, "PYTHONPATH": str(ROOT), **hosts.environ()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_until_stopped(hosts: Hosts) -> int:
    """Wait until the logs no longer grow although the ranks print, and return their size."""
    sizes: list[int] = []
    deadline = time.monotonic() + 120
    while (len(sizes) < 8 or not sizes[-8] == sizes[-1] > 60_000) and time.monotonic() < deadline:
        time.sleep(0.25)
        sizes.append(sum(log.stat().st_size for log in (hosts.project / "runs").glob("bash/2*/rank-*.log")))
    assert sizes[-8] == sizes[-1]
    return sizes[-1]


def test_a_blocked_terminal_ends_no_training(hosts: Hosts, tmp_path: Path) -> None:
    code = "yes $(printf %0999d 7) 2>/dev/null | head -c 30000000; echo; echo done"
    process = launch(hosts, tmp_path, code)
    assert wait_until_stopped(hosts) < 20_000_000
    time.sleep(2 * SILENCE + 1)
    out, err = process.communicate(timeout=150)
    assert (process.returncode, err, out.count(b"| done\n")) == (0, b"", 2), out[-2000:]
    logs = list((hosts.project / "runs").glob("bash/2*/rank-*.log"))
    assert [log.stat().st_size for log in logs] == [30_000_000 + len("\ndone\n")] * 2


def test_a_flood_of_output_needs_little_memory_and_does_not_delay_ctrl_c(hosts: Hosts, tmp_path: Path) -> None:
    process = launch(hosts, tmp_path, FLOOD)
    wait_until_stopped(hosts)
    time.sleep(2)
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert resident
    assert int(resident[1]) < 300_000
    assert len(hosts.list_processes()) > 2
    process.send_signal(signal.SIGINT)
    assert hosts.await_none(20) == []
    (run,) = (hosts.project / "runs" / "bash").glob("2*")
    deadline = time.monotonic() + 20
    while not (run / END).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, b"some output was not printed" in out) == (130, True), out[-2000:]


def test_ctrl_c_takes_effect_before_pending_output(hosts: Hosts, tmp_path: Path) -> None:
    process = launch(hosts, tmp_path, FLOOD)
    assert process.stdout is not None
    for _ in range(10_000):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, b"ended by SIGINT" in out) == (130, True)
    assert hosts.await_none(20) == []


def test_a_closed_pipe_ends_no_training(hosts: Hosts, tmp_path: Path) -> None:
    process = launch(hosts, tmp_path, "for i in {1..2000}; do echo line $i; done; sleep 2; echo later; exit 7")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == 7
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    (run,) = (hosts.project / "runs" / "bash").glob("2*")
    assert "later\n" in (run / "rank-0.log").read_text() + (run / "rank-1.log").read_text()
    assert '"exit_status": 7' in (run / "record.json").read_text()


def test_a_silent_host_is_lost_and_ends_the_launch(hosts: Hosts, tmp_path: Path) -> None:
    process = launch(hosts, tmp_path, "echo here; exec sleep 600")
    assert process.stdout is not None
    here = 0
    while here < 2 and (line := process.stdout.readline()):
        here += line.endswith(b"here\n")
    frozen = hosts.agents()[0]
    os.kill(frozen, signal.SIGSTOP)
    try:
        out, _ = process.communicate(timeout=90)
        assert (process.returncode, re.search(rb"failed  n[12] is lost", out) is not None) == (1, True), out
        assert b"nothing was received for 8 s" in out
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert hosts.await_none() == []


PATIENT = """
import sys
from hpc_kit.cli import main
from hpc_kit.ssh import launch
launch.GRACE_SECONDS = 3600.0
main()
"""
LATER = """
if [ "$RANK" = 0 ]; then echo $$ >first; exit; fi
until [ -s first ] && ! [ -e /proc/$(cat first) ]; do sleep 0.1; done
exit 5
"""


def test_an_agent_whose_ranks_have_ended_is_not_waited_for(hosts: Hosts) -> None:
    """torchrun waits in a barrier for the agents of all hosts, in which it handles no signal."""
    words = ["-j", "2x1", "--hosts", "n1,n2", f"--export=PYTHONPATH,MARK={hosts.mark}", "--", "bash", "-c", LATER]
    done = subprocess.run(
        [sys.executable, "-c", PATIENT, "launch", *words],
        cwd=hosts.project,
        env={**os.environ, "PYTHONPATH": str(ROOT), **hosts.environ()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.returncode, "failed  rank 1 on n2 ended with exit code 5" in done.stdout) == (5, True), done
    assert hosts.await_none() == []
