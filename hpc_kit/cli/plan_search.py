"""`hpc-kit plan`: what is to be planned, from command line, job and cluster; the search, shown and written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from hpc_kit.cli.plan_options import Options
from hpc_kit.errors import AnswerNo, SpecError

if TYPE_CHECKING:
    from hpc_kit.planner.jobmodel import Asked
    from hpc_kit.planner.model import Model
    from hpc_kit.planner.search import Answer, Task
    from hpc_kit.planner.target import Target
    from hpc_kit.spec.job import Job


def plan(name: str | None, given: Options, program: tuple[str, ...]) -> int:
    """The search, shown.

    Raises:
        SpecError: Something that was asked for cannot be.
        AnswerNo: Nothing fits.
    """
    from hpc_kit.cli import plan_tables, plan_write
    from hpc_kit.planner.advice import advise
    from hpc_kit.planner.search import search

    root = Path.cwd()
    if name is not None and program:
        raise SpecError(
            f"a program behind --, and job {name}, which has its own",
            found=" ".join(program),
            remedy="the job alone; or --model and --nodes with the program, without a job",
        )
    if given.write is not None:
        plan_write.refuse(given.write)
    job = _job(name, root)
    task, target = _task(job, given, root)
    answer = search(task, target.rates)
    if not answer.plans:
        raise _refusal(task, answer, target, given, root)
    tokens = 20.0 * task.model.parameters if given.tokens is None else given.tokens
    if not 0 < tokens < 1e18 or not given.storage > 0:
        raise SpecError("--tokens and --storage must be positive", remedy="--tokens 1e12 --storage 5")
    advice = advise(task, target.rates, answer.plans)
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
        plan_write.write(answer, found.limit, job, program, given.write, tokens)
    return 0


def _job(name: str | None, root: Path) -> Job | None:
    from hpc_kit.spec import load

    return None if name is None else load.load_job(name, root=root)


def _task(job: Job | None, given: Options, root: Path) -> tuple[Task, Target]:
    from hpc_kit.planner import jobmodel
    from hpc_kit.planner.search import Task
    from hpc_kit.planner.target import framework_of

    means = jobmodel.means(job) if job is not None else jobmodel.Means()
    framework = framework_of(given.framework or means.framework or "torch")
    flash = means.flash is not False if given.flash is None else given.flash
    # With --model a job says its batch and its nodes.
    told = structs.replace(job, env={}) if job is not None and given.model is not None else job
    own = jobmodel.asked(told) if told is not None else None
    model, length, notes = _model(job, own, given)
    found = _target(job if own else None, given, framework, root)
    nodes = given.nodes or (job.resources.nodes if job and isinstance(job.resources.nodes, int) else None) or 1
    task = Task(
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


def _model(job: Job | None, own: Asked | None, given: Options) -> tuple[Model, int, list[str]]:
    """Model, tokens a sequence, and what is to be said of both.

    Raises:
        SpecError: Nobody says what is trained, or a job contradicts itself.
    """
    from hpc_kit.planner import jobmodel, model_catalogue

    if given.model is not None:
        model = model_catalogue.model(given.model)
        length, note = model_catalogue.usual_length(model, given.model)
        return model, length, [note] if note and given.seq_len is None else []
    if job is None or own is None:
        raise SpecError(
            "which model?" if job is None else f"job {job.name} does not say what it trains",
            found=None if job is None else " ".join(job.command),
            remedy="--model llama3-8b, --model path/config.json, or --model layers=32,hidden=4096,heads=32",
        )
    jobmodel.check(own, job)
    said = f"job {job.name} does not say its model in full: taken for granted are {own.assumed}; --model says it"
    return own.model, own.seq_len, [said] if own.assumed else []


def _target(job: Job | None, given: Options, framework: str, root: Path) -> Target:
    """The machine; a job that says its ranks has them on a node."""
    from hpc_kit.planner.target import target
    from hpc_kit.spec.default_cluster import default_cluster_name

    ranks = None
    if job is not None and not given.gpu:
        ranks = job.launch.nproc_per_node if job.launch.starts_agents else job.resources.ntasks_per_node
    found = target(
        given.cluster or default_cluster_name(root, os.environ),
        root,
        framework=framework,
        gpu=given.gpu,
        gpus_per_node=given.gpus_per_node or ranks,
        network=given.network,
        measurement=given.measured,
    )
    if _is_unnamed(found, given):
        return structs.replace(found, notes=(*found.notes, f"no cluster is named: {_machines()}"))
    return found


def _is_unnamed(found: Target, given: Options) -> bool:
    """Whether a model is planned for the processors at hand because nobody has named a cluster."""
    return given.cluster is None and given.model is not None and found.machine.gpu.generation == "cpu"


def _machines() -> str:
    from hpc_kit.planner import hardware

    return f"--cluster {', '.join(hardware.machines())}, or a cluster file whose [node] says its GPUs"


def _refusal(task: Task, answer: Answer, target: Target, given: Options, root: Path) -> AnswerNo:
    """The error where nothing fits."""
    from hpc_kit.planner.refuse import refuse
    from hpc_kit.spec.default_cluster import default_cluster_name

    if not _is_unnamed(target, given):
        return refuse(task, answer, target.rates)
    return AnswerNo(
        f"no cluster is named, and {task.model.name} does not fit on {task.gpus} x cpu",
        found=f"cluster {default_cluster_name(root, os.environ)}, which has no GPUs",
        remedy=_machines(),
    )
