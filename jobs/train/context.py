"""Context parallel: each rank has a part of every window, for texts that are too long for the memory of one rank.

    srun -N1 --ntasks-per-node=2 python jobs/train/context.py --sequence 256 --steps 60
    torchrun --nproc-per-node=2 jobs/train/context.py

Only attention needs the other parts. Forward gathers keys and values of all parts, and backward reduces and scatters
their gradients. (torch's own context_parallel passes them round in a ring, but has no attention for CPUs:
"_scaled_dot_product_flash_attention_for_cpu does not have a sharding strategy registered", torch 2.13.) The gradients
of the parameters are averaged over all ranks, because each rank computes the loss of other bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F  # noqa: N812  torch's own habit
from torch.nn.parallel import DistributedDataParallel

from model import Attention, next_byte_loss
from options import Options, count, option
from training import Result, SpecError, Training, adamw, autocast, build_model, join_ranks


@dataclass(frozen=True, kw_only=True)
class ContextOptions(Options):
    cp: int | None = option(None, count, "ranks that share each window; default: all ranks")


class GatherParts(torch.autograd.Function):
    """All parts of the text, side by side. Backward adds up the gradients of all ranks and returns this rank's part."""

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


def main(argv: Sequence[str] | None = None) -> Result | None:
    options = ContextOptions.parse(__doc__, argv)
    with join_ranks(options) as (world, text):
        ranks = options.cp or world.world_size
        if options.sequence % ranks:
            found = f"--sequence {options.sequence} / cp {ranks}"
            remedy = f"--sequence {options.sequence * ranks}"
            raise SpecError("cp does not divide the windows", found=found, remedy=remedy)
        mesh = world.mesh(cp=ranks)
        group, length = mesh["cp"].get_group(), options.sequence // ranks
        first = mesh["cp"].get_local_rank() * length
        part = slice(first, first + length)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            """The queries of this part attend to the keys of all parts, up to their own position."""
            keys, values = (GatherParts.apply(each, group) for each in (key, value))  # type: ignore[no-untyped-call]
            positions = torch.arange(keys.shape[2], device=query.device)
            return F.scaled_dot_product_attention(query, keys, values, attn_mask=positions[part, None] >= positions)

        model = build_model(options, world.device)
        model.first_position = first
        for module in model.modules():
            if isinstance(module, Attention):
                module.attend = attend
        replica = DistributedDataParallel(model, device_ids=world.device_ids, gradient_as_bucket_view=True)
        optimizer = adamw(model, options)

        def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
            with autocast(options, world.device):
                return next_byte_loss(replica(inputs[:, part]), targets[:, part])

        share = (mesh["dp"].get_local_rank(), mesh["dp"].size())
        with Training(options, world, text, model, optimizer, compute_loss, share=share, replica=replica) as training:
            for step in training.steps():
                for inputs, targets, is_last in step.micro_batches():
                    with nullcontext() if is_last else replica.no_sync():
                        loss = compute_loss(inputs, targets) / options.accumulate
                        loss.backward()
                    step.add_loss(loss)
                training.clip_gradients()
                optimizer.step()
                optimizer.zero_grad()
        return training.result


if __name__ == "__main__":
    main()
