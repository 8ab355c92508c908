"""`hpc-kit bench pipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpc_kit.cli.bench_output import bench_options, carry_out, names, numbers

if TYPE_CHECKING:
    from pathlib import Path


@click.command("pipeline")
@click.option("--sweeps", callback=names, default="splits,schedules", show_default=True, metavar="NAME,...")
@click.option("--full", is_flag=True, help="The tutorial's size: images of 128 x 128, 3 batches, 10 repeats; hours.")
@click.option("--image", type=click.IntRange(1), default=40, show_default=True, help="Pixels along a side.")
@click.option("--batch", type=click.IntRange(1), default=120, show_default=True, help="Images.")
@click.option("--batches", type=click.IntRange(1), default=1, show_default=True, help="Of a repeat.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--splits", callback=numbers, default="1,3,5,8,10,12,20,40,60", show_default=True, metavar="N,...")
@click.option(
    "--schedules",
    callback=names,
    default="GPipe,1F1B,Interleaved1F1B,InterleavedZeroBubble,ZBVZeroBubble",
    show_default=True,
    metavar="NAME,...",
    help="torch's names.",
)
@click.option("--micro-batches", callback=numbers, default="2,4,8,16", show_default=True, metavar="N,...")
@click.option("--ranks", type=click.IntRange(1), help="Of the schedules [default: 2, or those of the job].")
@bench_options
def command(full: bool, ranks: int | None, out: Path | None, as_json: bool, **asked: object) -> int:
    """ResNet-50 on one device, on two, and in splits; then the schedules of a pipeline.

    splits: PyTorch's tutorial of model parallelism with two single-threaded ranks, or two GPUs.
    schedules: efficiency against m / (m + p - 1), for equal stages.

    Exit status 1 where a rank failed, 2 where a number is out of range or does not fit into memory.
    """
    from hpc_kit.bench import pipeline
    from hpc_kit.bench.local_ranks import chosen

    question = pipeline.Question(**asked, ranks=chosen(ranks, 2))  # type: ignore[arg-type]
    if full:
        question = question._replace(**pipeline.FULL)  # type: ignore[arg-type]
    pipeline.refuse(question)
    return carry_out(
        "pipeline",
        pipeline.TITLE,
        pipeline.COLUMNS,
        question._asdict(),
        lambda sheet: pipeline.measure(question, sheet),
        out=out,
        as_json=as_json,
    )
