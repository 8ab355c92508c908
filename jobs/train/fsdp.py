"""Fully sharded: parameters, gradients and optimizer state spread over the ranks; a layer is gathered where it is used.

    srun -N4 --ntasks-per-node=2 python jobs/train/fsdp.py --steps 60
    torchrun --nproc-per-node=4 jobs/train/fsdp.py --dp-shard 2

The same program is ZeRO-3, ZeRO-2 (`--zero 2`: what forward has gathered stays until backward is through it) and HSDP
(`--dp-shard 2`: replicas of two ranks each; the shards of a replica lie on one node, where links are fast).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from loop import Whole, adamw, train
from model import GPT, initialise
from options import Options, among, count, flag, option
from report import Result
from start import ranks_of, with_options


@dataclass(frozen=True, kw_only=True)
class FsdpOptions(Options):
    zero: int = option(
        3, among(2, 3), "3 gathers a layer for forward and for backward anew; 2 once, and keeps it between"
    )
    dp_shard: int | None = option(None, count, "ranks that share one replica; not given: all of them")
    offload: bool = option(False, flag, "keep parameters, gradients and optimizer state in the host's memory")


def shard(model: GPT, options: FsdpOptions, mesh: DeviceMesh) -> FSDPModule:
    """Layer by layer, then what is left: the embeddings, the last norm and the head."""
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)  # sums over ranks in float32
    host = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    spread = partial(
        fully_shard,
        mesh=mesh["dp_replicate", "dp_shard"] if mesh["dp_replicate"].size() > 1 else mesh["dp_shard"],
        reshard_after_forward=options.zero == 3,
        offload_policy=host if options.offload else OffloadPolicy(),
        mp_policy=half if options.bf16 else MixedPrecisionPolicy(),
    )
    for layer in model.layers.values():
        spread(layer)
    return spread(model)


def main(argv: Sequence[str] | None = None) -> Result:
    options = FsdpOptions.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        mesh = world.mesh(dp_shard=options.dp_shard or world.world_size)
        with torch.device("meta"):  # no rank ever holds the whole model
            model = GPT(options.model)
        sharded = shard(with_options(model, options), options, mesh)
        model.to_empty(device="cpu" if options.offload else world.device)
        initialise(model, options.seed)

        @contextmanager
        def on_last(last: bool) -> Iterator[None]:
            """Gradients are added up over the ranks in the last pass only."""
            sharded.set_requires_gradient_sync(last)
            yield

        whole = Whole(model, options, world.device, on_last)
        split = whole.split(model, adamw(model, options), share=(world.rank, world.world_size))
        return train(options, world, text, split)


if __name__ == "__main__":
    main()
