"""`hpc-kit bench`: the measurements, and the commands that compare and plot their results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.bench_output import bench_options, parse_names, parse_numbers, run_bench
from hpc_kit.cli.lazy import LazyGroup
from hpc_kit.cli.output import CLUSTER_OPTION, open_session, short_path
from hpc_kit.errors import RecordError

if TYPE_CHECKING:
    from hpc_kit.bench.comparison import Comparison, Ratio
    from hpc_kit.bench.results import BenchResult


BENCHES = {
    "comm": "collectives of gloo, mpi and nccl; ring and star algorithms; links",
    "pipeline": "a model on one and on two devices; efficiency of pipeline schedules",
    "memory": "memory of a rank under DDP and ZeRO-1, -2, -3, compared with the formulas",
    "start": "time from the command to the first step, compared with hand-written scripts",
    "dp": "nn.DataParallel and DistributedDataParallel; spawn and srun",
    "strategies": "all ways of splitting a training, and a table of advice",
    "compare": "compare two results of one benchmark, with uncertainties",
    "plot": "draw the plots of a result",
}
"""The bench commands with their lines in the help."""


@click.group("bench", cls=LazyGroup, lines=BENCHES)
@click.pass_context
def command(context: click.Context) -> None:
    """Measure this machine and its network."""
    from hpc_kit.bench import processes

    context.with_resource(processes.interruptible())


@command.command("comm")
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
    help="Number of processes [default: 2, or those of the step].",
)
@click.option(
    "--sizes", default="4KiB,4MiB,64MiB", show_default=True, metavar="SIZE,...", help="4096, 4KiB, or 1KiB-256MiB."
)
@click.option(
    "--algorithms", default="", metavar="ring,star", help="All-reduces of plain messages beside the library's."
)
@click.option("--links", is_flag=True, help="Latency and bandwidth between each two ranks.")
@click.option(
    "--launcher", metavar="WORDS", help="Command that starts the ranks [default: mpirun, or plain processes]."
)
@bench_options
def comm_command(
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

    In a step of several ranks (srun hpc-kit bench comm), the tasks of the step are the ranks. Otherwise the command
    starts them.

    Exit status 1 if a rank failed; 2 if a name or size is invalid, mpirun or a backend is missing, or the sizes exceed
    the memory; 130 after Ctrl-C, with the results so far.
    """
    from hpc_kit.bench import collectives as comm
    from hpc_kit.bench.local_ranks import rank_count, world_size

    step, wanted = world_size(), rank_count(ranks, 2)
    if backends == "auto":
        backends = ",".join(comm.available_backends(wanted, step))
    asked = comm.parse_options(backends, collectives, wanted, sizes, algorithms, links=links)
    asked.check(step, elsewhere=launcher is not None)
    return run_bench(
        "comm",
        comm.TITLE,
        comm.COLUMNS,
        asked._asdict(),
        lambda sheet: comm.measure_collectives(asked, sheet, launcher=launcher),
        out=out,
        as_json=as_json,
    )


@command.command("pipeline")
@click.option("--sweeps", callback=parse_names, default="splits,schedules", show_default=True, metavar="NAME,...")
@click.option("--full", is_flag=True, help="The tutorial's size: images of 128 x 128, 3 batches, 10 repeats; hours.")
@click.option("--image", type=click.IntRange(1), default=40, show_default=True, help="Pixels along a side.")
@click.option("--batch", type=click.IntRange(1), default=120, show_default=True, help="Images.")
@click.option("--batches", type=click.IntRange(1), default=1, show_default=True, help="Batches in a repeat.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--splits", callback=parse_numbers, default="1,3,5,8,10,12,20,40,60", show_default=True, metavar="N,...")
@click.option(
    "--schedules",
    callback=parse_names,
    default="GPipe,1F1B,Interleaved1F1B,InterleavedZeroBubble,ZBVZeroBubble",
    show_default=True,
    metavar="NAME,...",
    help="torch's names.",
)
@click.option("--micro-batches", callback=parse_numbers, default="2,4,8,16", show_default=True, metavar="N,...")
@click.option("--ranks", type=click.IntRange(1), help="Ranks of the schedules [default: 2, or those of the job].")
@bench_options
def pipeline_command(full: bool, ranks: int | None, out: Path | None, as_json: bool, **asked: object) -> int:
    """ResNet-50 on one device, on two, and in splits; then the schedules of a pipeline.

    splits: PyTorch's tutorial of model parallelism with two single-threaded ranks, or two GPUs.
    schedules: efficiency against m / (m + p - 1), for equal stages.

    Exit status 1 if a rank failed, 2 if a number is out of range or does not fit into memory.
    """
    from hpc_kit.bench import pipeline
    from hpc_kit.bench.local_ranks import rank_count

    question = pipeline.PipelineOptions(**asked, ranks=rank_count(ranks, 2))  # type: ignore[arg-type]
    if full:
        question = question._replace(**pipeline.FULL)  # type: ignore[arg-type]
    question.check()
    return run_bench(
        "pipeline",
        pipeline.TITLE,
        pipeline.COLUMNS,
        question._asdict(),
        lambda sheet: pipeline.measure_pipeline(question, sheet),
        out=out,
        as_json=as_json,
    )


