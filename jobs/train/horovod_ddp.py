"""Train the byte-level GPT with Horovod: every rank has the whole model, Horovod averages the gradients in backward.

    env/build_horovod.sh
    mpirun -n 8 python jobs/train/horovod_ddp.py --steps 60

torch.distributed, over gloo, does the rest: evaluation, measurements, checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

import horovod.torch as hvd
from torch import Tensor

from model import next_byte_loss
from options import Options
from training import Result, SpecError, Training, adamw, autocast, build_model, join_ranks


def main(argv: Sequence[str] | None = None) -> Result | None:
    options = Options.parse(__doc__, argv)
    with join_ranks(options) as (world, text):
        hvd.init()
        if hvd.size() != world.world_size:
            raise SpecError(
                "Horovod was built with another MPI than the one that started the ranks",
                found=f"{hvd.size()} ranks for Horovod, {world.world_size} ranks of mpirun",
                remedy="start with the mpirun that env/build_horovod.sh names in its last line",
            )
        model = build_model(options, world.device)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            adamw(model, options),
            named_parameters=model.named_parameters(),
            backward_passes_per_step=options.accumulate,
        )

        def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
            with autocast(options, world.device):
                return next_byte_loss(model(inputs), targets)

        share = (world.rank, world.world_size)
        with Training(options, world, text, model, optimizer, compute_loss, share=share) as training:
            for step in training.steps():
                for inputs, targets, _ in step.micro_batches():
                    loss = compute_loss(inputs, targets) / options.accumulate
                    loss.backward()
                    step.add_loss(loss)
                optimizer.synchronize()  # clipping needs the averages before the step, which would wait for them
                training.clip_gradients()
                with optimizer.skip_synchronize():
                    optimizer.step()
                optimizer.zero_grad()
        hvd.shutdown()
        return training.result


if __name__ == "__main__":
    main()
