"""Pipeline parallel: each rank has some of the layers, and micro-batches follow one another through the ranks.

    srun -N2 --ntasks-per-node=1 python jobs/train/pipeline.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/pipeline.py --schedule Interleaved1F1B --micro-batches 8

Ranks idle while the first micro-batch travels to the last rank, and while the last gradients come back: with p ranks
and m micro-batches, a share (p - 1) / (m + p - 1) of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from options import among, option
from pipeline_stages import Pipeline, PipelineOptions
from training import Result, SpecError, Training, adamw, join_ranks


@dataclass(frozen=True, kw_only=True)
class RowOptions(PipelineOptions):
    dp: int = option(1, among(1), "rows of ranks: one; hybrid.py has several")


def main(argv: Sequence[str] | None = None) -> Result | None:
    options = RowOptions.parse(__doc__, argv)
    with join_ranks(options) as (world, text):
        mesh = world.mesh(pp=options.pp or world.world_size)
        if mesh["dp"].size() > 1:
            raise SpecError("pipeline.py has one row", found=f"dp {mesh['dp'].size()}", remedy="use hybrid.py")
        pipeline = Pipeline(options, mesh["pp"], world.device)
        model = pipeline.model
        optimizer = adamw(model, options)
        stages = mesh["pp"].size()
        with Training(options, world, text, model, optimizer, pipeline.compute_loss, stages=stages) as training:
            training.report(f"stages  {pipeline}")
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
