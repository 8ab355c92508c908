"""`hpc-kit bench start`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpc_kit.cli.bench_output import bench_options, carry_out, names, numbers
from hpc_kit.cli.session import CLUSTER, here

if TYPE_CHECKING:
    from pathlib import Path


@click.command("start")
@click.option("--ranks", callback=numbers, default="2,4,8,16,32,64", show_default=True, metavar="N,...")
@click.option(
    "--ways",
    callback=names,
    default="hpc-kit,hpc-kit torchrun,plain srun,plain torchrun",
    show_default=True,
    metavar="NAME,...",
    help="Plain: a script by hand.",
)
@click.option("--nodes", type=click.IntRange(1), default=4, show_default=True, help="At most.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds for one start.")
@CLUSTER
@bench_options
def command(cluster: str | None, out: Path | None, as_json: bool, **asked: object) -> int:
    """From the command to the first training step: queue, srun, imports, rendezvous, model, data.

    Each start is a job, submitted when the one before it is gone; also from inside a job.

    Exit status 2 where ranks do not divide over the nodes; what Slurm refuses is noted below the table.
    """
    from hpc_kit.bench import start_jobs, startup
    from hpc_kit.spec import search_path

    question = startup.Question(**asked)  # type: ignore[arg-type]
    slurm = here(cluster)
    slurm.client.check_available(slurm.cluster.name)
    root = search_path.current_folder()
    jobs = next(folder for folder in search_path.search_folders("jobs", root) if (folder / startup.PROGRAM).is_file())
    slurm.runs.mkdir(parents=True, exist_ok=True)
    environ, gpus = slurm.client.environ, slurm.cluster.node.gpus
    gpus = start_jobs.gpus_of_a_node(environ) if gpus is None else gpus
    reached = start_jobs.Slurm(cluster, environ, (jobs / startup.PROGRAM).resolve(), slurm.runs.resolve(), gpus)
    startup.refuse(question)
    return carry_out(
        "start",
        startup.TITLE,
        startup.COLUMNS,
        question._asdict(),
        lambda sheet: startup.measure(question, sheet, reached),
        out=out,
        as_json=as_json,
    )
