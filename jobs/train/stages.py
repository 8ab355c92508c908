"""Stages of a pipeline: which layers each has, on which rank it lies, and in which order the micro-batches pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._functorch import config as functorch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, ScheduleZBVZeroBubble, get_schedule_class
from torch.nn import functional as F  # noqa: N812  torch's own habit

from hpc_kit.errors import SpecError
from model import GPT, IGNORED, Config
from options import Options, count, one_of, option
from start import autocast, gpt

SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
"""torch's names. The last three give a rank several stages; a zero bubble puts gradients of weights into the gaps."""


@dataclass(frozen=True, kw_only=True)
class PipelineOptions(Options):
    """Options of a program with stages."""

    pp: int | None = option(None, count, "ranks in a row, each with a part of the layers; not given: all of them")
    micro_batches: int = option(4, count, "parts of a rank's windows that follow one another through the stages")
    schedule: str = option("1F1B", one_of(*SCHEDULES), f"their order: {', '.join(SCHEDULES)}")
    stages_per_rank: int = option(2, count, "of a schedule that takes several")
    balance: str = option(
        "parameters", one_of("parameters", "time"), "in what the stages are alike: parameters or time"
    )

    @property
    def passes(self) -> int:
        return self.micro_batches


class Stages(nn.ModuleList):
    """The stages of one rank; their parameters are called as in the whole model."""

    def named_parameters(self, *arguments: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
        for stage in self:
            yield from stage.named_parameters(*arguments, **named)


class Pipeline:
    """This rank's stages, and the order in which the micro-batches pass them."""

    def __init__(
        self,
        options: PipelineOptions,
        mesh: DeviceMesh,
        device: torch.device,
        spread: Callable[[GPT], None] | None = None,
    ) -> None:
        kind: Any = get_schedule_class(options.schedule)
        several = issubclass(kind, PipelineScheduleMulti)
        numbers = stages_of_rank(kind, mesh.get_local_rank(), mesh.size(), options.stages_per_rank if several else 1)
        total = len(numbers) * mesh.size()
        refuse_stages(options, mesh.size(), total)
        self.options, self.device, self.scale = options, device, 1.0
        if options.compile and "ZeroBubble" in options.schedule:
            # Backward goes twice through what forward has kept: for what came in, then for the weights.
            functorch.donated_buffer = False
        self.parts = cut_evenly(costs(options, device), total)
        self.first, self.last = 0 in numbers, total - 1 in numbers
        self.model = Stages()
        for number in numbers:
            stage = gpt(options, device, self.parts[number])
            if spread:
                spread(stage)
            self.model.append(stage)
        made = [
            PipelineStage(stage, number, total, device, group=mesh.get_group())
            for stage, number in zip(self.model, numbers, strict=True)
        ]
        try:
            self.schedule = kind(
                made if several else made[0], options.micro_batches, loss_fn=self.loss, scale_grads=False
            )
        except ValueError as error:
            raise SpecError(
                f"{options.schedule} cannot be laid out",
                found=f"{mesh.size()} ranks, {total} stages, --micro-batches {options.micro_batches}: {error}",
                remedy=f"--micro-batches {2 * total}, or another --schedule",
            ) from error

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        # All of them are real: to look for it would stop the host until the GPU is through.
        return self.run(self.schedule.step, inputs, targets, targets.numel())

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        real = int((targets != IGNORED).sum())
        if not isinstance(self.schedule, ScheduleZBVZeroBubble):
            return self.run(self.schedule.eval, inputs, targets, real)
        # torch 2.13 cannot run a V forward only ("can't steal_bwd_input"): it runs whole, its gradients are dropped.
        with torch.enable_grad():
            loss = self.run(self.schedule.step, inputs, targets, real)
        self.model.zero_grad()
        return loss

    def run(self, order: Callable[..., object], inputs: Tensor, targets: Tensor, real: int) -> Tensor | None:
        """All micro-batches through this rank's stages: the first takes the bytes, the last gives the losses.

        `real` targets count, the others are ignored.
        """
        losses: list[Tensor] = []
        self.scale = 1 / max(1, real)
        given = {"target": targets, "losses": losses} if self.last else {}
        with autocast(self.options, self.device):
            order(*([inputs] if self.first else []), **given)
        return torch.stack(losses).sum().detach() if self.last else None

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A micro-batch's part of the mean over all of them."""
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum") * self.scale

    def __str__(self) -> str:
        layers = " | ".join(f"{part.start}-{part.stop - 1}" for part in self.parts)
        each, m = len(self.model), self.options.micro_batches
        idle = idle_share(len(self.parts) // each, m, each)
        return f"{self.options.schedule}, layers {layers}; {m} micro-batches, idle {idle:.0%}"


def idle_share(ranks: int, micro_batches: int, stages_per_rank: int = 1) -> float:
    """(p - 1) / (v m + p - 1): what GPipe, 1F1B and Interleaved1F1B leave idle when all stages take equally long."""
    return (ranks - 1) / (stages_per_rank * micro_batches + ranks - 1)


def stages_of_rank(kind: type, rank: int, ranks: int, each: int) -> list[int]:
    """In turn; in a V the second stages come back from the last rank to the first, which then has both ends."""
    if kind is ScheduleZBVZeroBubble:
        return [rank, 2 * ranks - 1 - rank]
    return [rank + ranks * turn for turn in range(each)]


def refuse_stages(options: PipelineOptions, ranks: int, stages: int) -> None:
    """What no schedule can mend.

    Raises:
        SpecError: fewer layers than stages, or fewer micro-batches than ranks.
    """
    if options.layers < stages:
        raise SpecError(
            "there are fewer layers than stages",
            found=f"--layers {options.layers}; {ranks} ranks x {stages // ranks} = {stages} stages",
            remedy=f"--layers {stages}, or a smaller pp",
        )
    if options.micro_batches < ranks:
        raise SpecError(
            "there are fewer micro-batches than stages in a row",
            found=f"--micro-batches {options.micro_batches}, pp {ranks}:"
            f" {idle_share(ranks, options.micro_batches):.0%} of the time idle",
            remedy=f"--micro-batches {4 * ranks}: {idle_share(ranks, 4 * ranks):.0%}",
        )
    if options.accumulate > 1:
        raise SpecError(
            "a pipeline accumulates over its micro-batches",
            found=f"--accumulate {options.accumulate}, --micro-batches {options.micro_batches}",
            remedy=f"--micro-batches {options.accumulate * options.micro_batches} alone",
        )


def cut_evenly(costs: Sequence[float], parts: int) -> list[range]:
    """Neighbouring layers together, so that the costliest part costs as little as can be; no part is empty.

    >>> cut_evenly([3, 1, 1, 1, 2], 3)
    [range(0, 1), range(1, 3), range(3, 5)]
    """
    layers = len(costs)
    # best[k][n]: the costliest of k parts of the first n layers, and where the last part begins.
    best = [[(sum(costs[:end]), 0) for end in range(layers + 1)]]
    for number in range(2, parts + 1):
        row = [(float("inf"), 0)] * (layers + 1)
        for end in range(number, layers + 1):
            row[end] = min((max(best[-1][start][0], sum(costs[start:end])), start) for start in range(number - 1, end))
        best.append(row)
    ranges, end = list[range](), layers
    for row in reversed(best):
        ranges.append(range(row[end][1], end))
        end = row[end][1]
    return ranges[::-1]


def costs(options: PipelineOptions, device: torch.device) -> list[float]:
    """What each layer costs, the first with the embeddings, the last with the head: parameters, or rank 0's seconds."""
    config, found = options.model, list[float]()
    for number in range(config.layers):
        if 1 < number < config.layers - 1:
            found.append(found[1])  # as the one before it
            continue
        layer = GPT(config, range(number, number + 1)).to(device)
        by_number = options.balance == "parameters"
        found.append(
            sum(each.numel() for each in layer.parameters()) if by_number else seconds_of(layer, config, device)
        )
    dist.broadcast_object_list(found, src=0)
    return found


def seconds_of(layer: GPT, config: Config, device: torch.device) -> float:
    """Forward and backward of a few windows, the best of three."""
    shape, best = (4, config.sequence), float("inf")
    tokens, stream = (
        torch.zeros(shape, dtype=torch.long, device=device),
        torch.randn(*shape, config.width, device=device),
    )
    for _ in range(3):
        begun = time.perf_counter()
        layer(tokens if layer.embed is not None else stream).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return best
