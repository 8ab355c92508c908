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
"""Rounds that do not count."""
ROUNDS, WARMUP_CALLS = 7, 2
_FEW_ROUNDS, _LONG_SECONDS = 3, 0.5
"""Slow calls are repeated less often."""
ROUND_SECONDS = 0.15
_MAX_CALLS = 200


def time_calls(
    todo: dict[Name, Callable[[], None]], *, seconds: float = ROUND_SECONDS, ranks: tuple[int, ...] = ()
) -> dict[Name, list[float]]:
    """Return the seconds of one call on the slowest rank, one value for each round.

    All ranks of the default group must call this function.

    Args:
        todo: What is to be timed; one call of each must keep all ranks in step.
        seconds: How long a round takes, where one call is shorter.
        ranks: Whose times count (default: all ranks').
    """
    counts = {name: _choose_counts(once, seconds) for name, once in todo.items()}
    most = max(rounds for _, rounds in counts.values())
    times: dict[Name, list[float]] = {name: [] for name in todo}
    for turn in range(most):
        for name, once in todo.items():
            calls, rounds = counts[name]
            if turn >= rounds:
                continue
            # Without a barrier, the late start of one rank would count as time of the others.
            dist.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                once()
            times[name].append((time.perf_counter() - start) / calls)
    counted = not ranks or dist.get_rank() in ranks
    for name, own in times.items():
        # Ranks that do not count contribute 0, which never is the maximum.
        slowest = torch.tensor(own, dtype=torch.float64) * counted
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times[name] = slowest.tolist()
    return times


def _choose_counts(once: Callable[[], None], seconds: float) -> tuple[int, int]:
    """Return calls in a round and the number of rounds, equal on all ranks, after `WARMUP_CALLS` calls."""
    once()
    start = time.perf_counter()
    once()
    slowest = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    each = max(slowest.item(), 1e-6)
    return min(_MAX_CALLS, max(1, int(seconds / each))), _FEW_ROUNDS if each > _LONG_SECONDS else ROUNDS


def barrier_function(world: Group) -> Callable[[], None]:
    """Return a function that waits for the GPU and then for all ranks, in a gloo group of its own.

    A waiting rank does not use its GPU, so another rank may use it meanwhile.
    """
    group = dist.new_group(backend="gloo")

    def meet() -> None:
        if world.device.type == "cuda":
            for device in range(torch.cuda.device_count()):
                torch.cuda.synchronize(device)
        dist.barrier(group)

    return meet


def time_once(work: Callable[[], None], meet: Callable[[], None]) -> float:
    """Return the seconds between the common start of all ranks and the end of the last one."""
    meet()
    begun = time.perf_counter()
    work()
    meet()
    return time.perf_counter() - begun


def time_interleaved(
    works: Mapping[str, Callable[[], None]], meet: Callable[[], None], repeats: int
) -> dict[str, list[float]]:
    """Return the seconds of each work and repeat."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(WARMUP_ROUNDS + repeats):
        for name, work in works.items():
            taken_by_it = time_once(work, meet)
            if number >= WARMUP_ROUNDS:
                seconds[name].append(taken_by_it)
    return seconds


def broadcast_value(value: Value, world: Group) -> Value:
    """Return rank 0's value on every rank."""
    values = [value]
    dist.broadcast_object_list(values, src=0, device=world.device)
    return values[0]
