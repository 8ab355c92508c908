"""Messages about hosts, and the program that runs on each host."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from queue import Queue, SimpleQueue

import pytest

from hpc_kit.errors import IncompleteEnvironment, LaunchError
from hpc_kit.runtime import resolve
from hpc_kit.runtime.rendezvous.network import this_node_name
from hpc_kit.ssh import agent
from hpc_kit.ssh.host_connection import (
    HostConnection,
    HostMessage,
    explain_host_failure,
    first_host_address,
    host_warnings,
)
from hpc_kit.ssh.hosts import LaunchHost


def make_hello(machine: str, *, gpus: bool = False) -> HostMessage:
    return HostMessage(0, "hello", {"host": "a", "machine": machine, "cores": 4, "gpus": gpus})


CONNECTIONS = [
    HostConnection(node, LaunchHost(name), "python3", SimpleQueue(), Queue(), socket=Path(str(node)), timeout=1)
    for node, name in enumerate(("a", "me@a"))
]


@pytest.mark.parametrize("backend", ["auto", "nccl"])
def test_a_host_with_gpus_under_two_names_is_refused(backend: str) -> None:
    greetings = {0: make_hello("x", gpus=True), 1: make_hello("x", gpus=True)}
    with pytest.raises(
        LaunchError, match="a and me@a are the same host, and their ranks would use the same GPUs"
    ) as output:
        list(host_warnings(CONNECTIONS, greetings, (2, 2), backend))
    assert (output.value.remedy or "").startswith("name it once, with all its ranks: a:4; ")


@pytest.mark.parametrize(("gpus", "backend"), [(True, "gloo"), (False, "auto")])
def test_a_host_without_gpus_may_have_two_names(gpus: bool, backend: str) -> None:
    greetings = {0: make_hello("x", gpus=gpus), 1: make_hello("x", gpus=gpus)}
    assert list(host_warnings(CONNECTIONS, greetings, (2, 2), backend)) == [
        "a and me@a are the same host (a): 4 ranks on 4 cores"
    ]


def test_more_ranks_than_cores_are_noted() -> None:
    greetings = {0: make_hello("x", gpus=True), 1: make_hello("y", gpus=True)}
    lines = ["me@a: 22 ranks on 4 cores (for a port, write ssh://HOST:PORT)"]
    assert list(host_warnings(CONNECTIONS, greetings, (4, 22), "auto")) == lines


def test_the_agent_runs_on_the_oldest_supported_python() -> None:
    """The Python of each host runs it."""
    tree = ast.parse(Path(agent.__file__).read_text(), feature_version=(3, 7))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "__future__"]


def test_each_rank_gets_its_world() -> None:
    environ = {"HPC_KIT_SSH_NODE": "1", "HPC_KIT_SSH_HOSTS": "a,b,c", "HPC_KIT_SSH_MASTER": "10.0.0.1"}
    environ["HPC_KIT_SSH_LAUNCH"] = "20261122.ab"
    world = resolve(environ)
    assert (world.rank, world.world_size, world.local_world_size, world.launcher) == (1, 3, 1, "ssh")
    assert (world.master_addr, world.hosts, world.key) == ("10.0.0.1", ("a", "b", "c"), "ssh launch 20261122.ab")
    assert this_node_name(environ | {"SLURMD_NODENAME": "login"}) == "b"
    assert resolve(environ | {"MASTER_ADDR": "ib0"}).master_addr == "ib0"
    with pytest.raises(IncompleteEnvironment, match="some variables of the launch over ssh are missing"):
        resolve(environ | {"HPC_KIT_SSH_MASTER": ""})


@pytest.mark.parametrize(
    ("addresses", "where"),
    [
        (("10.0.0.1", "10.0.0.2"), "10.0.0.1"),
        (("127.0.0.1", "10.0.0.2"), "n1"),
        (("127.0.0.1", "::1"), "127.0.0.1"),
        (("",), "n1"),
    ],
)
def test_all_hosts_find_the_first_one(addresses: tuple[str, ...], where: str) -> None:
    hello = {
        node: HostMessage(node, "hello", {"host": f"n{node + 1}", "address": each})
        for node, each in enumerate(addresses)
    }
    assert first_host_address(hello) == where


NO_PROCESS = (
    "def Popen(*a, **k): raise BlockingIOError(11, 'Resource temporarily unavailable')\nsubprocess.Popen = Popen"
)
NO_FOLDER = "def none(**k): raise FileNotFoundError(2, 'No usable')\ntempfile.mkdtemp = tempfile.gettempdir = none"


@pytest.mark.parametrize(
    ("broken", "why"),
    [(NO_PROCESS, "[Errno 11] Resource temporarily unavailable"), (NO_FOLDER, "[Errno 2] No usable")],
    ids=["no process", "no folder"],
)
def test_a_host_that_cannot_start_a_rank_reports_it_and_leaves_no_file(broken: str, why: str, tmp_path: Path) -> None:
    order = {"kind": "start", "run": str(tmp_path / "run"), "folder": str(tmp_path), "grace": 1, "first": 0, "ranks": 2}
    done = subprocess.run(
        [sys.executable, "-c", f"import subprocess, tempfile\n{broken}\n{Path(agent.__file__).read_text()}"],
        input=json.dumps(order | {"environ": {}, "script": "true"}) + "\n",
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    refused = json.loads(done.stdout.splitlines()[-1])
    assert refused == {"kind": "refused", "reason": why, "file": False}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    output = explain_host_failure(LaunchHost("n1"), HostMessage(0, refused.pop("kind"), refused))
    assert (output.what, output.found) == ("n1 cannot start any process", why)
