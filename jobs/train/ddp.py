"""Train the byte-level GPT with DistributedDataParallel: the whole model on every rank, gradients averaged in backward.

    srun -N4 --ntasks-per-node=2 python jobs/train/ddp.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/ddp.py --steps 60
    python jobs/train/ddp.py --steps 60

The loss curve is the same, however many ranks share the global batch.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import checkpoint
import hpc_kit
from data import read_text
from loop import adamw, train
from meter import Meter, watch
from model import GPT, initialise, next_byte_loss
from options import Options, refuse
from ranks import compare, together
from report import Result, conclude


def main(argv: Sequence[str] | None = None) -> Result:
    options = Options.parse(__doc__, argv)
    with hpc_kit.distributed(timeout=options.timeout) as world:
        text = read_text(options.data)
        versions = {"Python": platform.python_version(), "torch": torch.__version__}
        compare({**versions, "text": str(text), "options": repr(options)})
        refuse(options, text, world.world_size)

        model = GPT(options.model).to(world.device)
        initialise(model, options.seed)
        optimizer = adamw(model, options)
        first = together(lambda: checkpoint.begin(options, world, model, optimizer))

        replica = DistributedDataParallel(model, device_ids=world.device_ids, gradient_as_bucket_view=True)
        meter = Meter(world.device)
        watch(replica, meter)

        def gradients(windows: Tensor) -> Tensor:
            """In `accumulate` passes, of which only the last one lets DDP average over the ranks."""
            total = torch.zeros((), device=world.device)
            for number, part in enumerate(windows.chunk(options.accumulate), 1):
                with replica.no_sync() if number < options.accumulate else nullcontext():
                    loss = next_byte_loss(replica(part[:, :-1]), part[:, 1:]) / options.accumulate
                    loss.backward()
                total += loss.detach()
            meter.gradients_arrived()
            return total

        result = train(options, world, text, model, optimizer, gradients, meter, first=first)
        # Rank 0 writes, the others wait here for it; a full disk stops them all.
        together(lambda: checkpoint.end(options, world, model, optimizer))
        conclude(options, world, result)
        return result


if __name__ == "__main__":
    main()
