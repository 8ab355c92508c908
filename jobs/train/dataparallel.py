"""nn.DataParallel: one process, a thread for each GPU of the node. What DistributedDataParallel has replaced.

    srun -N1 -n1 python jobs/train/dataparallel.py --steps 60

In every step the batch is scattered, the model copied to all GPUs, and outputs and gradients are gathered on the first
one, which holds more and waits for nobody; the threads share one interpreter. ddp.py does the same work without that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hpc_kit.errors import SpecError
from loop import Whole, adamw, train
from options import Options, among, option
from report import Result, say
from start import autocast, gpt, ranks_of


@dataclass(frozen=True, kw_only=True)
class ProcessOptions(Options):
    dp: int = option(1, among(1), "processes: one, which takes all GPUs that it sees")


class InThread(nn.Module):
    """The model as DataParallel's threads run it: autocast's dtype does not follow into them, and theirs is float16."""

    def __init__(self, model: nn.Module, options: Options, device: torch.device) -> None:
        super().__init__()
        self.model, self.options, self.device = model, options, device

    def forward(self, inputs: Tensor) -> Tensor:
        with autocast(self.options, self.device):
            logits: Tensor = self.model(inputs)
        return logits


def main(argv: Sequence[str] | None = None) -> Result:
    options = ProcessOptions.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        if world.world_size > 1:
            raise SpecError(
                "nn.DataParallel is one process",
                found=f"{world.world_size} ranks, each of which would train alone on all GPUs",
                remedy="ntasks_per_node = 1 and nodes = 1, or ddp.py",
            )
        gpus = torch.cuda.device_count()
        if gpus < 2:
            say(world, f"note    {gpus} GPUs here: without two of them nn.DataParallel scatters and copies nothing,")
            say(world, "note    so this run shows neither the cost of copying the model nor the load on the first GPU")
        model = gpt(options, world.device)
        whole = Whole(nn.DataParallel(InThread(model, options, world.device)), options, world.device)
        split = whole.split(model, adamw(model, options), facts={"devices": max(1, gpus)})
        return train(options, world, text, split)


if __name__ == "__main__":
    main()
