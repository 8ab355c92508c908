"""Measures how long ranks need to meet: with hpc_kit, plain env://, and torchrun's static and c10d rendezvous.

    python bench/rendezvous.py --ranks 2,8,32,128,512 --spread 1 --repeat 5 --json

The ranks are forked from one process that has imported torch, so the time of the import does not count. Each rank
arrives at a random moment within `--spread` seconds, which is the same for all methods; with 0 all arrive together. The
time is measured from the arrival of the last rank until the last rank has its process group. Up to `--gloo` ranks this
is a group of gloo. Above, where gloo's mesh of sockets takes minutes, it is a barrier in the group's store. The methods
alternate within one run, so a busy machine slows down all of them. `ratio` compares the means with the mean of env://,
because env:// has two typical times: ranks that come before the store are turned away and pause.
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
"""An object that must stay alive while the store is used, and the store."""


def environ(rank: int, ranks: int, job: int, port: int) -> dict[str, str]:
    """Return the variables of a step on one node, with torch's own under names that begin with TORCH_."""
    ids = ",".join(map(str, range(ranks)))
    step = {"NUM_TASKS": ranks, "NUM_NODES": 1, "NODELIST": "127.0.0.1", "TASKS_PER_NODE": ranks, "ID": 0}
    variables = {f"SLURM_STEP_{name}": str(value) for name, value in step.items()}
    variables |= {"SLURM_JOB_ID": str(job), "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0"}
    variables |= {"SLURM_GTIDS": ids, "SLURMD_NODENAME": "127.0.0.1"}
    of_torch = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return variables | {f"TORCH_{name}": value for name, value in of_torch.items()}


def ours(variables: dict[str, str]) -> Met:
    """Meet through hpc_kit. The store of the meeting serves the group."""
    met = meeting.meet(resolve(variables), timeout=120, environ=variables, meeting_number=0)
    return met, met.substore("group")


def env(variables: dict[str, str]) -> Met:
    """Meet through plain env://: rank 0 opens the store, and all ranks connect."""
    os.environ.update(
        {name: variables[f"TORCH_{name}"] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    )
    store, _, _ = next(plain_rendezvous("env://", timeout=TIMEOUT))
    return None, store


def elastic(backend: str) -> Callable[[dict[str, str]], Met]:
    """Return a method that meets through torchrun's rendezvous, with one agent for each rank."""

    def meet(variables: dict[str, str]) -> Met:
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

        rank, ranks = int(variables["TORCH_RANK"]), int(variables["TORCH_WORLD_SIZE"])
        parameters = RendezvousParameters(
            backend=backend,
            endpoint=f"127.0.0.1:{variables['TORCH_MASTER_PORT']}",
            run_id=variables["SLURM_JOB_ID"],
            min_nodes=ranks,
            max_nodes=ranks,
            rank=rank,
            is_host=str(rank == 0).lower(),
            timeout=120,
        )
        handler = get_rendezvous_handler(parameters)
        return handler, handler.next_rendezvous().store

    return meet


METHODS = {"env": env, "hpc_kit": ours, "static": elastic("static"), "c10d": elastic("c10d")}


def run_rank(
    method: str, rank: int, ranks: int, job: int, port: int, gloo: int, late: float, start: Barrier, ends: object
) -> None:
    """Run one rank: wait for the start, arrive `late` seconds after it, meet, and create the group."""
    torch.set_num_threads(1)
    variables = environ(rank, ranks, job, port)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    start.wait(300)
    time.sleep(late)
    began = time.monotonic()
    meeting_alive, store = METHODS[method](variables)
    if ranks <= gloo:
        dist.init_process_group("gloo", store=PrefixStore(method, store), rank=rank, world_size=ranks, timeout=TIMEOUT)
    else:
        wait_for_all(store, method, ranks)
    done = time.monotonic()
    ends.put((began, done))  # type: ignore[attr-defined]
    start.wait(600)
    del meeting_alive  # it may contain the server of the store
    os._exit(0)


def wait_for_all(store: Store, method: str, ranks: int) -> None:
    """Wait for all ranks in a store, as init_process_group does at its end."""
    if store.add(f"{method}/count", 1) == ranks:
        store.set(f"{method}/all", "1")
    store.wait([f"{method}/all"], TIMEOUT)


def measure(method: str, ranks: int, gloo: int, spread: float, attempt: int) -> float:
    """Return the seconds from the arrival of the last rank until the last rank has its group."""
    chance = random.Random(attempt)  # noqa: S311 (no secret)
    fork = multiprocessing.get_context("fork")
    start, ends = fork.Barrier(ranks), fork.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = os.getpid() * 1000 + attempt
    arguments = [
        (method, rank, ranks, job, port, gloo, chance.uniform(0, spread), start, ends) for rank in range(ranks)
    ]
    processes = [fork.Process(target=run_rank, args=each) for each in arguments]
    for process in processes:
        process.start()
    times: list[tuple[float, float]] = [ends.get() for _ in processes]
    for process in processes:
        process.join()
    return max(end for _, end in times) - max(begin for begin, _ in times)


def summary(method: str, ranks: int, values: list[float], plain: float | None) -> dict[str, object]:
    """Return the result of one method: seconds, and the ratio of its mean to the mean of plain env://."""
    mean = statistics.mean(values)
    seconds = {"mean": mean, "median": statistics.median(values), "least": min(values), "most": max(values)}
    rounded = {name: round(value, 4) for name, value in seconds.items()}
    return {"ranks": ranks, "way": method, **rounded, "ratio": round(mean / plain, 3) if plain else None}


def main() -> None:
    """Run the methods alternately and print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,8,32,128,512", help="sizes, with commas")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--gloo", type=int, default=64, help="most ranks that make a gloo group")
    parser.add_argument("--spread", type=float, default=0.0, help="seconds within which the ranks come")
    parser.add_argument("--ways", default=",".join(METHODS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    methods = options.ways.split(",")
    results = []
    for ranks in map(int, options.ranks.split(",")):
        times: dict[str, list[float]] = {method: [] for method in methods}
        for attempt in range(options.repeat):
            for method in methods:
                times[method].append(measure(method, ranks, options.gloo, options.spread, attempt))
        plain = statistics.mean(times["env"]) if "env" in times else None
        for method, values in times.items():
            results.append(summary(method, ranks, values, plain))
            if not options.json:
                sys.stdout.write("{ranks:>4} ranks  {way:<8} {mean:8.3f} s  x {ratio}\n".format_map(results[-1]))
                sys.stdout.flush()
    if options.json:
        sys.stdout.write(json.dumps({"results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
