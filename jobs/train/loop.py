"""The training loop that all ways of splitting the model share; how they come to gradients is each program's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import AdamW, Optimizer

from data import Text, batch_numbers, cut, evaluation_numbers, rank_slice, window_count
from meter import Meter
from model import next_byte_loss
from options import Options
from report import Result, say, spaced, step_line

if TYPE_CHECKING:
    from hpc_kit.runtime import Group

Gradients = Callable[[Tensor], Tensor]
"""Windows of this rank in, their mean loss out; the parameters then hold the gradients of the global batch's mean."""


def adamw(model: nn.Module, options: Options) -> AdamW:
    """Matrices decay; the scales of the norms do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    scales = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=True)


def learning_rate(options: Options, step: int) -> float:
    """Up in a straight line, then down in half a cosine."""
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    return options.lr * (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def evaluate(model: nn.Module, text: Text, options: Options, world: Group) -> float:
    """Mean loss on held-back text: sums and counts are added up, so ranks may hold unequally many windows, or none."""
    windows = window_count(text.held_back, options.sequence)
    numbers = evaluation_numbers(windows, options.eval_windows, world.rank, world.world_size)
    total = torch.zeros(2, dtype=torch.float64, device=world.device)
    for start in range(0, len(numbers), 32):
        batch = cut(text.held_back, options.sequence, numbers[start : start + 32]).to(world.device)
        total[0] += next_byte_loss(model(batch[:, :-1]), batch[:, 1:]) * len(batch)
        total[1] += len(batch)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def train(
    options: Options,
    world: Group,
    text: Text,
    model: nn.Module,
    optimizer: Optimizer,
    gradients: Gradients,
    meter: Meter,
    *,
    first: int = 0,
) -> Result:
    """Train from step `first` on, and say how it goes."""
    windows = window_count(text.training, options.sequence)
    before = after = evaluate(model, text, options, world)
    say(world, f"start   ranks {world.world_size}, parameters {spaced(options.model.parameters)}, text {text}")
    for step in range(first, options.steps):
        meter.begin()
        numbers = batch_numbers(windows, options.global_batch, seed=options.seed, step=step)
        mine = cut(text.training, options.sequence, rank_slice(numbers, world.rank, world.world_size))
        loss = gradients(mine.to(world.device))
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options, step)
        optimizer.step()
        optimizer.zero_grad()
        meter.end(loss)
        done = step + 1
        if done % options.log_every == 0 or done == options.steps:
            step_line(options, world, done, meter.collect())
        if done == options.steps:
            after = evaluate(model, text, options, world)
        elif options.eval_every and done % options.eval_every == 0:
            say(world, f"step {done}/{options.steps}   validation loss {evaluate(model, text, options, world):.2f}")
    return Result(before, after, meter.all)
