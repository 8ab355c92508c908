"""`hpc-kit plan`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import structs

from hpc_kit.errors import AnswerNo, SpecError

if TYPE_CHECKING:
    from hpc_kit.planner.job_files import JobModel
    from hpc_kit.planner.model import Model
    from hpc_kit.planner.search import PlanningTask, SearchResult
    from hpc_kit.planner.target import PlanningTarget
    from hpc_kit.spec.job import Job


F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)


def _option(*names: str, **words: Any) -> Any:
    """Return a dataclass field that becomes an option; `words` are the arguments of click.option."""
    return field(metadata={"names": names, "words": words})


@dataclass(frozen=True)
class PlanOptions:
    """The options of `hpc-kit plan`."""

    model: str | None = _option(
        "--model", metavar="MODEL", help="A name, the path of a config.json, or layers=32,hidden=4096,heads=32."
    )
    cluster: str | None = _option(
        "--cluster", metavar="NAME", help="A cluster file, or a machine such as dgx-h100 [default: as submit]."
    )
    nodes: int | None = _option("--nodes", type=click.IntRange(1, 100_000), help="Nodes [default: the job's, or 1].")
    global_batch: int | None = _option(
        "--global-batch", type=click.IntRange(1), help="Sequences per step [default: that of the job, or 1024]."
    )
    seq_len: int | None = _option(
        "--seq-len", type=click.IntRange(1), help="Tokens per sequence [default: that of the model]."
    )
    gpu: str | None = _option(
        "--gpu", help="Kind of GPU in place of the cluster's, or NAME:memory=80,memory_tb=2,tflops=312,link=300."
    )
    gpus_per_node: int | None = _option(
        "--gpus-per-node", type=click.IntRange(1, 1024), help="In place of the cluster's."
    )
    network: float | None = _option(
        "--network",
        type=float,
        metavar="GBPS",
        help="Network bandwidth per GPU in Gb/s [default: that of the cluster].",
    )
    framework: str | None = _option(
        "--framework",
        help="Framework constants: torchtitan, megatron, nanotron ... [default: that of the job, or torch].",
    )
    precision: str | None = _option(
        "--precision",
        type=click.Choice(["bf16", "fp16", "fp8"]),
        help="Precision of matrix products [default: that of the job, or bf16].",
    )
    flash: bool | None = _option(
        "--flash/--no-flash", default=None, help="Attention without an s x s matrix [default: the job's, or --flash]."
    )
    tokens: float | None = _option("--tokens", type=float, help="Tokens to train on [default: 20 per parameter].")
    storage: float = _option(
        "--storage", type=float, default=5.0, show_default=True, help="GB/s to which checkpoints are written."
    )
    top: int = _option("--top", type=click.IntRange(1), default=8, show_default=True, help="Layouts to show.")
    explain: bool = _option("--explain", is_flag=True, help="Every term of the first layout, with its formula.")
    write: Path | None = _option(
        "--write",
        type=FILE,
        metavar="FILE",
        help="Write the first layout, or one that fits with a margin, as a job file.",
    )
    plot: Path | None = _option("--plot", type=FILE, metavar="FILE", help="Plot time and memory of the layouts.")
    as_json: bool = _option("--json", is_flag=True, help="Everything as a JSON object.")
    cases: Path | None = _option("--cases", type=FILE, metavar="CSV", help="Predict the runs of this file ...")
    output: Path | None = _option("--output", type=FILE, metavar="CSV", help="... into this one.")
    measured: Path | None = _option("--measured", type=FILE, metavar="FILE", help="Measured numbers of the cluster.")
    comm: Path | None = _option("--comm", type=FILE, metavar="FILE", help="calibrate: results of bench comm --json.")


def plan_options(function: F) -> F:
    """Add all options of PlanOptions to a command, which receives their values by name."""
    for each in reversed(fields(PlanOptions)):
        names, words = each.metadata["names"], each.metadata["words"]
        function = click.option(*names, each.name, **words)(function)
    return function


CASES_OPTIONS = frozenset({"cases", "output"})
CALIBRATION_OPTIONS = frozenset({"cluster", "measured", "comm"})


def check_other_options(mode: str, allowed: frozenset[str]) -> None:
    """Check that the command line contains only the options that one mode of `plan` uses.

    Raises:
        SpecError: The command line contains other options.
    """
    context = click.get_current_context()
    given = [
        each.metadata["names"][0].partition("/")[0]
        for each in fields(PlanOptions)
        if each.name not in allowed
        and context.get_parameter_source(each.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if context.meta.get("program"):
        given.append("a program behind --")
    if given:
        own = [each.metadata["names"][0] for each in fields(PlanOptions) if each.name in allowed]
        raise SpecError(f"{mode} does not take {', '.join(given)}", remedy=f"it takes {', '.join(own)}")


class PlanCommand(click.Command):
    """A command that accepts a program after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove the program before click parses the rest."""
        own, program = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta["program"] = tuple(program)
        return super().parse_args(ctx, own)


@click.command("plan", cls=PlanCommand)
@click.argument("job", required=False)
@plan_options
def command(job: str | None, **given: Any) -> int:
    """Find the best layout: time and memory of every possible layout on a cluster.

    \b
    hpc-kit plan --model llama3-8b --cluster dgx-h100 --nodes 4 --global-batch 1024
    hpc-kit plan ddp_4node                     the model and nodes of a job
    hpc-kit plan --cases cases.csv --output predictions.csv
    hpc-kit plan calibrate --cluster mine      submits a job that measures the cluster

    --write jobs/x.toml writes the first layout, or one that fits with a margin, as a job file. A program after --
    becomes its command.
    """  # noqa: D301 - click keeps the line breaks of a paragraph that begins with a backspace
    options = PlanOptions(**given)
    if options.cases is not None or options.output is not None:
        return _predict(job, options)
    if job == "calibrate":
        from hpc_kit.cli.plan_files import calibrate_cluster

        check_other_options("plan calibrate", CALIBRATION_OPTIONS)
        return calibrate_cluster(options.cluster, options.measured, options.comm)
    if options.comm is not None:
        raise SpecError("--comm belongs to plan calibrate", remedy="hpc-kit plan calibrate --cluster mine --comm FILE")
    from hpc_kit.cli.plan import search_layouts

    return search_layouts(job, options, click.get_current_context().meta.get("program", ()))


def _predict(job: str | None, options: PlanOptions) -> int:
    if options.cases is None or options.output is None:
        raise SpecError("--cases and --output go together", remedy="--cases cases.csv --output predictions.csv")
    if job is not None:
        raise SpecError(f"--cases predicts the runs of a file, not job {job}", remedy="one of the two")
    from hpc_kit.cli.plan_files import predict_cases

    check_other_options("plan --cases", CASES_OPTIONS)
    return predict_cases(options.cases, options.output)


# ruff: noqa: RUF009 - option() is field()


def search_layouts(name: str | None, given: PlanOptions, program: tuple[str, ...]) -> int:
    """Search the layouts, print them, and write the files that the options name.

    Raises:
        SpecError: An option is invalid.
        AnswerNo: Nothing fits.
    """
    from hpc_kit.cli import plan_files, plan_tables
    from hpc_kit.planner.advice import advise
    from hpc_kit.planner.search import search_layouts

    root = Path.cwd()
    if name is not None and program:
        raise SpecError(
            f"a program after --, but job {name} has its own command",
            found=" ".join(program),
            remedy="name the job alone, or use --model and --nodes with the program",
        )
    if given.write is not None:
        plan_files.check_job_file(given.write)
    job = _load_job(name, root)
    task, target = _planning_task(job, given, root)
    answer = search_layouts(task, target.rates)
    if not answer.plans:
        raise _nothing_fits_error(task, answer, target, given, root)
    tokens = 20.0 * task.model.parameters if given.tokens is None else given.tokens
    if not 0 < tokens < 1e18 or not given.storage > 0:
        raise SpecError("--tokens and --storage must be positive", remedy="--tokens 1e12 --storage 5")
    advice = advise(task, target.rates, answer.plans)
    found = plan_tables.PlanReport(
        task, target, answer, advice, tokens, given.storage * 1e9, given.top, explained=given.explain
    )
    if given.as_json:
        plan_tables.print_json(found)
    else:
        plan_tables.print_report(found)
    if given.plot is not None:
        from hpc_kit.planner.explain import draw_plans

        draw_plans(found.shown, given.plot, task.machine.gpu.memory)
    if given.write is not None:
        plan_files.write_job_file(answer, found.limit, job, program, given.write, tokens)
    return 0


def _load_job(name: str | None, root: Path) -> Job | None:
    from hpc_kit.spec import load

    return None if name is None else load.load_job(name, root=root)


def _planning_task(job: Job | None, given: PlanOptions, root: Path) -> tuple[PlanningTask, PlanningTarget]:
    from hpc_kit.planner import job_files
    from hpc_kit.planner.search import PlanningTask
    from hpc_kit.planner.target import parse_framework

    means = job_files.planned_settings(job) if job is not None else job_files.PlannedSettings()
    framework = parse_framework(given.framework or means.framework or "torch")
    flash = means.flash is not False if given.flash is None else given.flash
    # With --model the job only contributes its batch size and its nodes.
    told = structs.replace(job, env={}) if job is not None and given.model is not None else job
    own = job_files.model_of_job(told) if told is not None else None
    model, length, notes = _choose_model(job, own, given)
    found = _find_target(job if own else None, given, framework, root)
    nodes = given.nodes or (job.resources.nodes if job and isinstance(job.resources.nodes, int) else None) or 1
    task = PlanningTask(
        model=model,
        machine=found.machine,
        gpus=nodes * found.machine.gpus_per_node,
        global_batch=given.global_batch or (own.global_batch if own else 1024),
        seq_len=given.seq_len or length,
        framework=framework,
        precision=given.precision or means.precision or "bf16",
        flash=flash,
    )
    if task.precision == "bf16" and not found.machine.gpu.bf16:
        task = structs.replace(task, precision="fp16")
        notes.append(f"fp16, for {found.machine.gpu.name} has no bf16")
    return task, structs.replace(found, notes=(*found.notes, *notes))


def _choose_model(job: Job | None, own: JobModel | None, given: PlanOptions) -> tuple[Model, int, list[str]]:
    """Return the model, its tokens per sequence, and notes about both.

    Raises:
        SpecError: No model is given, or the job contradicts itself.
    """
    from hpc_kit.planner import job_files, model_catalogue

    if given.model is not None:
        model = model_catalogue.parse_model(given.model)
        length, note = model_catalogue.default_seq_len(model, given.model)
        return model, length, [note] if note and given.seq_len is None else []
    if job is None or own is None:
        raise SpecError(
            "which model?" if job is None else f"job {job.name} does not name its model",
            found=None if job is None else " ".join(job.command),
            remedy="--model llama3-8b, --model path/config.json, or --model layers=32,hidden=4096,heads=32",
        )
    job_files.check_job_model(own, job)
    said = f"job {job.name} does not describe its model completely; assumed: {own.assumed}; --model sets it"
    return own.model, own.seq_len, [said] if own.assumed else []


def _find_target(job: Job | None, given: PlanOptions, framework: str, root: Path) -> PlanningTarget:
    """Return the machine. The ranks per node of a job set its GPUs per node."""
    from hpc_kit.planner.target import resolve_target
    from hpc_kit.spec.default_cluster import default_cluster_name

    ranks = None
    if job is not None and not given.gpu:
        ranks = job.launch.nproc_per_node if job.launch.starts_agents else job.resources.ntasks_per_node
    found = resolve_target(
        given.cluster or default_cluster_name(root, os.environ),
        root,
        framework=framework,
        gpu=given.gpu,
        gpus_per_node=given.gpus_per_node or ranks,
        network=given.network,
        measurement=given.measured,
    )
    if _is_cluster_missing(found, given):
        return structs.replace(found, notes=(*found.notes, f"no cluster is named: {_list_machines()}"))
    return found


def _is_cluster_missing(found: PlanningTarget, given: PlanOptions) -> bool:
    """Return whether the target is the CPUs of this machine only because no cluster was named."""
    return given.cluster is None and given.model is not None and found.machine.gpu.generation == "cpu"


def _list_machines() -> str:
    from hpc_kit.planner import hardware

    return f"--cluster {', '.join(hardware.machine_names())}, or a cluster file whose [node] table names its GPUs"


def _nothing_fits_error(
    task: PlanningTask, answer: SearchResult, target: PlanningTarget, given: PlanOptions, root: Path
) -> AnswerNo:
    """Return the error for a search without result."""
    from hpc_kit.planner.search import explain_no_fit
    from hpc_kit.spec.default_cluster import default_cluster_name

    if not _is_cluster_missing(target, given):
        return explain_no_fit(task, answer, target.rates)
    return AnswerNo(
        f"no cluster is named, and {task.model.name} does not fit on {task.gpus} x cpu",
        found=f"cluster {default_cluster_name(root, os.environ)}, which has no GPUs",
        remedy=_list_machines(),
    )
