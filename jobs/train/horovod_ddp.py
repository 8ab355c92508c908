"""Train the byte-level GPT with Horovod: the whole model on every rank, gradients averaged by its ring in backward.

    mpirun -n 8 python jobs/train/horovod_ddp.py --steps 60

torch.distributed, over gloo, keeps what is not Horovod's: evaluation, measurements, checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import horovod.torch as hvd
from torch import Tensor

from loop import Whole, adamw, train
from options import Options
from report import Result
from start import gpt, ranks_of


def main(argv: Sequence[str] | None = None) -> Result:
    options = Options.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        hvd.init()
        model = gpt(options, world.device)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            adamw(model, options),
            named_parameters=model.named_parameters(),
            backward_passes_per_step=options.accumulate,
        )
        whole = Whole(model, options, world.device)

        def gradients(inputs: Tensor, targets: Tensor) -> Tensor:
            loss = whole.gradients(inputs, targets)
            optimizer.synchronize()  # they are clipped before the step, which would wait for them itself
            return loss

        with optimizer.skip_synchronize():
            split = whole.split(model, optimizer, share=(world.rank, world.world_size))
            result = train(options, world, text, replace(split, gradients=gradients))
        hvd.shutdown()
        return result


if __name__ == "__main__":
    main()
