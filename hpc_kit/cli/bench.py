"""`hpc-kit bench`: the measurements, and the commands that compare and plot their results."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpc_kit.bench import collectives, data_parallel, model_memory, pipeline, processes, startup, strategies
from hpc_kit.bench.local_ranks import count_ranks_of_step, rank_count, run_ranks
from hpc_kit.bench.results import BenchResult, column_title, format_label, format_number, format_quantity, read_result
from hpc_kit.bench.training_runs import find_training_program
from hpc_kit.cli.bench_output import parse_names, parse_numbers, run_bench
from hpc_kit.cli.groups import OrderedGroup
from hpc_kit.cli.options import CLUSTER_OPTION, FILE, FOLDER, JSON_OPTION, NumberRange, open_session
from hpc_kit.cli.output import short_path
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import RecordError
from hpc_kit.slurm.units import format_count

if TYPE_CHECKING:
    from hpc_kit.bench.comparison import Comparison
    from hpc_kit.bench.recorder import Recorder

Measurement = tuple[Any, Callable[["Recorder"], None]]
"""The options of a benchmark and the function that measures with them."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@click.group("bench", cls=OrderedGroup)
@click.pass_context
def command(context: click.Context) -> None:
    """Measure this machine and its network."""
    # Benchmarks start processes of their own, which must end with the command.
    context.with_resource(processes.interruptible())


RESULT_OPTIONS = (
    click.Option(
        ["--out"],
        type=FOLDER,
        metavar="FOLDER",
        help="Folder of the result files [default: the run folder in a job, else runs/bench_NAME/TIME].",
    ),
    click.Option(["--json", "as_json"], is_flag=True, help="Print the results as JSON; write files only with --out."),
)


def bench_command(name: str, line: str, module: ModuleType) -> Callable[[Callable[..., Measurement]], click.Command]:
    """Make a bench command from a function that returns the options of a benchmark and its measurement.

    `line` is its line in the help of `bench`; the module has the title and the columns of the benchmark.
    """

    def decorate(prepare: Callable[..., Measurement]) -> click.Command:
        @wraps(prepare)
        def run(out: Path | None, as_json: bool, **values: object) -> int:
            options, measure = prepare(**values)
            return run_bench(name, module.TITLE, module.COLUMNS, options._asdict(), measure, out=out, as_json=as_json)

        bench = command.command(name, short_help=line)(run)
        # The last options in the help of every benchmark.
        bench.params += RESULT_OPTIONS
        return bench

    return decorate


def options_of_class(options: Any, **fields: str | Callable[..., Any]) -> Callable[[Decorated], Decorated]:
    """Add an option for each field of a NamedTuple. The default of the field determines the type of the option.

    `fields` contains help texts by name of the field, or a whole option in place of the one made here.
    """

    def decorate(function: Decorated) -> Decorated:
        # Decorators add their option before the earlier ones: the help has the order of the fields.
        for name, default in reversed(options._field_defaults.items()):
            text = fields.get(name)
            if callable(text):
                function = text(function)
                continue
            settings: dict[str, Any] = {"default": default, "show_default": default not in {(), False}}
            if isinstance(default, bool):
                settings["is_flag"] = True
            elif isinstance(default, tuple):
                is_numbers = bool(default) and isinstance(default[0], int)
                settings["default"] = ",".join(map(str, default))
                settings["callback"] = parse_numbers if is_numbers else parse_names
                settings["metavar"] = "N,..." if is_numbers else "NAME,..."
            else:
                settings["type"] = click.IntRange(1) if isinstance(default, int) else NumberRange(1)
            function = click.option(f"--{name.replace('_', '-')}", help=text, **settings)(function)
        return function

    return decorate


def _measured_by_ranks(module: str, options: Any, *, launcher: str | None = None, mpi: bool = False) -> Measurement:
    """Return the options, and the measurement by a module of `hpc_kit.bench` in each of `options.ranks` ranks."""

    def measure(recorder: Recorder) -> None:
        name = f"hpc_kit.bench.{module}"
        run_ranks(name, options._asdict(), recorder, ranks=options.ranks, launcher=launcher, mpi=mpi)

    return options, measure


def ranks_option(default: int) -> Callable[[Decorated], Decorated]:
    """Add `--ranks`. In a job, the ranks of the step measure."""
    text = f"Number of ranks [default: {default}, or those of the step]."

    def count(_context: object, _parameter: object, requested: int | None) -> int:
        return rank_count(requested, default)

    return click.option("--ranks", type=click.IntRange(1), metavar="N", help=text, callback=count)


