"""Hosts as people write them, and a job laid over them."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from queue import Queue, SimpleQueue

import pytest
from msgspec import structs

from hpc_kit.errors import IncompleteEnvironment, LaunchError, SpecError
from hpc_kit.runtime import resolve
from hpc_kit.runtime.rendezvous.network import of_this_node
from hpc_kit.spec import load
from hpc_kit.spec.job import Component, Job, Launch
from hpc_kit.spec.resolve import Resolved
from hpc_kit.spec.resolve import resolve as fit
from hpc_kit.spec.resources import Resources
from hpc_kit.ssh import agent, record
from hpc_kit.ssh.host_connection import Frame, HostLink
from hpc_kit.ssh.hosts import Address, Host, read_hosts
from hpc_kit.ssh.launch import _signals
from hpc_kit.ssh.output import Output
from hpc_kit.ssh.over_ssh import agent_scripts
from hpc_kit.ssh.rank_placement import exported, on_hosts
from hpc_kit.ssh.reach import error_of, master
from hpc_kit.ssh.reach import laid as told_of
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("a,b", [Host("a"), Host("b")]),
        ("a:4, me@b:2 ,", [Host("a", 4), Host("me@b", 2)]),
        ("n[1-2,7],10.0.0.5", [Host("n1"), Host("n2"), Host("n7"), Host("10.0.0.5")]),
        ("n[1-2]:8", [Host("n1", 8), Host("n2", 8)]),
        ("fd00::1,[fd00::2],me@fe80::1%eth0", [Host("fd00::1"), Host("fd00::2"), Host("me@fe80::1%eth0")]),
        ("[::1]:4,me@[fd00::1]:2", [Host("::1", 4), Host("me@fd00::1", 2)]),
        ("ssh://a,ssh://me@b:2222", [Host("a"), Host("me@b:2222")]),
        ("ssh://[fd00::1]:22:4,ssh://b:22:3", [Host("[fd00::1]:22", 4), Host("b:22", 3)]),
    ],
)
def test_hosts_on_a_command_line(words: str, hosts: list[Host]) -> None:
    read = read_hosts(words, None)
    assert list(read) == hosts
    assert read_hosts(",".join(host.written for host in read), None) == read


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_host_file_is_read_as_mpirun_reads_it(tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "hosts"
    lines = (
        b"\xef\xbb\xbf# ours",
        b"",
        b"a slots=4 max_slots=8",
        b" b:2   # small",
        b"\tme@c slots=1 ",
        b"fd00::1 slots=3",
    )
    file.write_bytes(end.join(lines))
    assert read_hosts(None, file) == (Host("a", 4), Host("b", 2), Host("me@c", 1), Host("fd00::1", 3))


@pytest.mark.parametrize(
    ("name", "address", "for_ssh"),
    [
        ("a", (None, "a", None), "a"),
        ("me@a:2222", ("me", "a", 2222), "ssh://me@a:2222"),
        ("ssh://me@a", ("me", "a", None), "ssh://me@a"),
        ("::1", (None, "::1", None), "::1"),
        ("me@fe80::1%eth0", ("me", "fe80::1%eth0", None), "me@fe80::1%eth0"),
        ("[fd00::1]:22", (None, "fd00::1", 22), "ssh://[fd00::1]:22"),
    ],
)
def test_user_host_and_port_of_a_name(name: str, address: tuple[object, ...], for_ssh: str) -> None:
    assert (Address.of(name), Host(name).for_ssh) == (address, for_ssh)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("a,b,a", "host a is named twice"),
        ("n[1-3],n2", "host n2 is named twice"),
        ("a:0", "'a:0' names no host"),
        ("a:x", "'a:x' names no host"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' names no host"),
        ("n[1-", r"'n\[1-' names no host"),
        ("a:2:3", "'a:2:3' names no host"),
        ("ssh://a:99999", "'ssh://a:99999' names no host"),
        ("ssh://a:0", "'ssh://a:0' names no host"),
        ("ssh://a:2:0", "'ssh://a:2:0' names no host"),
        ("ssh://me:secret@a", "names no host"),
        ("[fd00::x]", "names no host"),
        ("a/b", "'a/b' names no host"),
        ("a:2,b", "some hosts say how many ranks they take, and others do not"),
        (" , ", "no host is named"),
    ],
)
def test_what_is_no_host_is_refused(words: str, what: str) -> None:
    with pytest.raises(SpecError, match=what):
        read_hosts(words, None)


def test_a_host_file_that_says_something_else_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb port=22\n")
    with pytest.raises(SpecError) as refused:
        read_hosts(None, file)
    assert (refused.value.what, refused.value.found) == ("'port=22' says nothing of a host", f"{file}, line 2")
    with pytest.raises(SpecError, match="cannot read the host file"):
        read_hosts(None, tmp_path / "gone")
    with pytest.raises(SpecError, match="a launch needs --hosts or --hostfile"):
        read_hosts("a", file)


def laid(job: Job, *hosts: Host) -> tuple[object, ...]:
    """Nodes, tasks a node, tasks and CPUs of a task, of a job laid over hosts."""
    resources = on_hosts(job, hosts).resources
    return resources.nodes, resources.ntasks_per_node, resources.ntasks, resources.cpus_per_task


def test_each_host_is_a_node_and_each_rank_a_task() -> None:
    by_srun = Job(name="a", resources=Resources(nodes=4, ntasks_per_node=2, cpus_per_task=3, gpus_per_task=1))
    agents = Job(
        name="b",
        launch=Launch(launcher="torchrun", nproc_per_node=4),
        resources=Resources(ntasks_per_node=1, cpus_per_task=8),
    )
    assert laid(by_srun, Host("a"), Host("b")) == (2, 2, None, 3)
    assert laid(by_srun, Host("a", 5), Host("b", 5)) == (2, 5, None, 3)
    assert laid(by_srun, Host("a", 1), Host("b", 2)) == (2, None, 3, 3)
    assert laid(agents, Host("a")) == (1, 4, None, 2)
    assert on_hosts(by_srun, [Host("a")]).resources.gpus_per_task is None


@pytest.mark.parametrize(
    ("job", "what"),
    [
        (Job(name="x", resources=Resources(array="0-3")), "an array is Slurm's own"),
        (Job(name="x", component=(Component(), Component())), "a heterogeneous job is Slurm's own"),
        (Job(name="x", launch=Launch(backend="mpi")), "backend = 'mpi' needs ranks that mpirun or srun has started"),
    ],
)
def test_what_only_slurm_can_start_is_refused(job: Job, what: str) -> None:
    with pytest.raises(SpecError, match=what):
        on_hosts(job, [Host("a")])


def resolved(**resources: object) -> Resolved:
    """A job of two uneven hosts."""
    loaded = load.load("ddp_1node", "hosts", set={f"resources.{name}": value for name, value in resources.items()})
    return fit(structs.replace(loaded, job=on_hosts(loaded.job, [Host("a", 1), Host("b", 3)])), root=ROOT)


def test_each_host_runs_one_agent_with_its_own_number_of_ranks() -> None:
    first, second = agent_scripts(resolved(), (1, 3), ROOT)
    assert first.splitlines()[:2] == ["set -euo pipefail", f"cd {ROOT}"]
    assert "-m hpc_kit.runtime.torchrun --nnodes=2 --nproc-per-node=1 \\\n  jobs/train/ddp.py" in first
    assert first.replace("node=1", "node=3") == second


def test_variables_are_taken_along_by_name() -> None:
    job = resolved(export="ALL,HF_TOKEN,MODE=fast")
    assert exported(job, {"HF_TOKEN": "x", "OTHER": "y"}) == {"HF_TOKEN": "x", "MODE": "fast"}
    with pytest.raises(SpecError, match="HF_TOKEN is not set here"):
        exported(job, {})


def test_pieces_become_lines_and_logs(tmp_path: Path) -> None:
    shown: list[str] = []
    output = Output(tmp_path, ["n1", "gpu12"], 12, shown.append)
    for host, rank, text in (
        ("gpu12", 11, "half "),
        ("n1", 3, "10%\r20%\r\n"),
        ("gpu12", 11, "a line\nand "),
        ("n1", None, "torchrun\n"),
        ("n1", 3, "\udcff"),
    ):
        output.take(host, rank, text)
    output.close()
    assert shown == [
        " 3 n1    | 20%",
        "11 gpu12 | half a line",
        "   n1    | torchrun",
        "11 gpu12 | and ",
        " 3 n1    | \N{REPLACEMENT CHARACTER}",
    ]
    assert (tmp_path / "rank-3.log").read_bytes() == b"10%\r20%\r\n\xff"
    assert (tmp_path / "node-n1.log").read_text() == "torchrun\n"


def test_a_progress_bar_is_shown_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    output = Output(tmp_path, ["n1"], 1, shown.append)
    for tenth in range(25):
        monkeypatch.setattr("hpc_kit.ssh.output.time.monotonic", lambda now=tenth / 10: now)
        output.take("n1", 0, f"\r{tenth} %")
    output.take("n1", 0, "\n")
    output.close()
    assert shown == ["0 n1 | 0 %", "0 n1 | 10 %", "0 n1 | 20 %", "0 n1 | 24 %"]


def hello(machine: str, *, gpus: bool = False) -> Frame:
    return Frame(0, "hello", {"host": "a", "machine": machine, "cores": 4, "gpus": gpus})


LINKS = [HostLink(node, name, "python3", SimpleQueue(), Queue(), 1) for node, name in enumerate(("a", "me@a"))]


@pytest.mark.parametrize("backend", ["auto", "nccl"])
def test_a_host_with_gpus_under_two_names_is_refused(backend: str) -> None:
    greetings = {0: hello("x", gpus=True), 1: hello("x", gpus=True)}
    with pytest.raises(LaunchError, match="a and me@a are the same host, and the ranks of each would") as told:
        list(told_of(LINKS, greetings, (2, 2), backend))
    assert (told.value.remedy or "").startswith("name it once, with all its ranks: a:4; ")


@pytest.mark.parametrize(("gpus", "backend"), [(True, "gloo"), (False, "auto")])
def test_for_ranks_on_cpus_a_host_may_have_two_names(gpus: bool, backend: str) -> None:
    greetings = {0: hello("x", gpus=gpus), 1: hello("x", gpus=gpus)}
    assert list(told_of(LINKS, greetings, (2, 2), backend)) == ["a and me@a are the same host (a): 4 ranks on 4 cores"]


def test_more_ranks_than_cores_are_told() -> None:
    greetings = {0: hello("x", gpus=True), 1: hello("y", gpus=True)}
    lines = ["me@a: 22 ranks on 4 cores (a port is written ssh://HOST:PORT)"]
    assert list(told_of(LINKS, greetings, (4, 22), "auto")) == lines


def test_the_agent_asks_for_no_newer_python_than_it_says() -> None:
    """It is read by the hosts' own Python."""
    tree = ast.parse(Path(agent.__file__).read_text(), feature_version=(3, 7))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "__future__"]


