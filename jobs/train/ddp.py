"""Train the byte-level GPT with DistributedDataParallel: the whole model on every rank, gradients averaged in backward.

    srun -N4 --ntasks-per-node=2 python jobs/train/ddp.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/ddp.py --steps 60
    python jobs/train/ddp.py --steps 60

The loss curve is the same, however many ranks share the global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from torch.nn.parallel import DistributedDataParallel

from loop import Whole, adamw, train
from model import GPT
from options import Options
from report import Result
from start import gpt, ranks_of

if TYPE_CHECKING:
    from hpc_kit.runtime import Group


def replicated(model: GPT, options: Options, world: Group) -> Whole:
    """A replica on every rank; of `accumulate` passes only the last one lets DDP average over the ranks."""
    replica = DistributedDataParallel(model, device_ids=world.device_ids, gradient_as_bucket_view=True)
    return Whole(replica, options, world.device, lambda last: nullcontext() if last else replica.no_sync())


def main(argv: Sequence[str] | None = None) -> Result:
    options = Options.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        model = gpt(options, world.device)
        whole = replicated(model, options, world)
        split = whole.split(model, adamw(model, options), share=(world.rank, world.world_size))
        return train(options, world, text, split)


if __name__ == "__main__":
    main()
