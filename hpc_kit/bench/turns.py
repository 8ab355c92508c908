"""Works timed in turns over all ranks, so that a machine whose speed drifts drifts for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from hpc_kit.runtime import Group

WARMUP = 1
"""Rounds that do not count."""

_T = TypeVar("_T")


def meeting(world: Group) -> Callable[[], None]:
    """A function in which every rank waits for all, with what its GPU still does; its own group is of gloo.

    A rank that only waits leaves the GPU alone so: another one may use it meanwhile.
    """
    import torch
    from torch import distributed as dist

    group = dist.new_group(backend="gloo")

    def meet() -> None:
        if world.device.type == "cuda":
            for device in range(torch.cuda.device_count()):
                torch.cuda.synchronize(device)
        dist.barrier(group)

    return meet


def once(work: Callable[[], None], meet: Callable[[], None]) -> float:
    """Seconds from when all ranks begin to when the last one is done."""
    meet()
    begun = time.perf_counter()
    work()
    meet()
    return time.perf_counter() - begun


def taken(works: Mapping[str, Callable[[], None]], meet: Callable[[], None], repeats: int) -> dict[str, list[float]]:
    """Seconds of each work and repeat."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(WARMUP + repeats):
        for name, work in works.items():
            taken_by_it = once(work, meet)
            if number >= WARMUP:
                seconds[name].append(taken_by_it)
    return seconds


def told(value: _T, world: Group) -> _T:
    """Rank 0's value, on every rank."""
    from torch import distributed as dist

    values = [value]
    dist.broadcast_object_list(values, src=0, device=world.device)
    return values[0]