_OFFLOAD = {"both": (False, True), "yes": (True,), "no": (False,)}


@command.command("memory")
@click.option("--ways", callback=parse_names, default="ddp,zero1,zero2,zero3", show_default=True, metavar="NAME,...")
@click.option("--offload", type=click.Choice(tuple(_OFFLOAD)), default="both", show_default=True)
@click.option("--layers", type=click.IntRange(1), default=16, show_default=True, help="Square matrices, all alike.")
@click.option("--width", type=click.IntRange(1), default=512, show_default=True, help="Width of each matrix.")
@click.option("--rows", type=click.IntRange(1), default=8, show_default=True, help="Rows in the batch of a rank.")
@click.option("--steps", type=click.IntRange(1), default=5, show_default=True)
@click.option("--ranks", type=click.IntRange(1), help="[default: 4, or those of the job]")
@bench_options
def memory_command(offload: str, ranks: int | None, out: Path | None, as_json: bool, **asked: object) -> int:
    """Compare the model states of a rank with formulas.

    They are 16 P for DDP, and 4 P + 12 P / d, 2 P + 14 P / d and 16 P / d for ZeRO-1, -2 and -3.

    Exit status 1 if a rank failed, 2 if a way does not exist or the model does not fit into memory.
    """
    from hpc_kit.bench import model_memory
    from hpc_kit.bench.local_ranks import rank_count

    question = model_memory.MemoryOptions(**asked, offload=_OFFLOAD[offload], ranks=rank_count(ranks, 4))  # type: ignore[arg-type]
    question.check()
    return run_bench(
        "memory",
        model_memory.TITLE,
        model_memory.COLUMNS,
        question._asdict(),
        lambda sheet: model_memory.measure_memory(question, sheet),
        out=out,
        as_json=as_json,
    )


@command.command("start")
@click.option("--ranks", callback=parse_numbers, default="2,4,8,16,32,64", show_default=True, metavar="N,...")
@click.option(
    "--ways",
    callback=parse_names,
    default="hpc-kit,hpc-kit torchrun,plain srun,plain torchrun",
    show_default=True,
    metavar="NAME,...",
    help="Plain: a script by hand.",
)
@click.option("--nodes", type=click.IntRange(1), default=4, show_default=True, help="At most.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds for one start.")
@CLUSTER_OPTION
@bench_options
def start_command(cluster: str | None, out: Path | None, as_json: bool, **asked: object) -> int:
    """From the command to the first training step: queue, srun, imports, rendezvous, model, data.

    Each start is a job, submitted when the previous one has ended. The command also works inside a job.

    Exit status 2 if the nodes do not divide the ranks. Jobs that Slurm refuses get a note below the table.
    """
    from hpc_kit.bench import startup
    from hpc_kit.spec import search_path

    question = startup.StartOptions(**asked)  # type: ignore[arg-type]
    slurm = open_session(cluster)
    slurm.client.check_available(slurm.cluster.name)
    root = search_path.current_folder()
    jobs = next(folder for folder in search_path.search_folders("jobs", root) if (folder / startup.PROGRAM).is_file())
    slurm.runs.mkdir(parents=True, exist_ok=True)
    environ, gpus = slurm.client.environ, slurm.cluster.node.gpus
    gpus = startup.gpus_per_node(environ) if gpus is None else gpus
    reached = startup.SubmitSettings(cluster, environ, (jobs / startup.PROGRAM).resolve(), slurm.runs.resolve(), gpus)
    question.check()
    return run_bench(
        "start",
        startup.TITLE,
        startup.COLUMNS,
        question._asdict(),
        lambda sheet: startup.measure_startup(question, sheet, reached),
        out=out,
        as_json=as_json,
    )


