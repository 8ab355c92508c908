"""Times work over all ranks, interleaved, so that a drift of the machine's speed affects all work alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import distributed as dist

if TYPE_CHECKING:
    from hpc_kit.runtime import Group


Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")

WARMUP_ROUNDS = 1
"""Rounds of `time_interleaved` that do not count."""
WARMUP_CALLS = 2
"""Calls before the rounds of `time_calls`: the first may connect the ranks, the second gives the time of one call."""
ROUNDS = 7
_FEW_ROUNDS, _LONG_SECONDS = 3, 0.5
"""Number of rounds if one call takes longer than these seconds."""
ROUND_SECONDS = 0.15
_MAX_CALLS = 200
"""Maximum number of calls in a round."""


def time_calls(
    calls: dict[Name, Callable[[], None]], *, seconds: float = ROUND_SECONDS, ranks: tuple[int, ...] = ()
) -> dict[Name, list[float]]:
    """Return the seconds of one call on the slowest rank, one value for each round.

    All ranks of the default group must call this function.

    Args:
        calls: Functions to time; every rank must call the same ones, because they communicate.
        seconds: Duration of a round of calls that are shorter.
        ranks: Ranks whose times count; default: all.
    """
    counts = {name: _choose_counts(call, seconds) for name, call in calls.items()}
    times: dict[Name, list[float]] = {name: [] for name in calls}
    for number in range(max(rounds for _, rounds in counts.values())):
        for name, call in calls.items():
            call_count, rounds = counts[name]
            if number >= rounds:
                continue
            # Without a barrier, the late start of one rank would count as time of the others.
            dist.barrier()
            start = time.perf_counter()
            for _ in range(call_count):
                call()
            times[name].append((time.perf_counter() - start) / call_count)
    counted = not ranks or dist.get_rank() in ranks
    for name, own in times.items():
        # Ranks that do not count contribute 0, which never is the maximum.
        slowest = torch.tensor(own, dtype=torch.float64) * counted
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times[name] = slowest.tolist()
    return times


def _choose_counts(call: Callable[[], None], seconds: float) -> tuple[int, int]:
    """Return calls in a round and the number of rounds, equal on all ranks, after `WARMUP_CALLS` calls."""
    call()
    start = time.perf_counter()
    call()
    slowest = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    # Ranks with different numbers of calls would wait for each other forever.
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    each = max(slowest.item(), 1e-6)
    return min(_MAX_CALLS, max(1, int(seconds / each))), _FEW_ROUNDS if each > _LONG_SECONDS else ROUNDS


def barrier_function(world: Group) -> Callable[[], None]:
    """Return a function that waits for the GPU and then for all ranks, in a gloo group of its own.

    A barrier of NCCL would occupy the GPU of a waiting rank, which another rank may use.
    """
    group = dist.new_group(backend="gloo")

    def barrier() -> None:
        if world.device.type == "cuda":
            for device in range(torch.cuda.device_count()):
                torch.cuda.synchronize(device)
        dist.barrier(group)

    return barrier


def time_once(work: Callable[[], None], barrier: Callable[[], None]) -> float:
    """Return the seconds between the common start of all ranks and the end of the last one."""
    barrier()
    start = time.perf_counter()
    work()
    barrier()
    return time.perf_counter() - start


def time_interleaved(
    works: Mapping[str, Callable[[], None]], barrier: Callable[[], None], repeats: int
) -> dict[str, list[float]]:
    """Return the seconds of each work and repeat."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(WARMUP_ROUNDS + repeats):
        for name, work in works.items():
            seconds = time_once(work, barrier)
            if number >= WARMUP_ROUNDS:
                times[name].append(seconds)
    return times


def broadcast_value(value: Value, world: Group) -> Value:
    """Return rank 0's value on every rank."""
    values = [value]
    dist.broadcast_object_list(values, src=0, device=world.device)
    return values[0]
