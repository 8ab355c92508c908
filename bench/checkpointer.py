"""Measure what a Checkpointer costs a training: agreements of the ranks on a stop, and saves.

    python bench/checkpointer.py [--ranks 8] [--steps 200] [--megabytes 200]

CPU is the processor time of the whole process, which other work on the machine hardly changes.

The ranks sleep for 100 ms in each step, so that many ranks fit on few cores. Printed: the time in `saver.step` as a
share of that step, on the slowest rank, with an agreement in every step and with agreements as the Checkpointer chooses
them; and how long a save of a model of this size stops a training, synchronously and asynchronously.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

import hpc_kit

STEP = 0.1


def measure_agreements(steps: int, agree_every: int | None) -> list[float]:
    """Return the mean and the largest seconds in `saver.step`, and CPU seconds in a step, of the slowest rank."""
    with hpc_kit.Checkpointer(None, agree_every=agree_every) as saver:
        saver.restore(model=nn.Linear(1, 1))
        seconds = []
        dist.barrier()
        used = time.process_time()
        for step in range(steps):
            time.sleep(STEP)
            begun = time.perf_counter()
            saver.step(step)
            seconds.append(time.perf_counter() - begun)
        used = (time.process_time() - used) / steps
    values = torch.tensor([statistics.fmean(seconds[5:]), max(seconds[5:]), used])
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return list(values.tolist())


def measure_save(folder: Path, megabytes: int, *, asynchronous: bool) -> tuple[float, float]:
    """Return the seconds for which a save stops the training, and those until it is on the disk."""
    model = nn.Linear(1024, megabytes * 256, bias=False)
    lines: list[str] = []
    saver = hpc_kit.Checkpointer(folder, every=1, asynchronous=asynchronous, report=lines.append)
    saver.restore(model=model)
    saver.save(0)  # the first save imports modules
    begun = time.perf_counter()
    saver.step(1)
    stopped = time.perf_counter() - begun
    saver.close()
    return stopped, time.perf_counter() - begun


def run_rank(options: argparse.Namespace) -> None:
    """Measure on one rank, and print on rank 0."""
    torch.set_num_threads(1)
    with hpc_kit.distributed(backend="gloo") as world:
        for name, agree_every in (("in every step", 1), ("as chosen", None)):
            mean, most, used = measure_agreements(options.steps, agree_every)
            if world.is_main:
                share = f"{mean / STEP:.2%} of a step of {STEP * 1000:.0f} ms (CPU {used / STEP:.2%})"
                print(
                    f"agreement {name}: {share} on {world.world_size} ranks, at most {most * 1000:.1f} ms", flush=True
                )
        with tempfile.TemporaryDirectory() as folder:
            for kind in (False, True):
                paths = [str(Path(folder, str(kind)))]
                dist.broadcast_object_list(paths)
                stopped, total = measure_save(Path(paths[0]), options.megabytes, asynchronous=kind)
                if world.is_main:
                    name = "asynchronous" if kind else "synchronous"
                    print(f"save {name}: stops for {stopped:.2f} s, on the disk after {total:.2f} s", flush=True)
            world.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=200, help="size of the model, which each rank copies")
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children = []
    for rank in range(options.ranks):
        if child := os.fork():
            children.append(child)
            continue
        size = str(options.ranks)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        run_rank(options)
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
