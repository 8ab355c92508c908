"""The training loop that all ways of splitting the model share; how they come to gradients is each program's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

import checkpoint
from clip import clip_gradients, is_spread
from data import Feed, Text, batch_numbers, cut, evaluation_numbers, rank_slice, window_count
from meter import Meter
from model import IGNORED, next_byte_loss
from options import Options, refuse
from ranks import gather, together
from report import Result, conclude, finite, say, spaced, step_line
from start import autocast
from stop import Stopped, heard

if TYPE_CHECKING:
    from hpc_kit.runtime import Group

Losses = Callable[[Tensor, Tensor], Tensor | None]
"""Inputs and targets in, their mean loss out; None on a rank that does not see it."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """One way of splitting the work over the ranks, as the loop sees it."""

    model: nn.Module
    """What this rank holds of it; the parameters have the names that they have in the whole model."""
    optimizer: Optimizer
    gradients: Losses
    """Leaves in the parameters the gradients of the mean loss over the global batch."""
    losses: Losses
    """Forward only."""
    share: tuple[int, int] = (0, 1)
    """This rank's part of each batch, and of how many: ranks with the same one see the same windows."""
    stages: int = 1
    """Into how many sets of layers the ranks divide."""
    replica: DistributedDataParallel | None = None
    """Around the model, where one is: it waits for gradients in C++, and the meter must ask it when."""
    facts: Mapping[str, str | float] = field(default_factory=dict)
    """What the summary should tell besides."""


@dataclass(frozen=True)
class Whole:
    """Forward and backward where every rank runs all layers, through whatever wraps the model."""

    forward: nn.Module
    options: Options
    device: torch.device
    on_last: Callable[[bool], AbstractContextManager[None]] = lambda last: nullcontext()  # noqa: ARG005
    """Wraps each pass; it is told whether the pass is the last one of the step, in which the gradients travel."""

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        total = torch.zeros((), device=self.device)
        passes = self.options.accumulate
        for number, part in enumerate(zip(inputs.chunk(passes), targets.chunk(passes), strict=True), 1):
            with self.on_last(number == passes):
                loss = self.losses(*part) / passes
                loss.backward()
            total += loss.detach()
        return total

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with autocast(self.options, self.device):
            return next_byte_loss(self.forward(inputs), targets)

    def split(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        share: tuple[int, int] = (0, 1),
        facts: Mapping[str, str | float] | None = None,
    ) -> Split:
        """These passes as the loop takes them."""
        return Split(
            model=model,
            optimizer=optimizer,
            gradients=self.gradients,
            losses=self.losses,
            share=share,
            replica=self.forward if isinstance(self.forward, DistributedDataParallel) else None,
            facts=facts or {},
        )


def adamw(model: nn.Module, options: Options, kind: Callable[..., Optimizer] = AdamW, **more: object) -> Optimizer:
    """Matrices decay; the scales of the norms do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    scales = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    return kind(groups, lr=options.lr, betas=(0.9, 0.95), fused=True, **more)


def learning_rate(options: Options, step: int) -> float:
    """Up in a straight line, then down in half a cosine."""
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    return options.lr * (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def evaluate(split: Split, text: Text, options: Options, world: Group) -> float:
    """Mean loss on held-back text.

    Sums and counts are added up, so ranks may hold unequally many windows, or none. All make the same number of equally
    large passes, because a model that is spread over the ranks needs all of them in each: what is missing is ignored.
    """
    windows = window_count(text.held_back, options.sequence)
    _, ranks = split.share
    size = options.global_batch // ranks
    numbers = evaluation_numbers(windows, options.eval_windows, *split.share)
    rounds = -(-min(options.eval_windows, windows) // (ranks * size))
    total = torch.zeros(2, dtype=torch.float64, device=world.device)
    for first in range(0, rounds * size, size):
        mine = numbers[first : first + size]
        batch = cut(text.held_back, options.sequence, torch.cat([mine, mine.new_zeros(size - len(mine))]))
        batch, targets = batch.to(world.device), batch[:, 1:].clone().to(world.device)
        targets[len(mine) :] = IGNORED
        loss = split.losses(batch[:, :-1], targets)
        if loss is not None and len(mine):
            total += torch.stack([loss.double() * len(mine), total.new_tensor(len(mine))])
    for module in split.model.modules():
        if reshard := getattr(module, "reshard", None):
            reshard()  # of fully_shard: what forward has gathered waits for a backward that does not come
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def train(options: Options, world: Group, text: Text, split: Split) -> Result:
    """From the first step, or the checkpoint's, to the last; rank 0 says how it goes."""
    refuse(options, text, split.share[1])
    first = together(lambda: checkpoint.begin(options, world))
    options = checkpoint.agreed(options, world)
    meter = Meter(world.device)
    with checkpoint.held(options, world), heard() as told:
        if path := options.resume:
            together(lambda: checkpoint.load(path, split.model, split.optimizer, first))
        with nullcontext() if options.unwatched else meter.watching(split.replica):
            result = steps_of(options, world, text, split, meter, first, told)
        save(options, world, split, options.steps)
    conclude(options, world, result, split.facts)
    return result


