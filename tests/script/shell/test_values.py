"""The shell files that print a value, and rules for all shell files."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_kit.run_files import FIRST_FAILURE
from tests.script.shell.conftest import SHELL, Run

FILES = sorted(SHELL.glob("*.sh"))


@pytest.mark.oracle("shellcheck")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    done = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_begins_with_its_purpose(path: Path) -> None:
    text = path.read_text()
    first, second, *_ = text.splitlines()
    assert first == "#!/bin/bash"
    assert re.match(r"# (Runs|Prints|Writes) .*[.:\]]", second)
    # A standalone script contains the text in single quotes, except for the files that it sources.
    assert "'" not in text or path.name in {"restart.sh", "spares.sh", "preflight.sh"}
    assert max(map(len, text.splitlines())) <= 120


def test_the_files_of_a_run_have_the_names_that_python_reads() -> None:
    assert f"$HPC_KIT_RUN/{FIRST_FAILURE}" in (SHELL / "task.sh").read_text()
    assert f"$HPC_KIT_RUN/{FIRST_FAILURE}" in (SHELL / "worker.sh").read_text()


@pytest.mark.parametrize(
    ("config", "printed"),
    [
        ("ProctrackType           = proctrack/cgroup", "tasks"),
        ("SignalChildrenProcesses = no", "tasks"),
        ("SignalChildrenProcesses = yes", "all"),
        ("ProctrackType           = proctrack/linuxproc", "all"),
        ("ProctrackType           = proctrack/pgid", "all"),
    ],
)
def test_signalled_processes_are_read_from_the_configuration(
    run: Run, command: Callable[[str, str], None], config: str, printed: str
) -> None:
    command("scontrol", f'[ "$*" = "show config" ] && echo "{config}"')
    assert run("signals.sh").stdout == f"{printed}\n"


def test_without_a_controller_slurms_default_is_assumed(run: Run, command: Callable[[str, str], None]) -> None:
    command("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    done = run("signals.sh")
    assert (done.stdout, done.stderr) == ("tasks\n", "")


@pytest.mark.parametrize(
    ("given", "divisors", "cpus"),
    [
        ("32(x2),15", [], "15"),
        ("32(x2),15", ["2"], "7"),
        ("9,64(x3)", ["2", "2"], "2"),
        ("1", ["4"], "1"),
        ("128(x4)", ["8", "1"], "16"),
        ("", ["2"], "1"),
    ],
)
def test_the_node_with_the_fewest_cpus_counts(run: Run, given: str, divisors: list[str], cpus: str) -> None:
    done = run("cpus_per_task.sh", *divisors, SLURM_JOB_CPUS_PER_NODE=given)
    assert (done.stdout, done.stderr) == (f"{cpus}\n", "")


def test_a_port_follows_from_the_job_and_a_busy_one_is_skipped(run: Run) -> None:
    first = 10000 + 7 * 31
    assert run("free_port.sh").stdout == f"{first}\n"
    assert run("free_port.sh", SLURM_RESTART_COUNT="2").stdout == f"{first + 2}\n"
    assert run("free_port.sh", "123456").stdout == "13456\n"
    with socket.create_server(("127.0.0.1", first)):
        assert run("free_port.sh").stdout == f"{first + 1621}\n"


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [("3(x2),1", "3 3 1"), ("5,1(x2)", "5 1 1"), ("1,2,4", "1 2 4"), ("2(x12)", "2 2 2")],
)
def test_the_tasks_on_this_node_are_counted(run: Run, counts: str, sizes: str) -> None:
    found = [
        run("local_world_size.sh", SLURM_NODEID=str(node), SLURM_STEP_TASKS_PER_NODE=counts).stdout.strip()
        for node in range(3)
    ]
    assert found == sizes.split()


@pytest.mark.parametrize(
    ("answer", "variables", "printed"),
    [
        ("10.0.0.1", {}, "n1"),
        ("", {"SLURM_LAUNCH_NODE_IPADDR": "10.1.2.3"}, "10.1.2.3"),
        ("127.0.1.1", {"SLURM_NODEID": "0"}, "n1"),
    ],
)
def test_the_master_is_found_by_name_or_at_the_address_of_srun(
    run: Run, command: Callable[[str, str], None], answer: str, variables: dict[str, str], printed: str
) -> None:
    command("getent", f'[ -z "{answer}" ] || echo "{answer}      STREAM $2"')
    done = run("find_master.sh", MASTER_ADDR="n1", **{"SLURM_NODEID": "1", **variables})
    assert (done.returncode, done.stdout) == (0, f"{printed}\n")


def test_a_name_that_does_not_resolve_is_refused(run: Run, command: Callable[[str, str], None]) -> None:
    command("getent", "exit 2")
    done = run("find_master.sh", MASTER_ADDR="n1", SLURM_NODEID="1", SLURMD_NODENAME="n2", SLURM_LAUNCH_NODE_IPADDR="")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "the name n1 of the host of rank 0 does not lead there from n2\n  found  /etc/hosts and DNS have no entry\n"
        in done.stderr
    )
    assert "write into /etc/hosts on n2:  ADDRESS n1 " in done.stderr


def test_a_name_that_resolves_to_the_loopback_is_refused(run: Run, command: Callable[[str, str], None]) -> None:
    command("getent", 'echo "127.0.1.1      STREAM $2"')
    done = run("find_master.sh", MASTER_ADDR="n1", SLURM_NODEID="1", SLURMD_NODENAME="n2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not lead there from n2\n  found  it means this node, 127.0.1.1; in /etc/hosts, line" in done.stderr
