"""`hpc-kit bench dp`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpc_kit.cli.bench_output import bench_options, carry_out, names
from hpc_kit.cli.session import CLUSTER, here

if TYPE_CHECKING:
    from pathlib import Path


@click.command("dp")
@click.option(
    "--ways",
    callback=names,
    default="one process,nn.DataParallel,DDP by spawn,DDP by srun,DDP by torchrun",
    show_default=True,
    metavar="NAME,...",
)
@click.option("--ranks", type=click.IntRange(1), default=2, show_default=True, help="Processes of DDP, on this node.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True)
@click.option("--global-batch", type=click.IntRange(1), default=64, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds for one training.")
@CLUSTER
@bench_options
def command(cluster: str | None, out: Path | None, as_json: bool, **asked: object) -> int:
    """nn.DataParallel against DistributedDataParallel on one node; its processes spawned, by srun and by torchrun.

    Exit status 2 where the batch does not divide or the processes do not fit; a way that fails is noted.
    """
    from hpc_kit.bench import data_parallel

    question = data_parallel.Question(**asked)  # type: ignore[arg-type]
    slurm = here(cluster)
    slurm.client.check_available(slurm.cluster.name)
    data_parallel.refuse(question)
    return carry_out(
        "dp",
        data_parallel.TITLE,
        data_parallel.COLUMNS,
        question._asdict(),
        lambda sheet: data_parallel.measure(question, sheet, slurm.client.environ),
        out=out,
        as_json=as_json,
    )
