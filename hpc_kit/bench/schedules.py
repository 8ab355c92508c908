"""Schedules of torch.distributed.pipelining against the idle time that their drawings promise.

The model is a stack of layers that all cost the same, so no stage waits for a costlier one, and a micro-batch has the
same size however many there are. What a schedule is held against is the same work without a pipeline, done by all ranks
at the same time, each for itself: cores that share caches, memory and power are as slow there as in the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, ScheduleZBVZeroBubble, get_schedule_class
from torch.nn import functional as F  # noqa: N812  torch's own habit

from hpc_kit.errors import SpecError
from hpc_kit.spec.job import idle_share

if TYPE_CHECKING:
    from hpc_kit.runtime import Group

STAGES_PER_RANK = 2
"""Of a schedule that gives a rank several."""
_LAYERS_PER_STAGE = 3
WIDTH, ROWS = 512, 96
"""Of the layers, and of a micro-batch."""


def ideal(micro_batches: int, ranks: int, stages_per_rank: int = 1) -> float:
    """The busy share v m / (v m + p - 1), where all stages take equally long and messages no time."""
    return 1 - idle_share(ranks, micro_batches, stages_per_rank)


def stages_per_rank(name: str) -> int:
    """How many stages the schedule gives a rank.

    Raises:
        SpecError: This torch has no such schedule.
    """
    return STAGES_PER_RANK if issubclass(_kind(name), PipelineScheduleMulti) else 1


def alone(world: Group, micro_batches: int) -> Callable[[], None]:
    """The whole stack, forward and backward, micro-batch by micro-batch, on this rank for itself."""
    stack = _layers(_LAYERS_PER_STAGE * STAGES_PER_RANK * world.world_size).to(world.device)
    inputs, targets = _data(world, micro_batches)

    def work() -> None:
        for part, wanted in zip(inputs.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
            _loss(stack(part), wanted).backward()
        stack.zero_grad()

    return work


def pipelined(world: Group, name: str, micro_batches: int) -> Callable[[], None]:
    """The same in stages over all ranks.

    Raises:
        SpecError: The schedule cannot be laid out over these ranks and micro-batches.
    """
    kind, each = _kind(name), stages_per_rank(name)
    numbers = _stages_of(kind, world.rank, world.world_size, each)
    total = each * world.world_size
    parts = nn.ModuleList(_layers(_LAYERS_PER_STAGE * STAGES_PER_RANK // each) for _ in numbers).to(world.device)
    stages = [PipelineStage(part, number, total, world.device) for part, number in zip(parts, numbers, strict=True)]
    try:
        schedule = kind(stages if each > 1 else stages[0], micro_batches, loss_fn=_loss, scale_grads=False)
    except ValueError as error:
        raise SpecError(
            f"{name} cannot be laid out",
            found=f"{world.world_size} ranks, {micro_batches} micro-batches: {error}",
            remedy=f"--micro-batches {2 * total}, or other --schedules",
        ) from error
    inputs, targets = _data(world, micro_batches)
    first, last = 0 in numbers, total - 1 in numbers

    def work() -> None:
        losses: list[Tensor] = []
        given = {"target": targets, "losses": losses} if last else {}
        schedule.step(*([inputs] if first else []), **given)
        parts.zero_grad()

    return work


def _kind(name: str) -> Any:
    try:
        return get_schedule_class(name)
    except ValueError as error:
        raise SpecError(
            f"torch has no schedule {name!r} here", found=f"torch {torch.__version__}: {error}", remedy="GPipe,1F1B"
        ) from error


def _stages_of(kind: type, rank: int, ranks: int, each: int) -> list[int]:
    """In turn; in a V the second stages come back from the last rank to the first."""
    if kind is ScheduleZBVZeroBubble:
        return [rank, 2 * ranks - 1 - rank]
    return [rank + ranks * turn for turn in range(each)]


def _layers(number: int) -> nn.Sequential:
    layer = partial(nn.Linear, WIDTH, WIDTH)
    return nn.Sequential(*(module for _ in range(number) for module in (layer(), nn.GELU())))


def _data(world: Group, micro_batches: int) -> tuple[Tensor, Tensor]:
    shape = (micro_batches * ROWS, WIDTH)
    return torch.randn(shape, device=world.device), torch.randn(shape, device=world.device)


def _loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(scores, targets)
