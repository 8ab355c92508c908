"""How long ranks need to meet: ours beside torch's plain env:// and torchrun's static and c10d rendezvous.

    python bench/rendezvous.py --ranks 2,8,32,128,512 --spread 1 --repeat 5 --json

Light ranks: forked from one process that has imported torch, so that the time is the meeting's and not the import's.
They come within `--spread` seconds, each at a moment of its own that is the same for all ways; 0: all at once. Time is
from the moment at which the last comes to that at which the last has its process group: gloo's up to `--gloo` ranks;
above, where its mesh of sockets takes minutes, a barrier in the group's store. The ways take turns within one run, so
that a busy machine is busy for all of them. `ratio` is that of the means to plain env://'s: its times are of two kinds
(it is turned away, and pauses, or it is not), and which of them is the median is chance.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
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

from hpc_kit.runtime import resolve
from hpc_kit.runtime.rendezvous import meeting

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = timedelta(seconds=300)

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
    met = meeting.meet(resolve(told), timeout=120, environ=told, occasion=0)
    return met, met.substore("group")


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


def one(
    way: str, rank: int, ranks: int, job: int, port: int, gloo: int, late: float, start: Barrier, ends: object
) -> None:
    """A rank: wait for all, come `late` seconds after, meet, make the group."""
    torch.set_num_threads(1)
    told = environ(rank, ranks, job, port)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    start.wait(300)
    time.sleep(late)
    began = time.monotonic()
    keep, store = WAYS[way](told)
    if ranks <= gloo:
        dist.init_process_group("gloo", store=PrefixStore(way, store), rank=rank, world_size=ranks, timeout=TIMEOUT)
    else:
        ready(store, way, ranks)
    done = time.monotonic()
    ends.put((began, done))  # type: ignore[attr-defined]
    start.wait(600)
    del keep  # not earlier: it may hold the server of the store
    os._exit(0)


def ready(store: Store, way: str, ranks: int) -> None:
    """What init_process_group does last in its store: all wait for all."""
    if store.add(f"{way}/count", 1) == ranks:
        store.set(f"{way}/all", "1")
    store.wait([f"{way}/all"], TIMEOUT)


def measured(way: str, ranks: int, gloo: int, spread: float, attempt: int) -> float:
    """Seconds from the last rank's coming to the last group."""
    chance = random.Random(attempt)  # noqa: S311 (no secret)
    fork = multiprocessing.get_context("fork")
    start, ends = fork.Barrier(ranks), fork.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = os.getpid() * 1000 + attempt
    arguments = [(way, rank, ranks, job, port, gloo, chance.uniform(0, spread), start, ends) for rank in range(ranks)]
    processes = [fork.Process(target=one, args=each) for each in arguments]
    for process in processes:
        process.start()
    times: list[tuple[float, float]] = [ends.get() for _ in processes]
    for process in processes:
        process.join()
    return max(end for _, end in times) - max(begin for begin, _ in times)


def summary(way: str, ranks: int, values: list[float], plain: float | None) -> dict[str, object]:
    """What is printed of one way: seconds, and the ratio of its mean to that of plain env://."""
    mean = statistics.mean(values)
    seconds = {"mean": mean, "median": statistics.median(values), "least": min(values), "most": max(values)}
    rounded = {name: round(value, 4) for name, value in seconds.items()}
    return {"ranks": ranks, "way": way, **rounded, "ratio": round(mean / plain, 3) if plain else None}


def main() -> None:
    """Run the ways in turn and print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,8,32,128,512", help="sizes, with commas")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--gloo", type=int, default=64, help="most ranks that make a gloo group")
    parser.add_argument("--spread", type=float, default=0.0, help="seconds within which the ranks come")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ways = options.ways.split(",")
    results = []
    for ranks in map(int, options.ranks.split(",")):
        times: dict[str, list[float]] = {way: [] for way in ways}
        for attempt in range(options.repeat):
            for way in ways:
                times[way].append(measured(way, ranks, options.gloo, options.spread, attempt))
        plain = statistics.mean(times["env"]) if "env" in times else None
        for way, values in times.items():
            results.append(summary(way, ranks, values, plain))
            if not options.json:
                sys.stdout.write("{ranks:>4} ranks  {way:<8} {mean:8.3f} s  x {ratio}\n".format_map(results[-1]))
                sys.stdout.flush()
    if options.json:
        sys.stdout.write(json.dumps({"results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
