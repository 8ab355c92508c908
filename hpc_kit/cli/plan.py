"""`hpc-kit plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from hpc_kit.planner.search import Answer, Task
    from hpc_kit.planner.target import Target
    from hpc_kit.spec.job import Job


@dataclass(frozen=True)
class Options:
    """What the command line asks for, by the names of its options."""

    model: str | None
    cluster: str | None
    nodes: int | None
    global_batch: int | None
    seq_len: int | None
    gpu: str | None
    gpus_per_node: int | None
    network: float | None
    framework: str
    precision: str
    flash: bool
    tokens: float | None
    storage: float
    top: int
    explain: bool
    write: Path | None
    plot: Path | None
    as_json: bool
    measured: Path | None
    comm: Path | None


class PlanCommand(click.Command):
    """Takes a program behind `--` exactly as it stands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the program aside before click looks at the rest."""
        own, program = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta["program"] = tuple(program)
        return super().parse_args(ctx, own)


@click.command("plan", cls=PlanCommand)
@click.argument("job", required=False)
@click.option("--model", metavar="MODEL", help="A name, the path of a config.json, or layers=32,hidden=4096,heads=32.")
@click.option("--cluster", metavar="NAME", help="A cluster file, or a machine such as dgx-h100 [default: as submit].")
@click.option("--nodes", type=click.IntRange(1, 100_000), help="Nodes [default: the job's, or 1].")
@click.option("--global-batch", type=click.IntRange(1), help="Sequences a step [default: the job's, or 1024].")
@click.option("--seq-len", type=click.IntRange(1), help="Tokens a sequence [default: the model's].")
@click.option("--gpu", help="Kind of GPU in place of the cluster's, or NAME:memory=80,memory_tb=2,tflops=312,link=300.")
@click.option("--gpus-per-node", type=click.IntRange(1, 1024), help="In place of the cluster's.")
@click.option("--network", type=float, metavar="GBPS", help="Gb/s of network a GPU, in place of the cluster's.")
@click.option(
    "--framework", default="torch", show_default=True, help="Whose constants: torchtitan, megatron, nanotron ..."
)
@click.option(
    "--precision",
    type=click.Choice(["bf16", "fp16", "fp8"]),
    default="bf16",
    show_default=True,
    help="Of the matrix products.",
)
@click.option("--flash/--no-flash", default=True, help="Attention without an s x s matrix [default: --flash].")
@click.option("--tokens", type=float, help="Tokens to train on [default: 20 a parameter].")
@click.option("--storage", type=float, default=5.0, show_default=True, help="GB/s to which checkpoints are written.")
@click.option("--top", type=click.IntRange(1), default=8, show_default=True, help="Layouts to show.")
@click.option("--explain", is_flag=True, help="Every term of the first layout, with its formula.")
@click.option("--write", type=click.Path(path_type=Path), metavar="FILE", help="The first layout as a job file.")
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE", help="Time and memory of the layouts as a picture."
)
@click.option("--json", "as_json", is_flag=True, help="Everything as a JSON object.")
@click.option("--cases", type=click.Path(path_type=Path), metavar="CSV", help="Predict the runs of this file ...")
@click.option("--output", type=click.Path(path_type=Path), metavar="CSV", help="... into this one.")
@click.option("--measured", type=click.Path(path_type=Path), metavar="FILE", help="Measured numbers of the cluster.")
@click.option(
    "--comm", type=click.Path(path_type=Path), metavar="FILE", help="calibrate: results of bench comm --json."
)
def command(job: str | None, cases: Path | None, output: Path | None, **given: Any) -> int:
    """Find the layout to submit: every legal one on a cluster, with its time and memory.

    \b
    hpc-kit plan --model llama3-8b --cluster dgx-h100 --nodes 4 --global-batch 1024
    hpc-kit plan ddp_4node                     the model and nodes of a job
    hpc-kit plan --cases cases.csv --output predictions.csv
    hpc-kit plan calibrate --cluster mine      a job that measures the cluster's own numbers

    --write jobs/x.toml keeps the first as a job file; the program behind -- is its command.
    """  # noqa: D301 - a backspace is click's mark for lines that stay as they are
    if cases is not None or output is not None:
        return predict(cases, output)
    options = Options(**given)
    if job == "calibrate":
        from hpc_kit.cli.plan_calibrate import calibrate

        return calibrate(options.cluster, options.measured, options.comm)
    return plan(job, options)


def predict(cases: Path | None, output: Path | None) -> int:
    """The batch mode."""
    from hpc_kit.planner import cases as batch
    from hpc_kit.planner.rows import case

    if cases is None or output is None:
        raise SpecError("--cases and --output go together", remedy="--cases cases.csv --output predictions.csv")
    found = [batch.predict(case(row)) for row in batch.read(cases)]
    batch.write(output, found)
    without = [one for one in found if one.step_time is None]
    notes: dict[str, int] = {}
    for one in found:
        for note in one.notes if one.step_time is not None else ():
            notes[note] = notes.get(note, 0) + 1
    for one in without:
        click.echo(f"{one.case_id}: not predicted: {', '.join(one.notes)}", err=True)
    for note, count in sorted(notes.items(), key=lambda pair: -pair[1]):
        click.echo(f"taken for granted in {count} of {len(found)} runs: {note}", err=True)
    click.echo(f"{len(found) - len(without)} of {len(found)} runs predicted: {output}")
    return 0


def plan(job: str | None, given: Options) -> int:
    """The search, shown."""
    from hpc_kit.cli import plan_tables
    from hpc_kit.planner.advice import advise
    from hpc_kit.planner.search import refuse, search

    root = Path.cwd()
    base = _base(job, root)
    task, target = _task(job, base, given, root)
    answer = search(task, target.rates)
    if not answer.plans:
        raise refuse(task, answer, target.rates)
    advice = advise(task, target.rates, answer.plans)
    tokens = given.tokens or 20.0 * task.model.parameters
    if not 0 < tokens < 1e18 or not given.storage > 0:
        raise SpecError("--tokens and --storage must be positive", remedy="--tokens 1e12 --storage 5")
    found = plan_tables.Answered(
        task, target, answer, advice, tokens, given.storage * 1e9, given.top, explained=given.explain
    )
    if given.as_json:
        plan_tables.as_json(found)
    else:
        plan_tables.show(found)
    if given.plot is not None:
        from hpc_kit.planner.plot import draw

        draw(found.shown, given.plot, task.machine.gpu.memory)
    if given.write is not None:
        _write(answer, base, given.write)
    return 0


def _base(job: str | None, root: Path) -> Job | None:
    """The job whose program is planned."""
    from hpc_kit.cli.request import adhoc
    from hpc_kit.spec import files

    program = click.get_current_context().meta.get("program", ())
    if job is not None:
        return files.load_job(job, root=root)
    return adhoc(program) if program else None


def _task(job: str | None, base: Job | None, given: Options, root: Path) -> tuple[Task, Target]:
    import os

    from hpc_kit.planner import catalogue
    from hpc_kit.planner.jobmodel import asked
    from hpc_kit.planner.search import Task
    from hpc_kit.planner.target import target
    from hpc_kit.spec.choose import default_name

    own = asked(base) if base is not None and job is not None else None
    if given.model is None and own is None:
        raise SpecError(
            "which model?" if job is None else f"job {job} does not say what it trains",
            found=None if base is None else " ".join(base.command),
            remedy="--model llama3-8b, --model path/config.json, or --model layers=32,hidden=4096,heads=32",
        )
    model = catalogue.model(given.model) if given.model is not None else own.model if own else None
    assert model is not None  # noqa: S101 - one of the two is there
    resources = base.resources if base is not None and job is not None else None
    per_node = given.gpus_per_node or (resources.ntasks_per_node if resources and own and not given.gpu else None)
    found = target(
        given.cluster or default_name(root, os.environ),
        root,
        framework=given.framework,
        gpu=given.gpu,
        gpus_per_node=per_node,
        network=given.network,
        measurement=given.measured,
    )
    nodes = given.nodes or (resources.nodes if resources and isinstance(resources.nodes, int) else None) or 1
    return Task(
        model=model,
        machine=found.machine,
        gpus=nodes * found.machine.gpus_per_node,
        global_batch=given.global_batch or (own.global_batch if own else 1024),
        seq_len=given.seq_len or (own.seq_len if own else model.seq_len),
        framework=given.framework,
        precision=given.precision,
        flash=given.flash,
    ), found


def _write(answer: Answer, base: Job | None, path: Path) -> None:
    from hpc_kit.planner.jobfile import job
    from hpc_kit.planner.jobmodel import shipped
    from hpc_kit.spec.write import save_job

    best = answer.plans[0]
    if base is not None and not shipped(base):
        save_job(job(best, base, path.stem), path)
    else:
        from hpc_kit.planner import programs
        from hpc_kit.planner.search import shown

        found = programs.first(answer.plans, Path.cwd())
        if found is None:
            raise SpecError(
                "no program of jobs/train can do any of these layouts",
                found=f"{shown(best.run)}, {best.run.precision}, and {len(answer.plans) - 1} others",
                remedy=f"your own behind --: hpc-kit plan ... --write {path} -- python train.py",
            )
        if found.place > 1:
            more = found.plan.time.total / best.time.total - 1
            click.echo(
                f"no program of jobs/train can do the first layout, {shown(best.run)};\n"
                f"written is number {found.place} of {len(answer.plans)}, {shown(found.plan.run)}: "
                f"{found.plan.time.total:.4g} s a step, {more:.1%} more",
                err=True,
            )
        save_job(job(found.plan, found.base, path.stem), path)
        click.echo(f"its command is that of job {found.name}: name your own behind --, or edit {path}", err=True)
    click.echo(f"written: {path}   submit with: hpc-kit submit {path}", err=True)
