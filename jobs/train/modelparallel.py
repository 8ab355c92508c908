"""Layers on two devices, by hand: the first half on rank 0, the second on rank 1.

    srun -N1 --ntasks-per-node=2 python jobs/train/modelparallel.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/modelparallel.py --split-size 8

Rank 0 sends activations, rank 1 returns gradients. Without --split-size, one device idles while the other works: a step
takes longer than on one device, and only saves memory. With --split-size, the batch is sent in splits, and both devices
work except at the first and the last split. Small splits mean many small operations, large splits a long wait at both
ends. pipeline.py does this for any number of ranks, by torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch import distributed as dist

from model import GPT, IGNORED, next_byte_loss
from options import Options, among, count, option
from training import Result, SpecError, Training, adamw, autocast, build_model, join_ranks, new_group_of_all


@dataclass(frozen=True, kw_only=True)
class HalvesOptions(Options):
    unsupported = ("accumulate",)
    pp: int = option(2, among(2), "devices: two, no more")
    dp: int = option(1, among(1), "replicas: one")
    split_size: int | None = option(None, count, "windows in a split; default: the whole batch")


def run_first_half(model: GPT, options: HalvesOptions, inputs: Tensor, gradient_group: dist.ProcessGroup) -> None:
    """Send the activations of each split without waiting for them; the gradients come back in the same order."""
    sent = []
    for part in inputs.split(options.split_size or len(inputs)):
        with autocast(options, inputs.device):
            stream = model(part)
        sent.append((stream, cast("dist.Work", dist.isend(stream.detach(), 1))))
    for stream, message in sent:
        message.wait()
        if torch.is_grad_enabled():
            gradient = torch.empty_like(stream)
            dist.recv(gradient, 1, gradient_group)
            stream.backward(gradient)


def run_second_half(model: GPT, options: HalvesOptions, targets: Tensor, gradient_group: dist.ProcessGroup) -> Tensor:
    """Return the mean loss; the gradient of each split goes back while the next split comes in."""
    device, is_training = targets.device, torch.is_grad_enabled()
    total, counted, sending = torch.zeros((), device=device), (targets != IGNORED).sum(), []
    for part in targets.split(options.split_size or len(targets)):
        stream = torch.empty(*part.shape, options.width, device=device, requires_grad=is_training)
        dist.recv(stream.detach(), 0)
        share = (part != IGNORED).sum() / counted
        if not is_training and not share:  # in training all targets count; reading `share` would stop a GPU
            continue
        with autocast(options, device):
            loss = next_byte_loss(model(stream), part) * share
        if is_training:
            loss.backward()
            sending.append(cast("dist.Work", dist.isend(cast("Tensor", stream.grad), 0, gradient_group)))
        total += loss.detach()
    for message in sending:
        message.wait()
    return total


def main(argv: Sequence[str] | None = None) -> Result | None:
    options = HalvesOptions.parse(__doc__, argv)
    with join_ranks(options) as (world, text):
        if world.world_size != 2 or options.layers < 2:
            found = f"{world.world_size} ranks, pp {options.pp}, --layers {options.layers}"
            raise SpecError("two halves need two ranks and two layers", found=found, remedy="use pipeline.py")
        middle = options.layers // 2
        layers = range(middle) if world.is_main else range(middle, options.layers)
        model = build_model(options, world.device, layers)
        optimizer = adamw(model, options)
        # A second group for gradients: in one group, NCCL would send them after all activations.
        gradient_group = new_group_of_all(options, world)

        def run_half(inputs: Tensor, targets: Tensor) -> Tensor | None:
            """Run forward and, in training, backward, split by split. Rank 1 returns the mean loss."""
            if world.rank == 1:
                return run_second_half(model, options, targets, gradient_group)
            run_first_half(model, options, inputs, gradient_group)
            return None

        with Training(options, world, text, model, optimizer, run_half, stages=2) as training:
            for step in training.steps():
                step.add_loss(run_half(step.inputs, step.targets))
                training.clip_gradients()
                optimizer.step()
                optimizer.zero_grad()
        return training.result


if __name__ == "__main__":
    main()
