"""Runs a program in several processes that one parent spawns with `torch.multiprocessing.spawn`.

python -m hpc_kit.bench.spawned_ranks 2 jobs/train/ddp.py --steps 60
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from hpc_kit.bench import training_runs
from hpc_kit.runtime.rendezvous import network


def run_rank(number: int, ranks: int, port: int, argv: list[str]) -> None:
    """Run the program as one rank, with torch's variables set."""
    os.environ.update(training_runs.torch_variables_of_rank(number, ranks, (number, ranks), ("127.0.0.1", port)))
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).parent))
    runpy.run_path(argv[0], run_name="__main__")


def main(ranks: int, argv: list[str]) -> None:
    """Spawn the ranks and wait for all; the first failure ends all of them."""
    from torch.multiprocessing.spawn import spawn

    spawn(run_rank, args=(ranks, network.free_port(), argv), nprocs=ranks)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
