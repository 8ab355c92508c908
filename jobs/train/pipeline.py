"""Pipeline parallel: each rank has some of the layers; micro-batches follow one another through them.

    srun -N2 --ntasks-per-node=1 python jobs/train/pipeline.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/pipeline.py --schedule Interleaved1F1B --micro-batches 8

While the first micro-batch is on its way to the last rank, and while the last gradients come back, ranks idle: of p
ranks and m micro-batches, a share (p - 1) / (m + p - 1) of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc_kit.errors import SpecError
from loop import Split, adamw, train
from options import among, option
from report import Result, say
from stages import Pipeline, PipelineOptions
from start import ranks_of


@dataclass(frozen=True, kw_only=True)
class RowOptions(PipelineOptions):
    dp: int = option(1, among(1), "rows of ranks: one; hybrid.py has several")


def main(argv: Sequence[str] | None = None) -> Result:
    options = RowOptions.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        mesh = world.mesh(pp=options.pp or world.world_size)
        if mesh["dp"].size() > 1:
            raise SpecError("pipeline.py has one row", found=f"dp {mesh['dp'].size()}", remedy="hybrid.py has several")
        pipeline = Pipeline(options, mesh["pp"], world.device)
        say(world, f"stages  {pipeline}")
        split = Split(
            model=pipeline.model,
            optimizer=adamw(pipeline.model, options),
            gradients=pipeline.gradients,
            losses=pipeline.losses,
            stages=mesh["pp"].size(),
        )
        return train(options, world, text, split)


if __name__ == "__main__":
    main()