@bench_command("comm", "collectives of gloo, mpi and nccl; ring and star algorithms; links", collectives)
@options_of_class(
    collectives.CommOptions,
    backends="gloo, mpi, nccl; auto: all that work here.",
    collectives="all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send_recv; or all.",
    ranks=ranks_option(2),
    sizes=click.option(
        "--sizes",
        default="4KiB,4MiB,64MiB",
        show_default=True,
        metavar="SIZE,...",
        callback=lambda _context, _parameter, text: collectives.parse_sizes(text),
        help="4096, 4KiB, or 1KiB-256MiB.",
    ),
    algorithms="ring, star: all-reduces of plain messages beside the library's.",
    links="Latency and bandwidth between each two ranks.",
)
@click.option(
    "--launcher", metavar="WORDS", help="Command that starts the ranks [default: mpirun, or plain processes]."
)
def comm_command(launcher: str | None, **values: Any) -> Measurement:
    """Time collectives of several backends, side by side in the same processes.

    In a step of several ranks (srun hpc-kit bench comm), the tasks of the step are the ranks. Otherwise the command
    starts them.

    Exit status 1 if a rank failed; 2 if a name or size is invalid, mpirun or a backend is missing, or the sizes exceed
    the memory; 130 after Ctrl-C, with the results so far.
    """
    step = count_ranks_of_step()
    options = collectives.CommOptions(**values).resolve(step)
    options.check(step, elsewhere=launcher is not None)
    return _measured_by_ranks("collectives_rank", options, launcher=launcher, mpi="mpi" in options.backends)


@bench_command("pipeline", "a model on one and on two devices; efficiency of pipeline schedules", pipeline)
@options_of_class(
    pipeline.PipelineOptions,
    image="Pixels along a side.",
    batch="Images.",
    batches="Batches in a repeat.",
    schedules="torch's names.",
    ranks=ranks_option(2),
)
@click.option("--full", is_flag=True, help="The tutorial's size: images of 128 x 128, 3 batches, 10 repeats; hours.")
def pipeline_command(full: bool, **values: Any) -> Measurement:
    """ResNet-50 on one device, on two, and in splits; then the schedules of a pipeline.

    splits: PyTorch's tutorial of model parallelism with two single-threaded ranks, or two GPUs.
    schedules: efficiency against m / (m + p - 1), for equal stages.

    Exit status 1 if a rank failed, 2 if a number is out of range or does not fit into memory.
    """
    options = pipeline.PipelineOptions(**values | (pipeline.FULL if full else {}))
    options.check()
    return _measured_by_ranks("pipeline_rank", options)


OFFLOAD = {"both": (False, True), "yes": (True,), "no": (False,)}


@bench_command("memory", "memory of a rank under DDP and ZeRO-1, -2, -3, compared with the formulas", model_memory)
@options_of_class(
    model_memory.MemoryOptions,
    offload=click.option("--offload", type=click.Choice(tuple(OFFLOAD)), default="both", show_default=True),
    layers="Square matrices, all alike.",
    width="Width of each matrix.",
    rows="Rows in the batch of a rank.",
    ranks=ranks_option(4),
)
def memory_command(offload: str, **values: Any) -> Measurement:
    """Compare the model states of a rank with formulas.

    They are 16 P for DDP, and 4 P + 12 P / d, 2 P + 14 P / d and 16 P / d for ZeRO-1, -2 and -3.

    Exit status 1 if a rank failed, 2 if a way does not exist or the model does not fit into memory.
    """
    options = model_memory.MemoryOptions(offload=OFFLOAD[offload], **values)
    options.check()
    return _measured_by_ranks("model_memory_rank", options)


@bench_command("start", "time from the command to the first step, compared with hand-written scripts", startup)
@options_of_class(
    startup.StartOptions, ways="Plain: a script by hand.", nodes="At most.", timeout="Seconds for one start."
)
@CLUSTER_OPTION
def start_command(cluster: str | None, **values: Any) -> Measurement:
    """From the command to the first training step: queue, srun, imports, rendezvous, model, data.

    Each start is a job, submitted when the previous one has ended. The command also works inside a job.

    Exit status 2 if the nodes do not divide the ranks. Jobs that Slurm refuses get a note below the table.
    """
    options = startup.StartOptions(**values)
    options.check()
    session = open_session(cluster)
    session.client.check_available(session.cluster.name)
    program = find_training_program("first_step.py")
    session.runs.mkdir(parents=True, exist_ok=True)
    gpus = session.cluster.node.gpus
    gpus = startup.gpus_per_node(session.client) if gpus is None else gpus
    slurm = startup.SubmitSettings(cluster, session.client, program, session.runs.resolve(), gpus)
    return options, partial(startup.measure_startup, options, slurm=slurm)


