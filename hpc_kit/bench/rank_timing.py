"""Things that all ranks do together, timed in turns, so that they meet the same noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import distributed as dist

Name = TypeVar("Name", bound=Hashable)

ROUNDS, WARMUP = 7, 2
_FEW_ROUNDS, _LONG_SECONDS = 3, 0.5
"""Of what takes long, a few repeats must do."""
ROUND_SECONDS = 0.15
_MOST_CALLS = 200


def timed(
    todo: dict[Name, Callable[[], None]], *, seconds: float = ROUND_SECONDS, ranks: tuple[int, ...] = ()
) -> dict[Name, list[float]]:
    """Seconds of one call of each, of the slowest rank, an entry a round; all ranks of the default group must call.

    Args:
        todo: What is to be timed; one call of each must keep all ranks in step.
        seconds: How long a round takes, where one call is shorter.
        ranks: Whose times count (default: all ranks').
    """
    counts = {name: _count(once, seconds) for name, once in todo.items()}
    most = max(rounds for _, rounds in counts.values())
    times: dict[Name, list[float]] = {name: [] for name in todo}
    for turn in range(most):
        for name, once in todo.items():
            calls, rounds = counts[name]
            if turn >= rounds:
                continue
            dist.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                once()
            times[name].append((time.perf_counter() - start) / calls)
    counted = not ranks or dist.get_rank() in ranks
    for name, own in times.items():
        slowest = torch.tensor(own, dtype=torch.float64) * counted
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times[name] = slowest.tolist()
    return times


def _count(once: Callable[[], None], seconds: float) -> tuple[int, int]:
    """How many calls make a round, and how many rounds, the same on all ranks; does `WARMUP` calls."""
    once()
    start = time.perf_counter()
    once()
    slowest = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    each = max(slowest.item(), 1e-6)
    return min(_MOST_CALLS, max(1, int(seconds / each))), _FEW_ROUNDS if each > _LONG_SECONDS else ROUNDS
