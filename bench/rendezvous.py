"""How long ranks need to meet: ours beside torch's plain env:// and torchrun's static and c10d rendezvous.

    python bench/rendezvous.py --ranks 2,8,32,128,512 --repeat 3 --json

Light ranks: forked from one process that has imported torch, so that the time is the meeting's and not the import's.
Time is from the moment at which the last rank may go to that at which the last has its process group: gloo's up to
`--gloo` ranks; above, where one machine has not the sockets for a full mesh, a barrier in the group's store. The ways
take turns within one run, so that a busy machine is busy for all of them; `ratio` is to plain env://.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous as plain_rendezvous

from hpc_kit.runtime import rendezvous, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = timedelta(seconds=120)

Met = tuple[object, Store]
"""What must live on, and the store."""


def environ(rank: int, ranks: int, job: int, port: int) -> dict[str, str]:
    """A step on one node, with torch's variables for those that read them."""
    ids = ",".join(map(str, range(ranks)))
    step = {"NUM_TASKS": ranks, "NUM_NODES": 1, "NODELIST": "127.0.0.1", "TASKS_PER_NODE": ranks, "ID": 0}
    told = {f"SLURM_STEP_{name}": str(value) for name, value in step.items()}
    told |= {"SLURM_JOB_ID": str(job), "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0"}
    told |= {"SLURM_GTIDS": ids, "SLURMD_NODENAME": "127.0.0.1"}
    own = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return told | {f"TORCH_{name}": value for name, value in own.items()}


def ours(told: dict[str, str]) -> Met:
    """hpc_kit's meeting; its store serves the group."""
    met = rendezvous.meet(resolve(told), timeout=120, environ=told, occasion=0)
    return met, met.part("group")


def env(told: dict[str, str]) -> Met:
    """Plain env://: rank 0 opens the store, the others connect."""
    os.environ.update({name: told[f"TORCH_{name}"] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")})
    store, _, _ = next(plain_rendezvous("env://", timeout=TIMEOUT))
    return None, store


def elastic(backend: str) -> Callable[[dict[str, str]], Met]:
    """torchrun's rendezvous, one agent a rank, and the store that it hands to the workers."""

    def meet(told: dict[str, str]) -> Met:
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

        rank, ranks = int(told["TORCH_RANK"]), int(told["TORCH_WORLD_SIZE"])
        parameters = RendezvousParameters(
            backend=backend,
            endpoint=f"127.0.0.1:{told['TORCH_MASTER_PORT']}",
            run_id=told["SLURM_JOB_ID"],
            min_nodes=ranks,
            max_nodes=ranks,
            rank=rank,
            is_host=str(rank == 0).lower(),
            timeout=120,
        )
        handler = get_rendezvous_handler(parameters)
        return handler, handler.next_rendezvous().store

    return meet


WAYS = {"env": env, "hpc_kit": ours, "static": elastic("static"), "c10d": elastic("c10d")}


def one(way: str, rank: int, ranks: int, job: int, port: int, gloo: int, start: Barrier, ends: object) -> None:
    """A rank: wait for all, meet, make the group."""
    torch.set_num_threads(1)
    told = environ(rank, ranks, job, port)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    start.wait(300)
    began = time.monotonic()
    keep, store = WAYS[way](told)
    if ranks <= gloo:
        dist.init_process_group("gloo", store=PrefixStore(way, store), rank=rank, world_size=ranks, timeout=TIMEOUT)
    else:
        ready(store, way, ranks)
    done = time.monotonic()
    ends.put((began, done))  # type: ignore[attr-defined]
    start.wait(300)
    del keep  # not earlier: it may hold the server of the store
    os._exit(0)


def ready(store: Store, way: str, ranks: int) -> None:
    """What init_process_group does last in its store: all wait for all."""
    if store.add(f"{way}/count", 1) == ranks:
        store.set(f"{way}/all", "1")
    store.wait([f"{way}/all"], TIMEOUT)


def measured(way: str, ranks: int, gloo: int, attempt: int) -> float:
    """Seconds from the last rank's start to the last group."""
    fork = multiprocessing.get_context("fork")
    start, ends = fork.Barrier(ranks), fork.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = os.getpid() * 1000 + attempt
    arguments = [(way, rank, ranks, job, port, gloo, start, ends) for rank in range(ranks)]
    processes = [fork.Process(target=one, args=each) for each in arguments]
    for process in processes:
        process.start()
    times: list[tuple[float, float]] = [ends.get() for _ in processes]
    for process in processes:
        process.join()
    return max(end for _, end in times) - max(begin for begin, _ in times)


def main() -> None:
    """Run the ways in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,8,32,128,512", help="sizes, with commas")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--gloo", type=int, default=64, help="most ranks that make a gloo group")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ways = options.ways.split(",")
    results = []
    for ranks in map(int, options.ranks.split(",")):
        times: dict[str, list[float]] = {way: [] for way in ways}
        for attempt in range(options.repeat):
            for way in ways:
                times[way].append(measured(way, ranks, options.gloo, attempt))
        medians = {way: statistics.median(values) for way, values in times.items()}
        plain = medians.get("env")
        for way, median in medians.items():
            ratio = round(median / plain, 3) if plain else None
            results.append(
                {
                    "ranks": ranks,
                    "way": way,
                    "seconds": round(median, 4),
                    "best": round(min(times[way]), 4),
                    "ratio": ratio,
                }
            )
            if not options.json:
                sys.stdout.write(f"{ranks:>4} ranks  {way:<8} {median:8.3f} s  x {ratio}\n")
                sys.stdout.flush()
    if options.json:
        sys.stdout.write(json.dumps({"results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
