"""Third-party programs run unchanged on two hosts, and a blocked network is reported."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from . import Cluster

PLAIN = """
import os
from torch import distributed as dist, ones
dist.init_process_group("gloo")
numbers = ones(1)
dist.all_reduce(numbers)
print(dist.get_rank(), int(numbers[0]), os.environ["LOCAL_RANK"], os.environ["MASTER_ADDR"])
dist.destroy_process_group()
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
numbers = accelerator.reduce(torch.ones(1))
print(accelerator.process_index, int(numbers[0]), accelerator.local_process_index, "n1")
accelerator.end_training()
"""
FABRIC = """
import os
import torch
from lightning_fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=2, strategy="ddp")
fabric.launch()
numbers = fabric.all_reduce(torch.ones(1), reduce_op="sum")
print(fabric.global_rank, int(numbers[0]), fabric.local_rank, "n1")
"""
STANDALONE = """
export MASTER_ADDR=n1 MASTER_PORT=21234 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID GROUP_RANK=$SLURM_NODEID
exec "$@"
"""


def run(cluster: Cluster, program: str, *before: str, name: str = "program.py", options: str = "") -> tuple[int, str]:
    """Run a program on two hosts with two tasks each. Return srun's status and the sorted lines of all tasks."""
    path = cluster.settings.work / name
    path.write_text(program)
    argv = ["srun", "-wn[1-2]", "-N2", "-n4", "--ntasks-per-node=2", *options.split(), *before, str(path)]
    done = cluster.run(argv)
    return done.returncode, "\n".join([*sorted(done.stdout.splitlines()), done.stderr])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", ["runtime", "standalone"])
@pytest.mark.parametrize("program", [PLAIN, ACCELERATE, FABRIC], ids=["env", "accelerate", "fabric"])
def test_a_third_party_program_runs_unchanged_on_two_hosts(program: str, start: str, cluster: Cluster) -> None:
    ours = [sys.executable, "-m", "hpc_kit.runtime"]
    before = ours if start == "runtime" else ["bash", "-c", STANDALONE, "task", sys.executable]
    status, output = run(cluster, program, *before)
    assert status == 0, output
    ranks = [line for line in output.splitlines() if line[:1].isdigit()]
    assert ranks == [f"{rank} 4 {rank % 2} n1" for rank in range(4)], output


@pytest.fixture
def walled(cluster: Cluster) -> Iterator[Cluster]:
    """Make n1 drop every connection to a port of the rendezvous."""
    rule = ["INPUT", "-i", "eth0", "-p", "tcp", "--dport", "10000:32767", "-j", "DROP"]
    tried = cluster.run(["iptables", "-A", *rule], host="n1")
    if tried.returncode:
        pytest.skip(f"no firewall here: {tried.stderr.strip()}")
    yield cluster
    cluster.run(["iptables", "-D", *rule], host="n1")


@pytest.mark.timeout(400)
def test_behind_a_firewall_all_ranks_end_in_time_with_the_reason(walled: Cluster) -> None:
    start = time.monotonic()
    ours = [sys.executable, "-m", "hpc_kit.runtime", "--timeout", "20"]
    status, output = run(walled, PLAIN, *ours, options="--kill-on-bad-exit=0 --wait=0")
    assert status == 1
    assert time.monotonic() - start < 250  # plus the import of torch on a busy machine
    assert "did not find rank 0 on n1 within 20 s" in output
    assert "a firewall drops the packets" in output
    assert "ranks did not come within 20 s" in output
