"""Pipeline, tensor and data parallel together, on one DeviceMesh.

    srun -N4 --ntasks-per-node=2 python jobs/train/hybrid.py --pp 2 --tp 2
    torchrun --nproc-per-node=4 jobs/train/hybrid.py --pp 2 --zero 1

Ranks that differ in tp are neighbors, so they share a node and its fast links. Ranks that differ in pp are farthest
apart, because stages send least. The remaining ranks are dp: replicas, each with its own part of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from model import GPT
from options import among, count, flag, option
from pipeline_stages import Pipeline, PipelineOptions
from tensor import check_degree, split_matrices
from training import Result, Training, adamw, join_ranks


@dataclass(frozen=True, kw_only=True)
class HybridOptions(PipelineOptions):
    pp: int | None = option(1, count, "ranks in a row, each with a part of the layers")
    tp: int = option(1, count, "ranks that share each matrix")
    sequence_parallel: bool = option(False, flag, "also split the stream between the layers over tp, along the text")
    zero: int = option(0, among(0, 1, 3), "what replicas shard: 0 nothing, 1 optimizer state, 3 also parameters")


def replicate(stage: GPT, options: HybridOptions, mesh: DeviceMesh) -> None:
    """Let the replicas average their gradients once per step, after the last micro-batch.

    The mesh of fully_shard has two axes, replicas and shards. With one shard, each replica is whole. With all replicas
    as shards, each has a part of the parameters and the optimizer state: gathered once per step this is ZeRO-1,
    gathered for each use ZeRO-3.
    """
    share = partial(fully_shard, mesh=mesh["dp_replicate", "dp_shard"], reshard_after_forward=options.zero == 3)
    for layer in stage.layers.values():
        share(layer)
    share(stage)


def main(argv: Sequence[str] | None = None) -> Result | None:
    options = HybridOptions.parse(__doc__, argv)
    with join_ranks(options) as (world, text):
        replicas = world.world_size // ((options.pp or 1) * options.tp) or 1
        shards = replicas if options.zero else 1
        check_degree(options, options.tp, sequence_parallel=options.sequence_parallel)
        mesh = world.mesh(pp=options.pp or 1, tp=options.tp, dp_shard=shards)

        def split_stage(stage: GPT) -> None:
            if options.tp > 1:
                split_matrices(stage, mesh["tp"], sequence_parallel=options.sequence_parallel)
            if replicas > 1:
                replicate(stage, options, mesh)

        pipeline = Pipeline(options, mesh["pp"], world.device, split_stage)
        model = pipeline.model
        optimizer = adamw(model, options)
        replica = mesh["dp_replicate"].get_local_rank() * shards + mesh["dp_shard"].get_local_rank()
        share, stages = (replica, replicas), mesh["pp"].size()
        with Training(
            options, world, text, model, optimizer, pipeline.compute_loss, share=share, stages=stages
        ) as training:
            training.report(f"stages  {pipeline}; dp {replicas}, tp {options.tp}")
            for step in training.steps():
                # Forward and backward passes of all micro-batches, in the order of the schedule.
                step.add_loss(pipeline.run_schedule(step.inputs, step.targets))
                training.clip_gradients()
                optimizer.step()
                optimizer.zero_grad()
            pipeline.report_bubble(training)
        return training.result


if __name__ == "__main__":
    main()
