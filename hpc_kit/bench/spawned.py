"""A program in several processes that one parent spawns, as `torch.multiprocessing.spawn` does.

python -m hpc_kit.bench.spawned 2 jobs/train/ddp.py --steps 60
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from hpc_kit.bench import training_runs
from hpc_kit.runtime.rendezvous import network


def rank(number: int, ranks: int, port: int, argv: list[str]) -> None:
    """One of them: the program, with torch's variables set."""
    variables = training_runs.of_rank(number, ranks, (number, ranks), ("127.0.0.1", port))
    os.environ.update({name: str(value) for name, value in variables.items()})
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).parent))
    runpy.run_path(argv[0], run_name="__main__")


def main(ranks: int, argv: list[str]) -> None:
    """Spawn them, and wait for all; the first that fails ends the others."""
    from torch.multiprocessing.spawn import spawn

    spawn(rank, args=(ranks, network.free_port(), argv), nprocs=ranks)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
