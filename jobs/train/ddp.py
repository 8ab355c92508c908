"""Train the byte-level GPT with DistributedDataParallel: the whole model on every rank, gradients averaged in backward.

    srun -N4 --ntasks-per-node=2 python jobs/train/ddp.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/ddp.py --steps 60
    python jobs/train/ddp.py --steps 60

The loss curve is the same, however many ranks share the global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from torch.nn.parallel import DistributedDataParallel

from loop import Split, Whole, adamw, train
from meter import Meter, watch
from options import Options
from report import Result
from start import gpt, ranks_of


def main(argv: Sequence[str] | None = None) -> Result:
    options = Options.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        model = gpt(options, world.device)
        replica = DistributedDataParallel(model, device_ids=world.device_ids, gradient_as_bucket_view=True)
        meter = Meter(world.device)
        watch(replica, meter)
        # In `accumulate` passes, of which only the last one lets DDP average over the ranks.
        whole = Whole(replica, options, world.device, lambda last: nullcontext() if last else replica.no_sync())
        split = Split(
            model=model,
            optimizer=adamw(model, options),
            gradients=whole.gradients,
            losses=whole.losses,
            share=(world.rank, world.world_size),
        )
        return train(options, world, text, split, meter)


if __name__ == "__main__":
    main()
