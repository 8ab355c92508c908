"""Pipeline, tensor and data parallel together, on one DeviceMesh.

    srun -N4 --ntasks-per-node=2 python jobs/train/hybrid.py --pp 2 --tp 2
    torchrun --nproc-per-node=4 jobs/train/hybrid.py --pp 2 --zero 1

Ranks that differ in tp are neighbours, so they share a node and its fast links; those that differ in pp lie farthest
apart, because stages send least. What is left is dp: replicas, each on its own part of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from loop import Split, adamw, train
from model import GPT
from options import among, count, flag, option
from report import Result, say
from stages import Pipeline, PipelineOptions
from start import ranks_of
from tensor import cut_matrices, refuse_degree


@dataclass(frozen=True, kw_only=True)
class HybridOptions(PipelineOptions):
    pp: int | None = option(1, count, "ranks in a row, each with a part of the layers")
    tp: int = option(1, count, "ranks that share each matrix")
    sequence_parallel: bool = option(False, flag, "cut the stream between the layers along the text, too, over tp")
    zero: int = option(0, among(0, 1, 3), "what the replicas share: 0 nothing, 1 optimizer state, 3 parameters, too")


def replicate(stage: GPT, options: HybridOptions, mesh: DeviceMesh) -> None:
    """Let the replicas average their gradients, once a step, when the last micro-batch has passed.

    fully_shard over a mesh of (replicas, shards): with one shard each replica is whole. With all as shards, each keeps
    a part of the parameters and the optimizer state; gathered once a step that is ZeRO-1, or for each use, ZeRO-3.
    """
    share = partial(fully_shard, mesh=mesh["dp_replicate", "dp_shard"], reshard_after_forward=options.zero == 3)
    for layer in stage.layers.values():
        share(layer)
    share(stage)


def main(argv: Sequence[str] | None = None) -> Result:
    options = HybridOptions.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        replicas = world.world_size // ((options.pp or 1) * options.tp) or 1
        shards = replicas if options.zero else 1
        refuse_degree(options, options.tp, sequence_parallel=options.sequence_parallel)
        mesh = world.mesh(pp=options.pp or 1, tp=options.tp, dp_shard=shards)

        def spread(stage: GPT) -> None:
            if options.tp > 1:
                cut_matrices(stage, mesh["tp"], sequence_parallel=options.sequence_parallel)
            if replicas > 1:
                replicate(stage, options, mesh)

        pipeline = Pipeline(options, mesh["pp"], world.device, spread)
        say(world, f"stages  {pipeline}; dp {replicas}, tp {options.tp}")
        replica = mesh["dp_replicate"].get_local_rank() * shards + mesh["dp_shard"].get_local_rank()
        split = Split(
            model=pipeline.model,
            optimizer=adamw(pipeline.model, options),
            gradients=pipeline.gradients,
            losses=pipeline.losses,
            share=(replica, replicas),
            stages=mesh["pp"].size(),
        )
        return train(options, world, text, split)


if __name__ == "__main__":
    main()
