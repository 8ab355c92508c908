"""nn.DataParallel: one process with a thread for each GPU of the node. DistributedDataParallel has replaced it.

    srun -N1 -n1 python jobs/train/dataparallel.py --steps 60

Every step scatters the batch, copies the model to all GPUs, and gathers outputs and gradients on the first GPU, which
therefore needs more memory. The threads share one interpreter. ddp.py does the same work without these costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model import next_byte_loss
from options import Options, among, option
from training import Result, SpecError, Training, adamw, autocast, build_model, join_ranks


@dataclass(frozen=True, kw_only=True)
class ProcessOptions(Options):
    dp: int = option(1, among(1), "processes: one, which uses all GPUs that it sees")


class AutocastInThread(nn.Module):
    """The model with autocast inside: DataParallel starts its threads with autocast to float16, whatever ours is."""

    def __init__(self, model: nn.Module, options: Options, device: torch.device) -> None:
        super().__init__()
        self.model, self.options, self.device = model, options, device

    def forward(self, inputs: Tensor) -> Tensor:
        with autocast(self.options, self.device):
            logits: Tensor = self.model(inputs)
        return logits


def main(argv: Sequence[str] | None = None) -> Result | None:
    options = ProcessOptions.parse(__doc__, argv)
    with join_ranks(options) as (world, text):
        if world.world_size > 1:
            raise SpecError(
                "nn.DataParallel is one process",
                found=f"{world.world_size} ranks, each of which would train alone on all GPUs",
                remedy="ntasks_per_node = 1 and nodes = 1, or ddp.py",
            )
        model = build_model(options, world.device)
        replicas = nn.DataParallel(AutocastInThread(model, options, world.device))
        optimizer = adamw(model, options)

        def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
            with autocast(options, world.device):
                return next_byte_loss(replicas(inputs), targets)

        gpus = torch.cuda.device_count()
        facts = {"devices": max(1, gpus)}
        with Training(options, world, text, model, optimizer, compute_loss, facts=facts) as training:
            if gpus < 2:
                training.report(f"note    nn.DataParallel scatters and copies nothing with {gpus} GPUs: this run shows")
                training.report("note    neither the cost of copying the model nor the load on the first GPU")
            for step in training.steps():
                for inputs, targets, _ in step.micro_batches():
                    loss = compute_loss(inputs, targets) / options.accumulate
                    loss.backward()
                    step.add_loss(loss)
                training.clip_gradients()
                optimizer.step()
                optimizer.zero_grad()
        return training.result


if __name__ == "__main__":
    main()