def steps_of(options: Options, world: Group, text: Text, split: Split, meter: Meter, first: int, told: Event) -> Result:
    windows = window_count(text.training, options.sequence)
    before = after = evaluate(split, text, options, world)
    say(world, f"start   ranks {world.world_size}, parameters {spaced(options.model.parameters)}, text {text}")
    held = {}

    def of_step(step: int) -> Tensor:
        numbers = batch_numbers(windows, options.global_batch, seed=options.seed, step=step)
        return cut(text.training, options.sequence, rank_slice(numbers, *split.share))

    feed = Feed(of_step, world.device)
    for step in range(first, options.steps):
        meter.begin()
        mine = feed.take(step)
        meter.data_arrived()
        loss = split.gradients(mine[:, :-1], mine[:, 1:])
        meter.gradients_arrived()
        feed.ahead(step + 1)
        norm = update(split, options, step, world.device)
        if step == first:
            held = held_bytes(split)
        split.optimizer.zero_grad()
        meter.end(loss)
        done = step + 1
        if done % options.log_every == 0 or done == options.steps:
            step_line(options, world, done, meter.collect())
        if done == options.steps:
            after = finite(evaluate(split, text, options, world), "validation loss after", done, options)
        elif options.eval_every and done % options.eval_every == 0:
            say(world, f"step {done}/{options.steps}   validation loss {evaluate(split, text, options, world):.2f}")
        if done == options.steps:
            break
        stopped = done % options.log_every == 0 and any(gather(told.is_set()))
        if stopped or (options.checkpoint_every and done % options.checkpoint_every == 0):
            # A loss tells a step later of parameters that are no numbers: then the old checkpoint is better.
            together(lambda: finite(norm.item(), "norm of the gradients in", done, options))  # noqa: B023 - called at once
            save(options, world, split, done)
        if stopped:
            raise Stopped.at(done, options.steps, options.checkpoint)
    return Result(before, after, meter.all, held)


def update(split: Split, options: Options, step: int, device: torch.device) -> Tensor:
    """Clip the gradients and let the optimizer take them; the norm that they had."""
    norm = clip_gradients(split.model.parameters(), options.clip, stages=split.stages, device=device)
    for group in split.optimizer.param_groups:
        group["lr"] = learning_rate(options, step)
    split.optimizer.step()
    return norm


def save(options: Options, world: Group, split: Split, step: int) -> None:
    together(lambda: checkpoint.write(options, world, split.model, split.optimizer, step))


def held_bytes(split: Split) -> dict[str, int]:
    """What this rank holds between the steps, or until the end of one: bytes by kind."""
    optimizer = checkpoint.inner(split.optimizer)
    parameters = list(split.model.parameters())
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "parameters": local_bytes(parameters),
        "gradients": local_bytes(parameter.grad for parameter in parameters if parameter.grad is not None),
        "optimizer": local_bytes(moments),
    }


def local_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the parts of tensors that lie on this rank."""
    parts = [tensor.to_local() if is_spread(tensor) else tensor for tensor in tensors]
    return sum(part.numel() * part.element_size() for part in parts)
