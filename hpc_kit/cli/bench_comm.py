"""`hpc-kit bench comm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpc_kit.cli.bench_output import bench_options, carry_out

if TYPE_CHECKING:
    from pathlib import Path


@click.command("comm")
@click.option(
    "--backends",
    default="auto",
    show_default=True,
    metavar="NAME,...",
    help="gloo, mpi, nccl; auto: all that work here.",
)
@click.option(
    "--collectives",
    default="all_reduce",
    show_default=True,
    metavar="NAME,...",
    help="all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send_recv; or all.",
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that take part [default: 2, or those of the step].",
)
@click.option(
    "--sizes", default="4KiB,4MiB,64MiB", show_default=True, metavar="SIZE,...", help="4096, 4KiB, or 1KiB-256MiB."
)
@click.option(
    "--algorithms", default="", metavar="ring,star", help="All-reduces of plain messages beside the library's."
)
@click.option("--links", is_flag=True, help="Latency and bandwidth between each two ranks.")
@click.option("--launcher", metavar="WORDS", help="What starts the ranks; default: mpirun, or plain processes.")
@bench_options
def command(
    backends: str,
    collectives: str,
    ranks: int | None,
    sizes: str,
    algorithms: str,
    links: bool,
    launcher: str | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Time collectives of several backends, side by side in the same processes.

    In a step of several ranks (srun hpc-kit bench comm) these are the ranks; elsewhere they are started.

    Exit status 1 where a rank failed, 2 where a name, a size or mpirun is none, a backend is not built in, or the
    sizes are too large for the memory; 130 after Ctrl-C, with the results until then.
    """
    from hpc_kit.bench import collectives as comm
    from hpc_kit.bench import comm_checks
    from hpc_kit.bench.local_ranks import chosen, world_size

    step, wanted = world_size(), chosen(ranks, 2)
    if backends == "auto":
        backends = ",".join(comm_checks.automatic(wanted, step))
    asked = comm.question(backends, collectives, wanted, sizes, algorithms, links=links)
    comm_checks.refuse(asked, step, elsewhere=launcher is not None)
    return carry_out(
        "comm",
        comm.TITLE,
        comm.COLUMNS,
        asked._asdict(),
        lambda sheet: comm.measure(asked, sheet, launcher=launcher),
        out=out,
        as_json=as_json,
    )
