"""ZeRO-1: DistributedDataParallel whose optimizer state is spread over the ranks, each of which updates its part.

    srun -N2 --ntasks-per-node=2 python jobs/train/zero1.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/zero1.py --offload

Of AdamW's two moments a rank keeps those of its own parameters only; after the step it sends these to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import AdamW
from torch.optim.adamw import adamw as update

from checkpoint import MOMENTS
from ddp import replicated
from loop import adamw, train
from options import Options, among, flag, option
from report import Result
from start import gpt, ranks_of


@dataclass(frozen=True, kw_only=True)
class Zero1Options(Options):
    zero: int = option(1, among(1), "the stage: fsdp.py does 2 and 3")
    offload: bool = option(False, flag, "keep the optimizer state in the host's memory, and update there")


class OffloadedAdamW(AdamW):
    """AdamW in the host's memory: a step brings the gradients there, and the parameters back."""

    @staticmethod
    def empty_moments(parameter: Tensor) -> dict[str, Tensor]:
        return {moment: torch.zeros_like(parameter, device="cpu") for moment in MOMENTS}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # nobody here asks for a loss anew
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(self.empty_moments(parameter), step=torch.zeros(()))
                here = parameter.to("cpu", copy=True)
                first, second = (state[moment] for moment in MOMENTS)
                update(
                    [here], [parameter.grad.cpu()], [first], [second], max_exp_avg_sqs=[], state_steps=[state["step"]],
                    fused=True, amsgrad=False, maximize=False, beta1=group["betas"][0], beta2=group["betas"][1],
                    lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"],
                )  # fmt: skip
                parameter.copy_(here)


def main(argv: Sequence[str] | None = None) -> Result:
    options = Zero1Options.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        kind = OffloadedAdamW if options.offload else AdamW
        model = gpt(options, world.device)
        whole = replicated(model, options, world)
        optimizer = adamw(model, options, partial(ZeroRedundancyOptimizer, optimizer_class=kind))
        split = whole.split(model, optimizer, share=(world.rank, world.world_size))
        return train(options, world, text, split)


if __name__ == "__main__":
    main()
