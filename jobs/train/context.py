"""Context parallel: each rank has a part of every window, for texts too long for the memory of one.

    srun -N1 --ntasks-per-node=2 python jobs/train/context.py --sequence 256 --steps 60
    torchrun --nproc-per-node=2 jobs/train/context.py

Only attention looks beyond a rank's own part: there keys and values of all parts are gathered, and their gradients
added up and scattered back. (torch's own context_parallel passes them round in a ring, but has no attention for CPUs:
"_scaled_dot_product_flash_attention_for_cpu does not have a sharding strategy registered", torch 2.13.) Gradients of
the parameters are averaged over all ranks, as each saw other bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F  # noqa: N812  torch's own habit

from ddp import replicated
from hpc_kit.errors import SpecError
from loop import adamw, train
from model import Attention
from options import Options, count, option
from report import Result
from start import gpt, ranks_of


@dataclass(frozen=True, kw_only=True)
class ContextOptions(Options):
    cp: int | None = option(None, count, "ranks that share each window; not given: all of them")


class Gathered(torch.autograd.Function):
    """All parts of the text, side by side; their gradients, of which each rank has some, are added up and cut."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(parts, part.contiguous(), group)
        return torch.cat(parts, dim=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        parts = [part.contiguous() for part in gradients[0].chunk(ctx.group.size(), dim=2)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts, group=ctx.group)
        return mine, None


@dataclass(frozen=True)
class Part:
    """This rank's part of each window."""

    group: dist.ProcessGroup
    begins: int
    length: int

    def of(self, windows: Tensor) -> Tensor:
        return windows[:, self.begins : self.begins + self.length]

    def look(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Own queries, everybody's keys: a position looks at those before it in the whole window."""
        keys, values = (Gathered.apply(each, self.group) for each in (key, value))  # type: ignore[no-untyped-call]
        places = torch.arange(keys.shape[2], device=query.device)
        seen = places[self.begins : self.begins + self.length, None] >= places
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=seen)


def main(argv: Sequence[str] | None = None) -> Result:
    options = ContextOptions.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        ranks = options.cp or world.world_size
        if options.sequence % ranks:
            found = f"--sequence {options.sequence} / cp {ranks}"
            raise SpecError(
                "cp does not divide the windows", found=found, remedy=f"--sequence {options.sequence * ranks}"
            )
        mesh = world.mesh(cp=ranks)
        length = options.sequence // ranks
        part = Part(mesh["cp"].get_group(), mesh["cp"].get_local_rank() * length, length)
        model = gpt(options, world.device)
        model.begins = part.begins
        for module in model.modules():
            if isinstance(module, Attention):
                module.look = part.look
        whole = replicated(model, options, world)
        split = replace(
            whole.split(model, adamw(model, options), share=(mesh["dp"].get_local_rank(), mesh["dp"].size())),
            gradients=lambda inputs, targets: whole.gradients(part.of(inputs), part.of(targets)),
            losses=lambda inputs, targets: whole.losses(part.of(inputs), part.of(targets)),
        )
        return train(options, world, text, split)


if __name__ == "__main__":
    main()