@command.command("dp")
@click.option(
    "--ways",
    callback=parse_names,
    default="one process,nn.DataParallel,DDP by spawn,DDP by srun,DDP by torchrun",
    show_default=True,
    metavar="NAME,...",
)
@click.option("--ranks", type=click.IntRange(1), default=2, show_default=True, help="Processes of DDP, on this node.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True)
@click.option("--global-batch", type=click.IntRange(1), default=64, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds for one training.")
@CLUSTER_OPTION
@bench_options
def dp_command(cluster: str | None, out: Path | None, as_json: bool, **asked: object) -> int:
    """Compare nn.DataParallel with DistributedDataParallel, started by spawn, srun and torchrun, on one node.

    Exit status 2 if the ranks do not divide the batch or do not fit. A way that fails gets a note.
    """
    from hpc_kit.bench import data_parallel

    question = data_parallel.DataParallelOptions(**asked)  # type: ignore[arg-type]
    slurm = open_session(cluster)
    slurm.client.check_available(slurm.cluster.name)
    question.check()
    return run_bench(
        "dp",
        data_parallel.TITLE,
        data_parallel.COLUMNS,
        question._asdict(),
        lambda sheet: data_parallel.measure_data_parallel(question, sheet, slurm.client.environ),
        out=out,
        as_json=as_json,
    )


@command.command("strategies")
@click.option(
    "--only", callback=parse_names, default="all", show_default=True, metavar="NAME,...", help="ddp,zero3,pipeline"
)
@click.option("--ranks", type=click.IntRange(1), help="[default: 4, or those of the job]")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--layers", type=click.IntRange(1), default=8, show_default=True, help="Of the model.")
@click.option("--width", type=click.IntRange(1), default=128, show_default=True, help="Of the model.")
@click.option("--heads", type=click.IntRange(1), default=8, show_default=True, help="Of the model.")
@click.option("--global-batch", type=click.IntRange(1), default=64, show_default=True)
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds for one training.")
@bench_options
def strategies_command(
    only: tuple[str, ...], ranks: int | None, out: Path | None, as_json: bool, **asked: object
) -> int:
    """Measure every way of splitting a training with the same model, batch and ranks: speed, memory, communication.

    A table of advice follows, next to the measured order.

    Exit status 1 if a rank failed, 2 if the ranks do not divide the model or do not fit into memory.
    """
    from hpc_kit.bench import strategies
    from hpc_kit.bench.local_ranks import rank_count

    wanted = {} if only == ("all",) else {"strategies": only}
    question = strategies.StrategyOptions(**wanted, **asked, ranks=rank_count(ranks, 4))  # type: ignore[arg-type]
    question.check()
    return run_bench(
        "strategies",
        strategies.TITLE,
        strategies.COLUMNS,
        question._asdict(),
        lambda sheet: strategies.measure_strategies(question, sheet),
        out=out,
        as_json=as_json,
    )


_FILE = click.Path(path_type=Path, dir_okay=False)


@command.command("compare")
@click.argument("first", type=_FILE, metavar="A.json")
@click.argument("second", type=_FILE, metavar="B.json")
@click.option("--despite", default="", metavar="load,machine", help="Differences to allow between the two.")
@click.option("--json", "as_json", is_flag=True, help="A JSON document.")
def compare_command(first: Path, second: Path, despite: str, as_json: bool) -> None:
    """Print the ratio B / A of each quantity of each common row, with one standard error.

    Exit status 1 if the results come from different machines or different load, 2 if a file is not a result.
    """
    from hpc_kit.bench import results
    from hpc_kit.bench.comparison import compare

    one, other = results.read_result(first), results.read_result(second)
    found = compare(one, other, tuple(filter(None, despite.split(","))))
    if as_json:
        ratios = [{**each._asdict(), "labels": each.labels} for each in found.ratios]
        click.echo(json.dumps({**found._asdict(), "ratios": ratios}, indent=1))
    else:
        click.echo("\n".join(_comparison_lines(found, one)))


def _comparison_lines(found: Comparison, one: BenchResult) -> list[str]:
    from hpc_kit.bench import markdown_report
    from hpc_kit.bench.results import format_label

    labels = list(dict.fromkeys(name for each in found.ratios for name in each.labels))
    rows = [
        [*(format_label(each.labels.get(name), name) for name in labels), *_comparison_cells(each, one)]
        for each in found.ratios
    ]
    lines = markdown_report.render_table([*labels, "quantity", "A", "B", "B / A", ""], rows, left=len(labels) + 1)
    sides = (("A", found.only_first, found.labels_only_first), ("B", found.only_second, found.labels_only_second))
    alone = [
        f"only in {name}: {number} row{'s' * (number > 1)}" + (f" ({named})" if named else "")
        for name, number, named in sides
        if number
    ]
    return [*lines, *(text for note in (*found.notes, *alone) for text in ("", note))]


def _comparison_cells(each: Ratio, one: BenchResult) -> list[str]:
    from hpc_kit.bench.results import format_number, format_quantity

    column = one.columns[each.column]
    error = f" +- {format_number(each.uncertainty, 2)}" if each.uncertainty else ""  # counts have no uncertainty
    values = [format_quantity(each.first, column.unit), format_quantity(each.second, column.unit)]
    return [column.title or each.column.replace("_", " "), *values, f"{each.ratio:.3f}{error}", each.verdict]


@command.command("plot")
@click.argument("result", type=click.Path(path_type=Path), metavar="BENCH.json")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="[default: beside it]")
def plot_command(result: Path, out: Path | None) -> None:
    """Draw the plots of a result as PNG and SVG, for results from a machine without matplotlib.

    Exit status 1 if the result has no rows, 2 if the file is not a result or matplotlib is missing.
    """
    from hpc_kit.bench import plots, results

    found = results.read_result(result)
    if not found.plots:
        raise RecordError(
            f"{short_path(result)} names no picture",
            found="it was interrupted before its rows",
            remedy="measure it again",
        )
    for path in plots.draw_files(found, out or result.parent):
        click.echo(short_path(path))