@bench_command("dp", "nn.DataParallel and DistributedDataParallel; spawn and srun", data_parallel)
@options_of_class(
    data_parallel.DataParallelOptions,
    ranks="Processes of DDP, on this node.",
    timeout="Time limit of one run, in seconds.",
)
@CLUSTER_OPTION
def dp_command(cluster: str | None, **values: Any) -> Measurement:
    """Compare nn.DataParallel with DistributedDataParallel, started by spawn, srun and torchrun, on one node.

    Exit status 2 if the ranks do not divide the batch or do not fit. A way that fails gets a note.
    """
    options = data_parallel.DataParallelOptions(**values)
    session = open_session(cluster)
    session.client.check_available(session.cluster.name)
    options.check()
    return options, partial(data_parallel.measure_data_parallel, options, environ=session.client.environ)


@bench_command("strategies", "all ways to split the training, compared with the usual advice", strategies)
@options_of_class(
    strategies.StrategyOptions,
    strategies=click.option(
        "--only",
        "strategies",
        callback=parse_names,
        default="all",
        show_default=True,
        metavar="NAME,...",
        help="ddp,zero3,pipeline",
    ),
    ranks=ranks_option(4),
    layers="Of the model.",
    width="Of the model.",
    heads="Of the model.",
    timeout="Time limit of one run, in seconds.",
)
def strategies_command(**values: Any) -> Measurement:
    """Measure all ways to split the training, with the same model, batch and ranks: speed, memory, communication.

    A table of advice follows, next to the measured order.

    Exit status 1 if a rank failed, 2 if the ranks do not divide the model or do not fit into memory.
    """
    if values["strategies"] == ("all",):  # the default of the class
        del values["strategies"]
    options = strategies.StrategyOptions(**values)
    options.check()
    return _measured_by_ranks("strategies", options)


@command.command("compare", short_help="compare two results of one benchmark, with uncertainties")
@click.argument("first", type=FILE, metavar="A.json")
@click.argument("second", type=FILE, metavar="B.json")
@click.option("--despite", default="", metavar="load,machine", help="Differences to allow between the two.")
@JSON_OPTION
def compare_command(first: Path, second: Path, despite: str, as_json: bool) -> None:
    """Print the ratio B / A of each quantity of each common row, with one standard error.

    Exit status 1 if the results come from different machines or different load, 2 if a file is not a result.
    """
    from hpc_kit.bench.comparison import compare_results

    one, other = read_result(first), read_result(second)
    comparison = compare_results(one, other, tuple(filter(None, despite.split(","))))
    if as_json:
        ratios = [{**each._asdict(), "labels": each.labels} for each in comparison.ratios]
        echo(json.dumps({**comparison._asdict(), "ratios": ratios}, indent=1))
    else:
        echo("\n".join(_comparison_lines(comparison, one)))


def _comparison_lines(comparison: Comparison, one: BenchResult) -> list[str]:
    from hpc_kit.bench import markdown_report

    labels = list(dict.fromkeys(name for each in comparison.ratios for name in each.labels))
    rows = []
    for each in comparison.ratios:
        column = one.columns[each.column]
        error = f" +- {format_number(each.uncertainty, 2)}" if each.uncertainty else ""  # counts have no uncertainty
        values = (format_quantity(value, column.unit) for value in (each.first, each.second))
        cells = [column_title(each.column, column), *values, f"{each.ratio:.3f}{error}", each.verdict]
        rows.append([*(format_label(each.labels.get(name), name) for name in labels), *cells])
    lines = markdown_report.render_table([*labels, "quantity", "A", "B", "B / A", ""], rows, left=len(labels) + 1)
    sides = (
        ("A", comparison.only_first, comparison.labels_only_first),
        ("B", comparison.only_second, comparison.labels_only_second),
    )
    unmatched = [
        f"only in {name}: {format_count(number, 'row')}" + (f" ({names})" if names else "")
        for name, number, names in sides
        if number
    ]
    return [*lines, *(text for note in (*comparison.notes, *unmatched) for text in ("", note))]


@command.command("plot", short_help="draw the plots of a result")
@click.argument("result", type=FILE, metavar="BENCH.json")
@click.option("--out", type=FOLDER, metavar="FOLDER", help="[default: beside it]")
def plot_command(result: Path, out: Path | None) -> None:
    """Draw the plots of a result as PNG and SVG, for results from a machine without matplotlib.

    Exit status 1 if the result has no rows, 2 if the file is not a result or matplotlib is missing.
    """
    from hpc_kit.bench import plots

    document = read_result(result)
    if not document.plots:
        raise RecordError(
            f"{short_path(result)} names no picture",
            found="it was interrupted before its rows",
            remedy="measure it again",
        )
    for path in plots.draw_files(document, out or result.parent):
        echo(short_path(path))
