"""`hpc-kit launch` on four hosts, each with its own network, name, /tmp and sshd."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ssh.conftest import write_home

from . import Cluster
from .project import Project

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def project(faulty: Cluster) -> Iterator[Project]:
    """A project whose user reaches n1 to n4 over ssh."""
    with contextlib.closing(Project(faulty, "launch")) as project:
        ssh = project.folder / "home" / ".ssh"
        ssh.mkdir(0o700, parents=True)
        for key in (ssh / "host_key", ssh / "id_ed25519"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        nodes = faulty.settings.node_names
        write_home(ssh.parent, "", f"{','.join(nodes)} {(ssh / 'host_key.pub').read_text()}")
        config = ["PidFile none", f"HostKey '{ssh}/host_key'", f"AuthorizedKeysFile '{ssh}/id_ed25519.pub'"]
        config += ["UsePAM no", "StrictModes no", "PasswordAuthentication no", "PermitRootLogin prohibit-password"]
        (ssh / "sshd_config").write_text("\n".join(config) + "\n")
        Path("/run/sshd").mkdir(exist_ok=True)
        daemons = [project.start(["/usr/sbin/sshd", "-D", "-f", str(ssh / "sshd_config")], host=node) for node in nodes]
        project.environ["PATH"] = f"{ssh.parent}/bin:{os.environ['PATH']}"
        yield project
        for daemon in daemons:
            daemon.terminate()


def list_remains(project: Project, node: str) -> list[str]:
    """Wait for the end of agents on a node, which notice the lost connection, and list the remaining processes."""
    deadline = time.monotonic() + 10
    while (found := list_running(project, node)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def list_running(project: Project, node: str) -> list[str]:
    """List the agents that run on a node, and their children."""
    alive = [member for member in project.cluster.alive() if member.host == node]
    words = [Path(f"/proc/{member.pid}/cmdline") for member in alive]
    texts = [path.read_text().replace("\0", " ") for path in words if path.exists()]
    return [text for text in texts if re.search(r"torchrun|readline|sleep 600", text)]


def test_a_shipped_job_trains_on_four_hosts(project: Project) -> None:
    done = project.kit("launch", "ddp_4node", "--hosts", "n[1-4]", "--", "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^0 n1 \| start   ranks 8,", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^done    loss ", done.stdout, re.MULTILINE), done.stdout
    (run,) = (project.folder / "runs" / "ddp_4node").glob("2*")
    record = json.loads((run / "record.json").read_text())
    assert (record["end"]["state"], record["end"]["nodes"], record["host"]) == ("COMPLETED", "n[1-4]", "ctl")
    assert (run / "rank-7.log").exists()
    assert [list_remains(project, node) for node in project.cluster.settings.node_names] == [[]] * 4


def test_a_lost_host_ends_the_launch_and_is_named(project: Project) -> None:
    process = project.start(
        ["hpc-kit", "launch", "-j", "4x1", "--hosts", "n[1-4]", "--", "bash", "-c", "echo here; exec sleep 600"]
    )
    assert process.stdout is not None
    here = 0
    while here < 4 and (line := process.stdout.readline()):
        here += line.endswith("here\n")
    project.cluster.run(["ip", "link", "set", "eth0", "down"], host="n3", check=True)
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, "failed  n3 is lost" in out) == (1, True), out
    assert [list_remains(project, node) for node in ("n1", "n2", "n4")] == [[], [], []]
    deadline = time.monotonic() + 60
    while list_running(project, "n3") and time.monotonic() < deadline:
        time.sleep(0.5)
    assert list_remains(project, "n3") == []


@pytest.fixture
def own() -> Iterator[Path]:
    """A folder below the private /tmp of each node, with different contents."""
    folder = Path("/tmp/hpc_kit-launch-own")
    folder.mkdir(exist_ok=True)
    yield folder
    shutil.rmtree(folder)


def test_hosts_whose_code_differs_are_named_before_any_group_is_made(project: Project, own: Path) -> None:
    program = "import hpc_kit\nimport model\nwith hpc_kit.distributed():\n    print('trained')\n"
    for node, width in (("n1", 64), ("n2", 64), ("n3", 128)):
        write = 'mkdir -p "$3" && cd "$3" && printf %s "$1" >train.py && echo "width = $2" >model.py'
        done = project.cluster.run(["bash", "-c", write, "write", program, str(width), str(own)], host=node)
        assert done.returncode == 0, done.stderr
    words = ["launch", "-j", "3x1", "--hosts", "n[1-3]", "--set", f"resources.chdir={own}", "--set"]
    python = f"cluster.python={project.folder}/.venv/bin/python"
    (own / "train.py").write_text(program)
    done = project.kit(*words, python, "--", "python", "train.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(r"n1 \| +found  the code of train.py: \w{8} on n3; \w{8} on n1, n2\n", done.stdout), done.stdout
    assert "trained" not in done.stdout


def test_hosts_that_do_not_answer_have_a_time_limit(project: Project) -> None:
    done = project.kit("launch", "-j", "2x1", "--hosts", "n1,10.77.0.99", "--connect-timeout", "3", "--", "true")
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, "hpc-kit: 10.77.0.99 does not answer")
    assert list_remains(project, "n1") == []