def test_a_signal_that_is_ignored_behind_nohup_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _signals(SimpleQueue()):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_record_takes_any_name_of_a_host() -> None:
    assert [record._folded(hosts) for hosts in (["n1", "n2"], ["fd00::1", "[::1]:22"])] == [
        "n[1-2]",
        "fd00::1,[::1]:22",
    ]


def test_an_agent_knows_its_launch() -> None:
    environ = {"HPC_KIT_SSH_NODE": "1", "HPC_KIT_SSH_HOSTS": "a,b,c", "HPC_KIT_SSH_MASTER": "10.0.0.1"}
    environ["HPC_KIT_SSH_LAUNCH"] = "20261122.ab"
    world = resolve(environ)
    assert (world.rank, world.world_size, world.local_world_size, world.launcher) == (1, 3, 1, "ssh")
    assert (world.master_addr, world.hosts, world.key) == ("10.0.0.1", ("a", "b", "c"), "ssh launch 20261122.ab")
    assert of_this_node(environ | {"SLURMD_NODENAME": "login"}) == "b"
    assert resolve(environ | {"MASTER_ADDR": "ib0"}).master_addr == "ib0"
    with pytest.raises(IncompleteEnvironment, match="the launch over ssh is told in part only"):
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
        node: Frame(node, "hello", {"host": f"n{node + 1}", "address": each}) for node, each in enumerate(addresses)
    }
    assert master(hello) == where


NO_PROCESS = (
    "def Popen(*a, **k): raise BlockingIOError(11, 'Resource temporarily unavailable')\nsubprocess.Popen = Popen"
)
NO_FOLDER = "def none(**k): raise FileNotFoundError(2, 'No usable')\ntempfile.mkdtemp = tempfile.gettempdir = none"


@pytest.mark.parametrize(
    ("broken", "why"),
    [(NO_PROCESS, "[Errno 11] Resource temporarily unavailable"), (NO_FOLDER, "[Errno 2] No usable")],
    ids=["no process", "no folder"],
)
def test_a_host_that_can_start_nothing_says_so_and_keeps_nothing(broken: str, why: str, tmp_path: Path) -> None:
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
    assert refused == {"kind": "refused", "why": why, "file": False}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    told = error_of("n1", Frame(0, refused.pop("kind"), refused))
    assert (told.what, told.found) == ("nothing can be started on n1", why)
