"""Unchanged programs of others: submitit's own executor, scripts written by hand, accelerate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from submitit import SlurmExecutor

from pocketslurm.pytest_plugin import PocketSlurm


@pytest.fixture
def slurm(pocketslurm: PocketSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The embedded commands on PATH, for this process too; returns the folder in which the tests run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add(left: int, right: int) -> tuple[int, str]:
    return left + right, os.environ["SLURM_PROCID"]


def test_submitits_own_executor_gets_a_result_of_each_task(slurm: Path) -> None:
    executor = SlurmExecutor(folder=slurm / "logs")
    executor.update_parameters(nodes=2, ntasks_per_node=2, time=5)
    job = executor.submit(add, 2, 3)
    assert job.results() == [(5, str(rank)) for rank in range(4)]


@pytest.mark.slow
def test_submitits_own_array(slurm: Path) -> None:
    executor = SlurmExecutor(folder=slurm / "logs")
    executor.update_parameters(time=5, array_parallelism=2)
    jobs = executor.map_array(add, [1, 2, 3], [10, 20, 30])
    assert [job.result()[0] for job in jobs] == [11, 22, 33]


@pytest.mark.slow
def test_submitits_folder_may_be_named_after_the_job(slurm: Path) -> None:
    executor = SlurmExecutor(folder=slurm / "logs" / "%j")
    executor.update_parameters(time=5)
    assert [job.result()[0] for job in executor.map_array(add, [1, 2], [10, 20])] == [11, 22]


def wait(folder: Path, script: str) -> str:
    """Run a script to its end, as people do; what it wrote."""
    (folder / "job.sh").write_text(script)
    done = subprocess.run(["sbatch", "--wait", "job.sh"], capture_output=True, text=True, timeout=150)
    log = "".join(path.read_text() for path in sorted(folder.glob("slurm-*.out")))
    assert done.returncode == 0, done.stderr + log
    return log


BY_HAND = """#!/bin/bash -l
#SBATCH -J by-hand
#SBATCH -A project
#SBATCH --qos=normal
#SBATCH -N 2
#SBATCH --ntasks-per-node=2
#SBATCH -t 5
#SBATCH --mail-type=END

nodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )
export MASTER_ADDR=${nodes[0]}
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 10000))
echo "head $MASTER_ADDR of ${#nodes[@]}"
srun --label hostname >/dev/null
srun bash -c 'echo "rank $SLURM_PROCID of $SLURM_NTASKS, local $SLURM_LOCALID, node $SLURM_NODEID"'
"""


def test_a_script_written_by_hand(slurm: Path) -> None:
    lines = wait(slurm, BY_HAND).splitlines()
    assert "head 127.0.0.1 of 2" in lines
    assert {line for line in lines if line.startswith("rank")} == {
        f"rank {rank} of 4, local {rank % 2}, node {rank // 2}" for rank in range(4)
    }


TRAIN = r"""
import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.ones(1), reduction="sum")
# One write a line: the processes of a node share the launcher's stream.
sys.stdout.write(f"process {accelerator.process_index} of {accelerator.num_processes}: {int(total)}\n")
sys.stdout.flush()
accelerator.end_training()
"""

# In the form of accelerate's example for several nodes: the first host by scontrol, one launcher a node by srun.
ACCELERATE = f"""#!/bin/bash
#SBATCH --job-name=multinode
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:05:00

export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
head_node_ip=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export LAUNCHER="{sys.executable} -m accelerate.commands.launch \\
    --multi_gpu \\
    --num_processes 4 \\
    --num_machines $SLURM_NNODES \\
    --rdzv_backend static \\
    --main_process_ip $head_node_ip \\
    --main_process_port $((10000 + SLURM_JOB_ID % 10000 + {os.getpid() % 5000})) \\
    "
srun bash -c "$LAUNCHER --machine_rank \\$SLURM_PROCID train.py"
"""


@pytest.mark.slow
def test_accelerate_launch_on_two_nodes(slurm: Path) -> None:
    (slurm / "train.py").write_text(TRAIN)
    lines = wait(slurm, ACCELERATE).splitlines()
    assert {line for line in lines if line.startswith("process")} == {f"process {rank} of 4: 4" for rank in range(4)}
