"""Train the byte-level GPT with DistributedDataParallel: every rank has the whole model and its share of the batch.

    srun -N4 --ntasks-per-node=2 python jobs/train/ddp.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/ddp.py --steps 60
    python jobs/train/ddp.py --steps 60

The ranks average their gradients during the backward pass. The loss curve does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from model import next_byte_loss
from options import Options
from training import Result, Training, adamw, autocast, build_model, join_ranks


def main(argv: Sequence[str] | None = None) -> Result | None:
    options = Options.parse(__doc__, argv)
    with join_ranks(options) as (world, text):
        model = build_model(options, world.device)
        replica = DistributedDataParallel(model, device_ids=world.device_ids, gradient_as_bucket_view=True)
        optimizer = adamw(model, options)

        def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
            with autocast(options, world.device):
                return next_byte_loss(replica(inputs), targets)

        share = (world.rank, world.world_size)
        with Training(options, world, text, model, optimizer, compute_loss, share=share, replica=replica) as training:
            for step in training.steps():
                for inputs, targets, is_last in step.micro_batches():
                    # Only the last pass of a step averages the gradients over the ranks.
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
