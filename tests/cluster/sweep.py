"""A user's program on the login host: submits functions with an Executor, and prints the results as JSON.

    python sweep.py FOLDER

The program submits everything before its first wait.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from submitit.helpers import Checkpointable

import hpc_kit
from hpc_kit.spec.job import Job
from hpc_kit.spec.resources import Resources

MAPPED = 25
"""More elements than MaxArraySize of the cluster, which is 20."""


def describe_rank(greeting: str) -> tuple[str, int, str]:
    return greeting, int(os.environ["SLURM_PROCID"]), socket.gethostname()


def square(number: int) -> int:
    return number * number


def fail_on_rank(bad: int) -> int:
    """Raise on one rank, for which all other ranks would wait for an hour."""
    if int(os.environ["SLURM_PROCID"]) == bad:
        raise ValueError(f"bad sample on rank {bad}")
    time.sleep(3600)
    return 0


ELEMENTS = 4_000_000
"""Number of floats that the ranks add: 16 MB."""


def summed() -> tuple[float, str, dict[str, int]]:
    """Return the sum over all ranks, their master address, and the bytes that each network device has sent."""
    import torch
    from torch import distributed as dist

    with hpc_kit.distributed() as world:
        total = torch.full((ELEMENTS,), float(world.rank))
        before = bytes_sent()
        dist.all_reduce(total)
        dist.barrier()
        after = bytes_sent()
        return total.mean().item(), str(world.master_addr), {name: after[name] - before[name] for name in after}


def bytes_sent() -> dict[str, int]:
    """Return the sent bytes of each network device of this host."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return {name.strip(): int(fields.split()[8]) for name, fields in (line.split(":") for line in lines)}


class Counter(Checkpointable):
    """Sleeps until its checkpoint. The second attempt continues from it."""

    def __init__(self) -> None:
        self.attempts = 0

    def __call__(self) -> tuple[int, str]:
        self.attempts += 1
        if self.attempts == 1:
            time.sleep(3600)
        return self.attempts, os.environ.get("SLURM_RESTART_COUNT", "0")


def call_or_error(ask: Callable[[], Any]) -> Any:
    """Return the result of a call, or the exception that it raises."""
    try:
        return ask()
    except hpc_kit.errors.HpcKitError as error:
        return {"type": type(error).__name__, "what": error.what, "found": error.found}


def wait_until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.5)


def has_begun(job: Any) -> bool:
    """Return whether submitit has installed its signal handlers and calls the function."""
    return "Starting with JobEnvironment" in (job.paths.stdout.read_text() + job.paths.stderr.read_text())


def executor(folder: Path, name: str, **resources: object) -> hpc_kit.Executor:
    job = Job(name=name, command=("true",), resources=Resources(time="00:10:00"))
    found = hpc_kit.Executor(job=job, folder=folder / name)
    found.update_parameters(name=name, **resources)
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    counter: Any = executor(folder, "counter").submit(Counter())
    ranks = executor(folder, "ranks", nodes=2, tasks_per_node=2).submit(describe_rank, "hello")
    failing = executor(folder, "failing", nodes=2, tasks_per_node=2).submit(fail_on_rank, 2)
    torch = executor(folder, "torch", nodes=4).submit(summed)
    cancelled = executor(folder, "cancelled").submit(time.sleep, 3600)
    waiting = executor(folder, "waiting", begin="now+1hour").submit(square, 3)
    mapping = executor(folder, "mapping", array_parallelism=8)
    mapped = mapping.map_array(square, range(MAPPED))
    batching = executor(folder, "batching")
    with batching.batch():
        batch = [batching.submit(describe_rank, "one"), batching.submit(square, 7)]

    waiting.cancel()
    wait_until(lambda: cancelled.state == "RUNNING" and counter.state == "RUNNING", "nothing runs")
    cancelled.cancel()
    wait_until(lambda: has_begun(counter), "the counter has not begun")
    counter._interrupt()

    first = mapped[0].job_id.partition("_")[0]
    found = {
        "ranks": ranks.results(),
        "failing": {**call_or_error(failing.results), "job_id": failing.job_id, "state": failing.state},
        "torch": torch.results(),
        "cancelled": {**call_or_error(cancelled.results), "state": cancelled.state},
        "waiting": {**call_or_error(waiting.results), "state": waiting.state},
        "mapped": [job.result() for job in mapped],
        "ids": [job.job_id for job in mapped],
        "table": [json.loads(line) for line in (folder / "mapping" / f"{first}_table.jsonl").read_text().splitlines()],
        "batch": [job.result() for job in batch],
        "batch ids": [job.job_id for job in batch],
        "counter": counter.results(),
        "counter stdout": counter.stdout(),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
