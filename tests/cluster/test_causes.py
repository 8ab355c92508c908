"""The cause of a failed job is a launcher, a node or a rank that hangs, and never a waiting rank."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from . import Cluster
from .project import Project

pytestmark = pytest.mark.timeout(600)

LOOP = """
import os, time
import torch
from torch import distributed as dist
dist.init_process_group("gloo")
with open(f"pid-{dist.get_rank()}.part", "w") as file:
    file.write(str(os.getpid()))
os.replace(file.name, f"pid-{dist.get_rank()}")
for step in range(3000):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.05)
"""


@pytest.fixture
def project(cluster: Cluster) -> Iterator[Project]:
    with contextlib.closing(Project(cluster, "causes")) as project:
        project.program("loop.py", LOOP)
        try:
            yield project
        finally:
            cluster.repair()


def wait_until(happened: Callable[[], bool], what: str, patience: float = 120) -> None:
    deadline = time.monotonic() + patience
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.2)


@pytest.mark.parametrize("daemon", ["slurmd", "munged"])
def test_a_node_that_cannot_launch_tasks_is_named_with_the_line_to_leave_it_out(project: Project, daemon: str) -> None:
    project.cluster.stop("n2", daemon)
    job = project.submit("-j", "4x1", "--no-requeue", "--", "sleep", "60")
    state = project.await_end(job, patience=200)
    shown = project.kit("status", job).stdout
    told = project.kit("logs", job).stdout
    assert state != "COMPLETED"
    assert "Slurm could not start the tasks on n2: " in shown, shown + told
    assert "hpc-kit submit -j 4x1 --no-requeue --exclude=n2 -- sleep 60" in told, told
    assert "SIGKILL" not in shown


@pytest.mark.parametrize("program", [("python",), ("torchrun",)], ids=" ".join)
def test_a_stopped_rank_is_the_cause(project: Project, program: tuple[str, ...]) -> None:
    job = project.submit("-j", "2x2", "--set", "launch.timeout=60", "--", *program, "loop.py")
    files = [project.folder / f"pid-{rank}" for rank in range(4)]
    wait_until(lambda: all(file.exists() for file in files), "not all ranks started", patience=240)
    time.sleep(2)
    os.kill(int(files[2].read_text()), signal.SIGSTOP)
    stopped = time.monotonic()
    state = project.await_end(job, patience=180)
    [line] = project.status(job)
    assert state == "FAILED"
    assert time.monotonic() - stopped < 150
    assert line["sentence"].startswith("rank 2 on n2: "), line
    assert "waited for it in vain: its process" in line["sentence"]


def test_a_late_rank_is_the_cause(project: Project) -> None:
    late = 'if [ "$SLURM_PROCID" = 3 ]; then sleep 300; fi; exec .venv/bin/python -m hpc_kit.runtime loop.py'
    words = ["--set", "launch.timeout=45", "--set", "launch.bootstrap=false"]
    job = project.submit("-j", "2x2", *words, "--", "bash", "-c", late)
    assert project.await_end(job, patience=240) == "FAILED"
    [line] = project.status(job)
    assert line["sentence"] == "rank 3 on n2: it did not come to the meeting of the ranks within 45 s"


def test_an_unresolvable_master_is_named_within_the_time_out(project: Project) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "gpusvr03", "MASTER_PORT": "29511"}
    ours = ["python", "-m", "hpc_kit.runtime", "loop.py"]
    start = time.monotonic()
    done = project.run(ours, host="n2", environ={**variables, "HPC_KIT_TIMEOUT": "15"})
    assert done.returncode == 1
    assert time.monotonic() - start < 100  # plus the import of torch on a busy machine
    assert "the name gpusvr03 of rank 0's host does not resolve on n2" in done.stderr
    assert "add a line to /etc/hosts on n2:  ADDRESS gpusvr03" in done.stderr
    assert "firewall" not in done.stderr


def test_a_launcher_in_a_shell_script_is_refused_before_the_queue(project: Project) -> None:
    project.program("run.sh", "torchrun --nproc-per-node=2 loop.py\n")
    refused = project.kit("submit", "-j", "2x2", "--", "bash", "run.sh")
    assert refused.returncode == 2
    assert "torchrun in the command would not make one world of 4 ranks" in refused.stderr


def test_agents_with_the_same_node_rank_are_found_before_the_queue(project: Project) -> None:
    script = "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1\nsrun torchrun --nnodes=2 --node_rank=0 loop.py\n"
    project.program("by hand.sbatch", script)
    found = project.kit("check", "by hand.sbatch")
    assert found.returncode == 1
    assert "--node-rank=0 on each of the 2 nodes" in found.stdout
