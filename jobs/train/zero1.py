"""ZeRO-1: DistributedDataParallel with the optimizer state sharded over the ranks.

    srun -N2 --ntasks-per-node=2 python jobs/train/zero1.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/zero1.py --offload

A rank keeps AdamW's two moments for its share of the parameters. It updates these parameters and sends them to the
other ranks after the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.adamw import adamw as update_parameters

from model import next_byte_loss
from options import Options, among, flag, option
from training import Result, Training, adamw, autocast, build_model, join_ranks


@dataclass(frozen=True, kw_only=True)
class Zero1Options(Options):
    zero: int = option(1, among(1), "stage of ZeRO; fsdp.py does 2 and 3")
    offload: bool = option(False, flag, "keep the optimizer state in the host's memory, and update there")


class OffloadedAdamW(AdamW):
    """AdamW in the host's memory: a step copies the gradients there and the parameters back."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for group in self.param_groups:
            for parameter in group["params"]:
                moments = {name: torch.zeros_like(parameter, device="cpu") for name in ("exp_avg", "exp_avg_sq")}
                self.state[parameter].update(moments, step=torch.zeros(()))

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no program here passes a closure
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                on_host = parameter.to("cpu", copy=True)
                update_parameters(
                    [on_host], [parameter.grad.cpu()], [state["exp_avg"]], [state["exp_avg_sq"]],
                    max_exp_avg_sqs=[], state_steps=[state["step"]], fused=True, amsgrad=False, maximize=False,
                    beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"],
                    weight_decay=group["weight_decay"], eps=group["eps"],
                )  # fmt: skip
                parameter.copy_(on_host)


def main(argv: Sequence[str] | None = None) -> Result | None:
    options = Zero1Options.parse(__doc__, argv)
    with join_ranks(options) as (world, text):
        model = build_model(options, world.device)
        replica = DistributedDataParallel(model, device_ids=world.device_ids, gradient_as_bucket_view=True)
        kind = OffloadedAdamW if options.offload else AdamW
        optimizer = adamw(model, options, partial(ZeroRedundancyOptimizer, optimizer_class=kind))

        def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
            with autocast(options, world.device):
                return next_byte_loss(replica(inputs), targets)

        share = (world.rank, world.world_size)
        with Training(options, world, text, model, optimizer, compute_loss, share=share, replica=replica) as training:
            for step in training.steps():
                for inputs, targets, is_last in step.micro_batches():
                    with nullcontext() if is_last else replica.no_sync():
                        loss = compute_loss(inputs, targets) / options.accumulate
                        loss.backward()
                    step.add_loss(loss)
                training.clip_gradients()
                optimizer.step()  # the update of this rank's share, then the exchange of parameters
                optimizer.zero_grad()
        return training.result


if __name__ == "__main__":
    main()
