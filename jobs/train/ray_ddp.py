"""Train the byte-level GPT inside Ray: a TorchTrainer starts the ranks on the nodes of a Ray cluster; each runs ddp.py.

hpc-kit submit ray_4node                    # starts a cluster in the job, and this program on its first node
python jobs/train/ray_ddp.py --steps 60     # with a cluster that runs on this machine
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

START_SECONDS = 300.0


def run_rank(config: dict[str, list[str]]) -> None:
    """Run one rank. Ray has created its process group and set RANK, WORLD_SIZE and so on."""
    sys.path.insert(0, str(Path(__file__).parent))
    rank = int(os.environ["RANK"])
    if folder := os.environ.get("HPC_KIT_RUN"):
        log = os.open(Path(folder, f"rank-{rank}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for stream in (1, 2):
            os.dup2(log, stream)
    import ddp
    from training import record_failure_of

    with record_failure_of(rank):
        ddp.main(config["argv"])


def wait_for_cluster(nodes: int) -> dict[str, float]:
    """Return the resources of the cluster after all its nodes have started."""
    deadline = time.monotonic() + START_SECONDS
    while not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level="ERROR")
        except ConnectionError:  # the head node has not started yet
            if time.monotonic() > deadline:
                raise
    while (alive := sum(node["Alive"] for node in ray.nodes())) < nodes:
        if time.monotonic() > deadline:
            raise SystemExit(f"{alive} of {nodes} Ray nodes started within {START_SECONDS:g} s: see their logs")
        time.sleep(0.1)
    resources: dict[str, float] = ray.cluster_resources()
    return resources


def main(argv: Sequence[str] | None = None) -> None:
    resources = wait_for_cluster(int(os.environ.get("RAY_NODES", "1")))
    # A node offers one CPU for each rank that it is to run.
    trainer = TorchTrainer(
        run_rank,
        train_loop_config={"argv": list(sys.argv[1:] if argv is None else argv)},
        scaling_config=ScalingConfig(num_workers=int(resources["CPU"]), use_gpu=resources.get("GPU", 0) > 0),
        run_config=RunConfig(storage_path=str(Path(os.environ.get("HPC_KIT_RUN", "runs")).absolute()), name="ray"),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
