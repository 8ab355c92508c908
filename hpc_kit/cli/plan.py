"""`hpc-kit plan`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from hpc_kit.cli import plan_files, plan_tables
from hpc_kit.cli.job_arguments import split_program
from hpc_kit.cli.options import FILE
from hpc_kit.errors import AnswerNo, SpecError
from hpc_kit.planner import hardware, job_files, model_catalogue, search
from hpc_kit.planner.advice import advise
from hpc_kit.planner.job_files import JobModel
from hpc_kit.planner.search import PlanningTask, SearchResult
from hpc_kit.planner.target import PlanningTarget, parse_framework, resolve_target
from hpc_kit.planner.transformer import Transformer
from hpc_kit.spec import load
from hpc_kit.spec.default_cluster import default_cluster_name
from hpc_kit.spec.job import Job
from hpc_kit.spec.toml_documents import check_new


def _option(*names: str, **settings: Any) -> Any:
    """Return a field that becomes an option of the command line; `settings` are those of click.option."""
    return field(metadata={"names": names, "settings": settings})


# ruff: noqa: RUF009 - _option() is field()


@dataclass(frozen=True)
class PlanOptions:
    """The options of `hpc-kit plan`."""

    model: str | None = _option(
        "--model", metavar="MODEL", help="A name, the path of a config.json, or layers=32,hidden=4096,heads=32."
    )
    cluster: str | None = _option(
        "--cluster", metavar="NAME", help="A cluster file, or a machine such as dgx-h100 [default: as for submit]."
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
    offload: bool = _option(
        "--offload",
        is_flag=True,
        help="Gradients and optimizer states in the memory of the hosts [default: the job's].",
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


CASES_OPTIONS = frozenset({"cases", "output"})
CALIBRATION_OPTIONS = frozenset({"cluster", "measured", "comm"})


def check_other_options(mode: str, allowed: frozenset[str]) -> None:
    """Check that the command line contains only the options that one mode of `plan` uses.

    Raises:
        SpecError: The command line contains other options.
    """
    context = click.get_current_context()
    flags = {each.name: each.metadata["names"][0].partition("/")[0] for each in fields(PlanOptions)}
    # An option that is given with its default value counts, too.
    typed = click.core.ParameterSource.COMMANDLINE
    refused = [
        flag for name, flag in flags.items() if name not in allowed and context.get_parameter_source(name) is typed
    ]
    if context.meta.get("program"):
        refused.append("a program behind --")
    if refused:
        remedy = f"it takes {', '.join(flag for name, flag in flags.items() if name in allowed)}"
        raise SpecError(f"{mode} does not take {', '.join(refused)}", remedy=remedy)


class PlanCommand(click.Command):
    """A command with the options of PlanOptions, which accepts a program after `--`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        # Fields of one class instead of decorators: the functions below take one typed value.
        self.params += [
            click.Option([*each.metadata["names"], each.name], **each.metadata["settings"])
            for each in fields(PlanOptions)
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove the program before click parses the rest."""
        return super().parse_args(ctx, split_program(ctx, args))


@click.command("plan", cls=PlanCommand)
@click.argument("job", required=False)
def command(job: str | None, **values: Any) -> int:
    """Find the best layout: time and memory of every possible layout on a cluster.

    \b
    hpc-kit plan --model llama3-8b --cluster dgx-h100 --nodes 4 --global-batch 1024
    hpc-kit plan ddp_4node                     the model and nodes of a job
    hpc-kit plan --cases cases.csv --output predictions.csv
    hpc-kit plan calibrate --cluster mine      submits a job that measures the cluster

    --write jobs/x.toml writes the first layout, or one that fits with a margin, as a job file. A program after --
    becomes its command.
    """  # noqa: D301 - click keeps the line breaks of a paragraph that begins with a backspace
    options = PlanOptions(**values)
    if options.cases is not None or options.output is not None:
        return _predict(job, options)
    if job == "calibrate":
        check_other_options("plan calibrate", CALIBRATION_OPTIONS)
        return plan_files.calibrate_cluster(options.cluster, options.measured, options.comm)
    if options.comm is not None:
        raise SpecError("--comm belongs to plan calibrate", remedy="hpc-kit plan calibrate --cluster mine --comm FILE")
    return _search_layouts(job, options, click.get_current_context().meta["program"])


def _predict(job: str | None, options: PlanOptions) -> int:
    if options.cases is None or options.output is None:
        raise SpecError("--cases and --output go together", remedy="--cases cases.csv --output predictions.csv")
    if job is not None:
        raise SpecError(f"--cases predicts the runs of a file, not job {job}", remedy="keep one of the two")
    check_other_options("plan --cases", CASES_OPTIONS)
    return plan_files.predict_cases(options.cases, options.output)


def _search_layouts(name: str | None, options: PlanOptions, program: tuple[str, ...]) -> int:
    """Search the layouts, print them, and write the files that the options name."""
    root = Path.cwd()
    if name is not None and program:
        raise SpecError(
            f"a program after --, but job {name} has its own command",
            found=" ".join(program),
            remedy="name the job alone, or use --model and --nodes with the program",
        )
    if options.write is not None:
        check_new(options.write, plan_files.WRITE_OPTION)
    job = None if name is None else load.load_job(name, root=root)
    task, target = _planning_task(job, options, root)
    result = search.search_layouts(task, target.fitted)
    if not result.plans:
        raise _nothing_fits_error(task, result, target, options, root)
    # 20 tokens for each parameter: Hoffmann et al., 2022 (arXiv:2203.15556).
    tokens = 20.0 * task.model.parameters if options.tokens is None else options.tokens
    if not 0 < tokens < 1e18 or not options.storage > 0:
        raise SpecError("--tokens and --storage must be positive", remedy="--tokens 1e12 --storage 5")
    advice = advise(task, target.fitted, result.plans)
    report = plan_tables.PlanReport(
        task, target, result, advice, tokens, options.storage * 1e9, options.top, explained=options.explain
    )
    if options.as_json:
        plan_tables.print_json(report)
    else:
        plan_tables.print_report(report)
    if options.plot is not None:
        from hpc_kit.planner.explain import draw_plans

        draw_plans(report.shown, options.plot, task.machine.gpu.memory)
    if options.write is not None:
        plan_files.write_job_file(result, job, program, options.write, tokens)
    return 0


def _planning_task(job: Job | None, options: PlanOptions, root: Path) -> tuple[PlanningTask, PlanningTarget]:
    settings = job_files.planned_settings(job) if job is not None else job_files.PlannedSettings()
    framework = parse_framework(options.framework or settings.framework or "torch")
    # With --model the job only contributes its batch size and its nodes. PLAN_MODEL in its [env] may be no model.
    described = structs.replace(job, env={}) if job is not None and options.model is not None else job
    job_model = job_files.model_of_job(described, root) if described is not None else None
    model, length, notes = _choose_model(job, job_model, options)
    target = _find_target(job if job_model else None, options, framework, root)
    machine = target.machine
    # A job may ask for a range of nodes, such as "2-4".
    nodes = options.nodes or (job.resources.nodes if job and isinstance(job.resources.nodes, int) else None) or 1
    precision = options.precision or settings.precision or "bf16"
    # bf16 is a default for all machines, but GPUs before Ampere compute in fp16 only.
    if precision == "bf16" and not machine.gpu.bf16:
        precision = "fp16"
        notes.append(f"fp16, for {machine.gpu.name} has no bf16")
    task = PlanningTask(
        model=model,
        machine=machine,
        gpus=nodes * machine.gpus_per_node,
        global_batch=options.global_batch or (job_model.global_batch if job_model else 1024),
        seq_len=options.seq_len or length,
        framework=framework,
        precision=precision,
        flash=settings.flash is not False if options.flash is None else options.flash,
        offload=options.offload or settings.offload,
    )
    return task, structs.replace(target, notes=(*target.notes, *notes))


def _choose_model(
    job: Job | None, job_model: JobModel | None, options: PlanOptions
) -> tuple[Transformer, int, list[str]]:
    """Return the model, its tokens per sequence, and notes about both."""
    if options.model is not None:
        model = model_catalogue.parse_model(options.model)
        length, note = model_catalogue.default_seq_len(model, options.model)
        return model, length, [note] if note and options.seq_len is None else []
    if job is None or job_model is None:
        raise SpecError(
            "which model?" if job is None else f"job {job.name} does not name its model",
            found=None if job is None else " ".join(job.command),
            remedy="--model llama3-8b, --model path/config.json, or --model layers=32,hidden=4096,heads=32",
        )
    job_files.check_job_model(job_model, job)
    assumed = job_model.assumed
    note = f"job {job.name} does not describe its model completely; assumed: {assumed}; --model sets it"
    return job_model.model, job_model.seq_len, [note] if assumed else []


def _find_target(job: Job | None, options: PlanOptions, framework: str, root: Path) -> PlanningTarget:
    """Return the machine. The ranks per node of a job set its GPUs per node."""
    ranks = None
    # --gpu describes another machine than the one for which the job was written.
    if job is not None and not options.gpu:
        ranks = job.launch.nproc_per_node if job.launch.starts_agents else job.resources.ntasks_per_node
    target = resolve_target(
        options.cluster or default_cluster_name(root, os.environ),
        root,
        framework=framework,
        gpu=options.gpu,
        gpus_per_node=options.gpus_per_node or ranks,
        network=options.network,
        measurement=options.measured,
    )
    if _is_cluster_missing(target, options):
        return structs.replace(target, notes=(*target.notes, f"no cluster is named: {_list_machines()}"))
    return target


def _is_cluster_missing(target: PlanningTarget, options: PlanOptions) -> bool:
    """Return whether the target is the CPUs of this machine only because no cluster was named."""
    return options.cluster is None and options.model is not None and target.machine.gpu.generation == "cpu"


def _list_machines() -> str:
    return f"--cluster {', '.join(hardware.machine_names())}, or a cluster file whose [node] table names its GPUs"


def _nothing_fits_error(
    task: PlanningTask, result: SearchResult, target: PlanningTarget, options: PlanOptions, root: Path
) -> AnswerNo:
    """Return the error for a search without result."""
    if not _is_cluster_missing(target, options):
        return search.explain_no_fit(task, result, target.fitted)
    return AnswerNo(
        f"no cluster is named, and {task.model.name} does not fit on {task.gpus} x cpu",
        found=f"cluster {default_cluster_name(root, os.environ)}, which has no GPUs",
        remedy=_list_machines(),
    )
