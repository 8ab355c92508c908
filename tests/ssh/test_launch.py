"""Launches over a real sshd: output, exit codes, and no remaining process on any host."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.ssh.conftest import Hosts, write_home

pytestmark = pytest.mark.slow

SLEEP = ("bash", "-c", "echo here; exec sleep 600")

STOPPING = """
import os, signal
from datetime import timedelta
from torch import distributed as dist, ones
dist.init_process_group("gloo", timeout=timedelta(seconds=12))
dist.all_reduce(ones(2))
if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(ones(2))
"""


def start_launch(hosts: Hosts, *words: str) -> subprocess.Popen[str]:
    """Start a launch of two hosts with two ranks each, and wait until all ranks run."""
    process = hosts.launch("-j", "2x2", "--hosts", "n1,n2", "--", *(words or SLEEP))
    assert process.stdout is not None
    here = 0
    for line in process.stdout:
        here += line.endswith(" | here\n")
        if here == 4:
            break
    assert here == 4, process.communicate()
    return process


def test_each_line_is_prefixed_with_rank_and_host_and_each_rank_has_a_log(hosts: Hosts) -> None:
    code = 'echo "I am $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on $GROUP_RANK"; printf "last words"'
    status, out, err = hosts.run_launch("-j", "2x2", "--hosts", "n1,n2", "--", "bash", "-c", code)
    assert (status, err) == (0, ""), out
    output = sorted(line for line in out.splitlines() if " I am " in line)
    assert output == [
        f"{rank} n{rank // 2 + 1} | I am {rank} of 4, {rank % 2} of 2 on {rank // 2}" for rank in range(4)
    ]
    assert "3 n2 | last words" in out
    (run,) = (hosts.project / "runs" / "bash").glob("2*")
    assert (run / "rank-3.log").read_text() == "I am 3 of 4, 1 of 2 on 1\nlast words"
    record = json.loads((run / "record.json").read_text())
    assert (record["job_id"], record["slurm"], record["hosts"]) == (run.name, "ssh", {"n1": 2, "n2": 2})
    assert (record["end"]["state"], record["end"]["exit_status"]) == ("COMPLETED", 0)
    assert oct((run / "record.json").stat().st_mode)[-3:] == "600"
    assert hosts.list_processes() == []


def test_hosts_get_as_many_ranks_as_they_have_slots(hosts: Hosts) -> None:
    (hosts.project / "hosts").write_text("n1 slots=1\nn2:2   # the larger one\n")
    code = 'echo "$RANK of $WORLD_SIZE on $GROUP_RANK"'
    status, out, err = hosts.run_launch("--hostfile", "hosts", "--", "bash", "-c", code)
    assert (status, err) == (0, ""), out
    output = sorted(re.findall(r"\| (\d of \d on \d)", out))
    assert output == ["0 of 3 on 0", "1 of 3 on 1", "2 of 3 on 1"]


def test_a_setup_line_that_reads_input_does_not_consume_the_script(hosts: Hosts) -> None:
    words = ("-j", "1x1", "--hosts", "n1", "--set", "setup=['cat >/dev/null', 'read -r none || true']")
    status, out, err = hosts.run_launch(*words, "--", "bash", "-c", "echo ran; exit 3")
    assert (status, "| ran" in out, err) == (3, True, ""), out


def test_the_exit_code_is_that_of_the_first_failed_rank_and_all_ranks_end(hosts: Hosts) -> None:
    code = 'echo here; [ "$RANK" = 3 ] && exit 7; exec sleep 600'
    status, out, _ = hosts.run_launch("-j", "2x2", "--hosts", "n1,n2", "--", "bash", "-c", code)
    assert (status, "rank 3 on " in out) == (7, True), out
    assert hosts.await_none() == []


def test_a_failure_names_the_host_as_the_list_of_hosts_does_and_torchrun_reports_no_signal(hosts: Hosts) -> None:
    code = 'import os, time; os.environ["RANK"] == "3" and os._exit(7); time.sleep(60)'
    (hosts.project / "train.py").write_text(code)
    status, out, _ = hosts.run_launch("-j", "2x2", "--hosts", "n1,n2", "--", sys.executable, "train.py")
    assert (status, "rank 3 on n2 ended with exit code 7" in out, "death signal" in out) == (7, True, False), out


def test_a_stopped_rank_is_the_cause_and_not_a_rank_that_waited_for_it(hosts: Hosts) -> None:
    (hosts.project / "train.py").write_text(STOPPING)
    status, out, _ = hosts.run_launch("-j", "2x1", "--hosts", "n1,n2", "--", sys.executable, "train.py")
    assert (status, "failed  rank 1 on n2: rank 0 waited for it in vain: " in out) == (1, True), out


def test_ctrl_c_ends_all_ranks_on_all_hosts(hosts: Hosts) -> None:
    process = start_launch(hosts)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, "ended by SIGINT" in out) == (130, True)
    assert (hosts.list_processes(), hosts.agents()) == ([], [])


def test_a_launch_leaves_no_connection_and_no_socket(hosts: Hosts) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # The path of a socket must be short.
        assert hosts.run_launch("-j", "2x1", "--hosts", "n1,n2", "--", "true", TMPDIR=folder)[0] == 0
        assert list(Path(folder).iterdir()) == []
    deadline = time.monotonic() + 20
    while hosts.list_connections() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert hosts.list_connections() == []


def start_hpc_kit(hosts: Hosts, *words: str) -> subprocess.Popen[str]:
    """Run `hpc-kit ...` during a launch."""
    return subprocess.Popen(
        [sys.executable, "-m", "hpc_kit", *words],
        cwd=hosts.project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_launch_is_followed_to_its_end_and_cancelled(hosts: Hosts) -> None:
    process = start_launch(hosts)
    (run,) = (hosts.project / "runs" / "bash").glob("2*")
    following, watching = start_hpc_kit(hosts, "logs", "-f", run.name), start_hpc_kit(hosts, "watch", run.name)
    for follower in (following, watching):
        assert follower.stdout is not None
        assert any("RUNNING" in line for line in follower.stdout)
    assert (
        start_hpc_kit(hosts, "cancel", run.name).communicate(timeout=60)[0].endswith("bash  cancelled: was RUNNING\n")
    )
    process.communicate(timeout=60)
    followed, _ = following.communicate(timeout=60)
    watched, _ = watching.communicate(timeout=60)
    assert (process.returncode, following.returncode, watching.returncode) == (143, 143, 1)
    assert "CANCELLED: ended by SIGTERM" in followed
    assert "CANCELLED: ended by SIGTERM" in watched
    assert "Slurm" not in followed + watched
    assert hosts.list_processes() == []


def test_a_second_ctrl_c_kills_ranks_that_ignore_the_first(hosts: Hosts) -> None:
    process = start_launch(hosts, "bash", "-c", "trap '' TERM; echo here; sleep 600 & wait; wait")
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert hosts.list_processes()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert (process.returncode, hosts.list_processes()) == (130, [])


def test_no_rank_survives_a_killed_launch(hosts: Hosts) -> None:
    process = start_launch(hosts)
    process.kill()
    process.communicate()
    assert (hosts.await_none(), hosts.agents()) == ([], [])


@pytest.mark.parametrize("victim", ["program", "agent", "rank"])
def test_a_killed_agent_or_rank_ends_all_hosts(hosts: Hosts, victim: str) -> None:
    process = start_launch(hosts)
    if victim == "program":
        pid = hosts.agents()[0]
    else:
        word = b"hpc_kit.runtime.torchrun" if victim == "agent" else b"sleep"
        pid = next(pid for pid in hosts.list_processes() if word in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=90)
    assert process.returncode == (1 if victim == "program" else 137), out
    assert (hosts.await_none(), hosts.agents()) == ([], [])


def test_no_value_of_the_environment_is_on_a_command_line_or_in_a_file(hosts: Hosts) -> None:
    code = (
        'echo "$HF_TOKEN" | rev; echo here; for pid in /proc/[0-9]*; do tr "\\0" " " <$pid/cmdline; done 2>/dev/null; :'
    )
    words = ("-j", "1x1", "--hosts", "n1", "--export=PYTHONPATH,HF_TOKEN", "--", "bash", "-c", code)
    status, out, err = hosts.run_launch(*words, HF_TOKEN="seldom-heard")
    assert (status, "draeh-modles" in out, "seldom-heard" in out + err) == (0, True, False), err
    kept = [path for path in (hosts.project / "runs").rglob("*") if path.is_file()]
    assert kept
    assert not any(b"seldom-heard" in path.read_bytes() for path in kept)


def test_problems_of_a_host_are_reported(hosts: Hosts, tmp_path: Path) -> None:
    """An unknown host key, a missing user key, and a host that does not answer."""
    ssh = hosts.home / ".ssh"
    bare = tmp_path / "home" / ".ssh"
    usual = (ssh / "config").read_text().partition("Host *")[0]
    write_home(bare.parent, f"{usual}Host n9\n  HostName 192.0.2.1\n", "")
    words = ("-j", "1x1", "--connect-timeout=2", "--hosts")
    status, _, err = hosts.run_launch(*words, "n1", "--", "true", PATH=f"{bare.parent}/bin:{os.environ['PATH']}")
    assert (status, err.splitlines()[0]) == (1, "hpc-kit: the host key of n1 is not known here")
    (bare / "known_hosts").write_text((ssh / "known_hosts").read_text())
    status, _, err = hosts.run_launch(
        *words, "n1", "--", "true", PATH=f"{bare.parent}/bin:{os.environ['PATH']}", SSH_AUTH_SOCK=""
    )
    assert (status, err.splitlines()[0]) == (1, "hpc-kit: n1 accepts none of your keys")
    assert "  do     ssh-copy-id n1" in err.splitlines()
    status, _, err = hosts.run_launch(
        "-j", "2x1", *words[2:], "n9,n2", "--", "true", PATH=f"{bare.parent}/bin:{os.environ['PATH']}"
    )
    assert (status, err.splitlines()[0]) == (1, "hpc-kit: 2 of 2 hosts cannot be used")
    assert not (hosts.project / "runs").exists()


def test_a_host_without_this_python_or_without_the_project_is_named(hosts: Hosts) -> None:
    words = ("-j", "1x1", "--hosts", "n1", "--set", "cluster.python=/opt/nowhere/python", "--set", "setup=['cd .']")
    status, _, err = hosts.run_launch(*words, "--", "true")
    assert (status, err.splitlines()[0]) == (1, "hpc-kit: there is no /opt/nowhere/python on n1")
