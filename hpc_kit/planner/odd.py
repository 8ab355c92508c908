"""Layouts of a cases file that contradict themselves, and those that are predicted though they seem odd."""

from __future__ import annotations

from hpc_kit.errors import SpecError
from hpc_kit.planner.frameworks import FRAMEWORKS, interleaves, lacks, zero_stages
from hpc_kit.planner.layout import Run

TABLES = 2
"""Input and output table, each of which may have a chunk's place of a layer."""


def refuse(run: Run, schedule: str) -> None:
    """Refuse chunks that no pipeline can have.

    Args:
        run: What the row says.
        schedule: The pipeline's; "": not known.

    Raises:
        SpecError: More of them than the model has layers and tables, or several a stage in a schedule of one.
    """
    chunks = run.virtual_stages
    if chunks * run.pp > run.model.layers + TABLES:
        raise SpecError(f"virtual_stages {chunks} x pp {run.pp} are more than the layers and the two tables")
    if schedule == "1f1b" and chunks > 1:
        raise SpecError(f"virtual_stages {chunks} contradict pipeline_schedule, which has one chunk a stage")


def odd(run: Run) -> list[str]:
    """What a layout has though its framework is not known to, or though it does not come out even."""
    found = [f"{missing}, as far as is known" for missing in [lacks(run)] if missing]
    # The general constants stand for any framework; with one rank there is nothing to shard, whatever the stage.
    if run.framework != "torch" and run.dp * run.cp > 1 and run.zero_stage not in zero_stages(run):
        beside = " in a pipeline" if run.pp > 1 else f" with tp {run.tp}" if run.tp > 1 else ""
        found.append(f"{run.framework} has no ZeRO-{run.zero_stage}{beside}, as far as is known")
    if run.pp > 1 and run.virtual_stages > 1 and not FRAMEWORKS[run.framework].interleaved:
        found.append(f"{run.framework} has no interleaved schedule, as far as is known")
    chunks = run.pp * run.virtual_stages
    if not interleaves(run.model.layers, run.pp, run.virtual_stages):
        found.append(f"{run.model.layers} layers do not come out even in {chunks} chunks (pp x virtual_stages)")
    if run.pp > 1 and run.virtual_stages > 1 and run.micro_batches % run.pp:
        found.append(f"{run.micro_batches} micro-batches are no multiple of pp {run.pp}, as virtual_stages ask for")
    per_node = run.machine.gpus_per_node
    if run.gpus > per_node and run.gpus % per_node:
        found.append(f"{run.gpus} GPUs are no multiple of gpus_per_node {per_node}: the last node is not full")
    return [f"odd, and predicted all the same: {one}" for one in found]
