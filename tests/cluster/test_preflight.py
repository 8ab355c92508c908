"""Slow nodes of the real Slurm are found and excluded: one with a slow network, and one with a quota of CPU time."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.bench.preflight import RATES, report_file

from . import Cluster
from .project import Project, job_id

pytestmark = pytest.mark.timeout(600)

CPU = Path("/sys/fs/cgroup/cpu")

SHAPE = ("-j", "3x1", "--set", "preflight.enabled=true", "--set", "preflight.threshold=0.03", "--time", "5")
PROGRAM = ("--", "bash", "-c", "echo on $SLURMD_NODENAME")
"""The threshold is far below the default because all hosts share the cores of one machine with other work."""


@pytest.fixture
def project(faulty: Cluster) -> Iterator[Project]:
    with closing(Project(faulty, "preflight")) as own:
        yield own


@contextmanager
def slow_network(cluster: Cluster, node: str) -> Iterator[None]:
    """Limit what a node sends to 2 Mb/s."""
    limit = ["root", "tbf", "rate", "2mbit", "burst", "32kbit", "latency", "400ms"]
    cluster.run(["tc", "qdisc", "add", "dev", "eth0", *limit], host=node, check=True)
    try:
        yield
    finally:
        cluster.run(["tc", "qdisc", "del", "dev", "eth0", "root"], host=node)


@contextmanager
def slow_processor(cluster: Cluster, node: str, runs: Path) -> Iterator[None]:
    """Give the slurmd of a node, and thus its steps, a small part of one CPU when the rates are measured.

    The import of torch would take too long, and on a busy machine a larger part is as much as that of other nodes.
    """
    if not (CPU / "cpu.cfs_quota_us").parent.is_dir() or not (CPU / "cgroup.procs").exists():
        pytest.skip("no cgroup v1 with the controller cpu here")
    group = CPU / f"hpc_kit-{cluster.settings.name}-{node}"
    group.mkdir(exist_ok=True)
    (slurmd,) = (member.pid for member in cluster.alive() if (member.host, member.name) == (node, "slurmd"))
    ended = threading.Event()

    def limit() -> None:
        while not ended.is_set() and not any(
            f'"stage":"{RATES}"' in path.read_text() for path in runs.glob(f"*/*/preflight/{report_file(node)}")
        ):
            time.sleep(0.01)
        (group / "cpu.cfs_quota_us").write_text("2000")

    limiter = threading.Thread(target=limit)
    try:
        (group / "cgroup.procs").write_text(str(slurmd))
        limiter.start()
        yield
    finally:
        ended.set()
        limiter.join()
        (group / "cpu.cfs_quota_us").write_text("-1")
        for pid in (group / "cgroup.procs").read_text().split():
            (CPU / "cgroup.procs").write_text(pid)
        group.rmdir()


def kit(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `hpc-kit`. On a busy machine, two measurements may take minutes."""
    return project.run(["hpc-kit", *words], timeout=580)


def run_of(project: Project, printed: str) -> Path:
    (run,) = project.folder.glob(f"runs/*/{job_id(printed)}")
    return run


def placed(run: Path) -> list[str]:
    """The nodes on which the program ran."""
    return [path.read_text().strip() for path in sorted(run.glob("rank-*.log"))]


def test_a_node_with_a_slow_network_is_left_to_a_spare_one(project: Project) -> None:
    with slow_network(project.cluster, "n2"):
        done = kit(project, "submit", *SHAPE, "--set", "restart.spares=1", "--wait", *PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    run = run_of(project, done.stdout)
    log = run.with_name(f"{run.name}.log").read_text()
    assert placed(run) == ["on n1", "on n3", "on n4"], log
    assert re.search(r"^  n2 is slow: network .* Gb/s, 0\.\d+ of the median", log, re.MULTILINE), log
    assert "preflight" in (run / "history").read_text()


@pytest.mark.parametrize("settings", [(), ("--set", "restart.progress=saved")], ids=["", "restart"])
def test_without_spare_nodes_the_job_is_requeued_without_the_slow_one(
    settings: tuple[str, ...], project: Project
) -> None:
    with slow_network(project.cluster, "n2"):
        done = kit(project, "submit", *SHAPE, *settings, "--wait", *PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    run = run_of(project, done.stdout)
    assert placed(run) == ["on n1", "on n3", "on n4"], run.with_name(f"{run.name}.log").read_text()
    history = json.loads(project.kit("history", run.name, "--json").stdout)
    assert [attempt["decision"] for attempt in history[0]["attempts"]] == ["requeue", "finished"]


def test_doctor_names_a_node_with_a_slow_processor(project: Project) -> None:
    with slow_processor(project.cluster, "n3", project.folder / "runs"):
        done = kit(project, "doctor", "-j", "4x1", "--set", "preflight.threshold=0.4", "--json", *PROGRAM)
    assert done.returncode == 1, done.stdout + done.stderr
    nodes: list[dict[str, Any]] = json.loads(done.stdout)["nodes"]
    bad = {node["node"]: " ".join(node["reasons"]) for node in nodes if node["state"] != "ok"}
    assert list(bad) == ["n3"], done.stdout
    assert "matrix product" in bad["n3"]


def test_an_excluded_node_is_not_used(project: Project) -> None:
    state = {"XDG_STATE_HOME": str(project.folder / "state")}
    done = project.kit("cluster", "exclude", "n1", "--reason", "slow network", environ=state)
    assert done.returncode == 0, done.stderr
    done = project.kit("submit", "-j", "3x1", "--time", "5", "--wait", *PROGRAM, environ=state)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "slow network" in done.stdout
    assert placed(run_of(project, done.stdout)) == ["on n2", "on n3", "on n4"]
