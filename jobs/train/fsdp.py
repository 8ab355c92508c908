"""Fully sharded: parameters, gradients and optimizer state are spread over the ranks; layers are gathered when used.

    srun -N4 --ntasks-per-node=2 python jobs/train/fsdp.py --steps 60
    torchrun --nproc-per-node=4 jobs/train/fsdp.py --dp-shard 2

The same program is ZeRO-3, ZeRO-2 (`--zero 2`: the layers that forward has gathered stay until backward has used them)
and HSDP (`--dp-shard 2`: replicas of two ranks each. The shards of a replica are on one node, where links are fast).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from model import GPT, initialize, next_byte_loss
from options import Options, among, count, flag, option
from training import Result, Training, adamw, apply_options, count_local_bytes, join_ranks


@dataclass(frozen=True, kw_only=True)
class FsdpOptions(Options):
    zero: int = option(3, among(2, 3), "3 gathers a layer for forward and again for backward; 2 gathers it once")
    dp_shard: int | None = option(None, count, "ranks that share one replica; default: all ranks")
    offload: bool = option(False, flag, "keep parameters, gradients and optimizer state in the host's memory")


def shard_model(model: GPT, options: FsdpOptions, mesh: DeviceMesh) -> FSDPModule:
    """Shard layer by layer, then the rest: the embeddings, the last norm and the head."""
    # Instead of autocast: the ranks gather the parameters in bfloat16, and add up the gradients in float32.
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    host = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    shard = partial(
        fully_shard,
        mesh=mesh["dp_replicate", "dp_shard"] if mesh["dp_replicate"].size() > 1 else mesh["dp_shard"],
        reshard_after_forward=options.zero == 3,
        offload_policy=host if options.offload else OffloadPolicy(),
        mp_policy=bf16 if options.bf16 else MixedPrecisionPolicy(),
    )
    for layer in model.layers.values():
        shard(layer)
    return shard(model)


class Usage(TorchDispatchMode):
    """Measures one step: the parameters between forward and backward, and the MiB that the rank receives."""

    def __init__(self, replicas: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.replicas, self.between, self.received = replicas, 0.0, defaultdict[str, float](float)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # its local tensors come next
        name = op.name().removeprefix("c10d::")
        if name in {"_allgather_base_", "_reduce_scatter_base_"}:  # of the output and the input, one is whole
            self.received[name] += abs(args[0].numel() - args[1].numel()) * args[0].element_size() / 2**20
        elif name == "allreduce_":  # HSDP adds up the shards of all replicas: a reduce-scatter and an all-gather
            self.received[name] += 2 * (1 - 1 / self.replicas) * count_local_bytes(args[0]) / 2**20
        return op(*args, **(kwargs or {}))

    def report(self, training: Training, zero: int) -> None:
        """Print the memory and the traffic in which ZeRO-2 and ZeRO-3 differ, for the summary too."""
        if not self.received:
            return  # a restart after the last step
        gathered = self.received["_allgather_base_"]
        reduced = self.received["_reduce_scatter_base_"] + self.received["allreduce_"]
        facts = {"parameters_between_passes_mib": self.between, "gathered_mib": gathered, "reduced_mib": reduced}
        training.facts |= facts
        training.report(f"ZeRO-{zero}  parameters {self.between:.2f} MiB on a rank between forward and backward")
        training.report(f"ZeRO-{zero}  received in a step: {gathered:.2f} MiB parameters, {reduced:.2f} MiB gradients")


def main(argv: Sequence[str] | None = None) -> Result | None:
    options = FsdpOptions.parse(__doc__, argv)
    with join_ranks(options) as (world, text):
        mesh = world.mesh(dp_shard=options.dp_shard or world.world_size)
        with torch.device("meta"):  # no rank ever has the whole model
            model = GPT(options.model)
        sharded = shard_model(apply_options(model, options), options, mesh)
        model.to_empty(device="cpu" if options.offload else world.device)
        initialize(model, options.seed)
        optimizer = adamw(model, options)

        def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
            return next_byte_loss(model(inputs), targets)

        share = (world.rank, world.world_size)
        with Training(options, world, text, model, optimizer, compute_loss, share=share) as training:
            usage = Usage(mesh["dp_replicate"].size())
            for step in training.steps():
                with nullcontext() if usage.received else usage:  # the first step is measured
                    for inputs, targets, is_last in step.micro_batches():
                        sharded.set_requires_gradient_sync(is_last)  # gradients are exchanged in the last pass only
                        loss = compute_loss(inputs, targets) / options.accumulate
                        usage.between = usage.between or count_local_bytes(model.parameters()) / 2**20
                        loss.backward()
                        step.add_loss(loss)
                training.clip_gradients()
                optimizer.step()
                optimizer.zero_grad()
            usage.report(training, options.zero)
        return training.result


if __name__ == "__main__":
    main()
