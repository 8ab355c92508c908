"""Layers on two devices, by hand: the first half on rank 0, the second on rank 1; activations go, gradients come back.

    srun -N1 --ntasks-per-node=2 python jobs/train/modelparallel.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/modelparallel.py --split-size 8

Without --split-size one device idles while the other works: the training takes longer than on one device, by what the
messages take, and gains memory only. With it the batch goes in splits, and both work at once but for the first and the
last one. Splits too small are many small operations, too large ones a long wait at both ends. pipeline.py does this
for any number of ranks, by torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch import distributed as dist

from hpc_kit.errors import SpecError
from loop import Split, adamw, train
from model import GPT, IGNORED, next_byte_loss
from options import Options, among, count, option, without
from report import Result
from start import autocast, gpt, group_of_all, ranks_of


@dataclass(frozen=True, kw_only=True)
class HalvesOptions(Options):
    pp: int = option(2, among(2), "devices: two, no more")
    dp: int = option(1, among(1), "replicas: one")
    split_size: int | None = option(None, count, "windows that go through at once; not given: the whole batch")


@dataclass(frozen=True)
class Halves:
    """One half of the layers on this rank, the other on its peer."""

    model: GPT
    options: HalvesOptions
    rank: int
    device: torch.device
    back: dist.ProcessGroup
    """A group of their own for gradients: NCCL sends and receives of one group in turn, behind all activations."""

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        if self.rank == 0:
            self.first(inputs, backward=True)
        return self.second(targets, backward=True) if self.rank else None

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        if self.rank == 0:
            self.first(inputs, backward=False)
        return self.second(targets, backward=False) if self.rank else None

    def first(self, inputs: Tensor, *, backward: bool) -> None:
        """Send each split's activations on at once, and go on with the next; gradients come back in that order."""
        sent = []
        for part in inputs.split(self.options.split_size or len(inputs)):
            with autocast(self.options, self.device):
                stream = self.model(part)
            sent.append((stream, cast("dist.Work", dist.isend(stream.detach(), 1))))
        for stream, work in sent:
            work.wait()
            if backward:
                gradient = torch.empty_like(stream)
                dist.recv(gradient, 1, self.back)
                stream.backward(gradient)

    def second(self, targets: Tensor, *, backward: bool) -> Tensor:
        """The loss of each split as a part of the batch's mean; its gradient goes back while the next split comes."""
        total, known, sending = torch.zeros((), device=self.device), (targets != IGNORED).sum(), []
        for part in targets.split(self.options.split_size or len(targets)):
            stream = torch.empty(*part.shape, self.options.width, device=self.device, requires_grad=backward)
            dist.recv(stream.detach(), 0)
            share = (part != IGNORED).sum() / known
            if not backward and not share:  # in training every target counts: to ask would stop the host for the GPU
                continue
            with autocast(self.options, self.device):
                loss = next_byte_loss(self.model(stream), part) * share
            if backward:
                loss.backward()
                sending.append(cast("dist.Work", dist.isend(cast("Tensor", stream.grad), 0, self.back)))
            total += loss.detach()
        for work in sending:
            work.wait()
        return total


def main(argv: Sequence[str] | None = None) -> Result:
    options = HalvesOptions.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        if world.world_size != 2 or options.layers < 2:
            found = f"{world.world_size} ranks, pp {options.pp}, --layers {options.layers}"
            raise SpecError("two halves need two ranks and two layers", found=found, remedy="pipeline.py takes more")
        without(options, "accumulate")
        middle = options.layers // 2
        part = range(middle) if world.is_main else range(middle, options.layers)
        model = gpt(options, world.device, part)
        halves = Halves(model, options, world.rank, world.device, group_of_all(options, world))
        split = Split(
            model=model, optimizer=adamw(model, options), gradients=halves.gradients, losses=halves.losses, stages=2
        )
        return train(options, world, text, split)


if __name__ == "__main__":
    main()
