"""Train the byte-level GPT inside Ray: a TorchTrainer starts the ranks on the nodes of a Ray cluster, each runs ddp.py.

sbatch: jobs/ray_4node.toml starts the cluster, runs this on its first node, and ends both together
python jobs/train/ray_ddp.py --steps 60        (a cluster of this machine's own)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

PATIENCE = 300.0
"""Seconds in which all nodes must have come."""


def rank(config: dict[str, list[str]]) -> None:
    """What each rank does; Ray has made its process group, and set RANK, WORLD_SIZE and the others."""
    sys.path.insert(0, str(Path(__file__).parent))
    if folder := os.environ.get("HPC_KIT_RUN"):
        log = os.open(Path(folder, f"rank-{os.environ['RANK']}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for stream in (1, 2):
            os.dup2(log, stream)
    import ddp
    from hpc_kit.runtime import crash_watcher, first_failure

    number = int(os.environ["RANK"])
    with first_failure.claimed(number), crash_watcher.witnessed(number):
        ddp.main(config["argv"])


def joined(nodes: int) -> dict[str, float]:
    """What the cluster offers, once all its nodes are there."""
    until = time.monotonic() + PATIENCE
    while not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level="ERROR")
        except ConnectionError:  # the head has not begun yet
            if time.monotonic() > until:
                raise
    while (here := sum(node["Alive"] for node in ray.nodes())) < nodes:
        if time.monotonic() > until:
            raise SystemExit(f"{here} of {nodes} nodes of Ray came within {PATIENCE:g} s: their logs tell why")
        time.sleep(0.1)
    resources: dict[str, float] = ray.cluster_resources()
    return resources


def main(argv: Sequence[str] | None = None) -> None:
    there = joined(int(os.environ.get("RAY_NODES", "1")))
    # A node offers a CPU for each rank that it is to run.
    trainer = TorchTrainer(
        rank,
        train_loop_config={"argv": list(sys.argv[1:] if argv is None else argv)},
        scaling_config=ScalingConfig(num_workers=int(there["CPU"]), use_gpu=there.get("GPU", 0) > 0),
        run_config=RunConfig(storage_path=str(Path(os.environ.get("HPC_KIT_RUN", "runs")).absolute()), name="ray"),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
