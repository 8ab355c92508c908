"""A plan as a job file: its nodes, GPUs and layout, and for the program what a layout cannot say."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec import structs

from hpc_kit.errors import UnitError
from hpc_kit.planner import model_catalogue
from hpc_kit.planner.jobmodel import PLAN_FLASH, PLAN_FRAMEWORK, PLAN_MODEL, PLAN_PRECISION, asked, shipped
from hpc_kit.planner.layout import Run
from hpc_kit.planner.search import Plan, shown
from hpc_kit.slurm.sizes import is_gpu_item
from hpc_kit.slurm.units import UNLIMITED, format_time, parse_time
from hpc_kit.spec.job import Job, Layout, Model, Value
from hpc_kit.spec.resources import GPU_COUNT_FIELDS, Resources

MARGIN = 2.0
"""A written time limit over the predicted time of its steps: an overrun loses the job, a long limit only some time."""
START = 300.0
"""Seconds of a written time limit for the start of a job and the end of it."""


def job(plan: Plan, base: Job, name: str, *, steps: int | None = None) -> Job:
    """The job of a plan, from the job whose program it runs.

    What neither `[layout]` nor `[model]` can say the program finds in variables PLAN_*.

    Args:
        plan: What is written.
        base: The job whose program it runs.
        name: The new job's.
        steps: How many the program does, from which its time limit follows; None: the base's limit stays.
    """
    run = plan.run
    per_node = min(run.gpus, run.machine.gpus_per_node)
    agents = base.launch.starts_agents
    resources = structs.replace(
        base.resources,
        nodes=run.gpus // per_node,
        ntasks=None,
        ntasks_per_node=1 if agents else per_node,
        job_name=None,
    )
    if run.machine.gpu.generation != "cpu":
        resources = _with_gpus(resources, per_node, agents=agents)
    if steps is not None:
        resources = structs.replace(resources, time=_limit(resources.time, steps * plan.time.total))
    found = structs.replace(
        base,
        name=name,
        description=f"{run.model.name} on {run.gpus} {run.machine.gpu.name}: {shown(run)}",
        resources=resources,
        layout=_layout(run),
        model=Model(
            layers=run.model.layers,
            heads=run.model.heads,
            width=run.model.hidden,
            sequence=run.seq_len,
            parameters=run.model.parameters,
        ),
        launch=structs.replace(base.launch, nproc_per_node=per_node) if agents else base.launch,
        env={**base.env, **_variables(run)},
    )
    return _as_trained(found, run) if shipped(base) else found


def _as_trained(found: Job, run: Run) -> Job:
    """The job of a shipped program, which trains a model of bytes of that size: it says so, with that one's numbers."""
    own = asked(found)
    if own is None or own.model.parameters == run.model.parameters:
        return found
    count = own.model.parameters
    env = {key: value for key, value in found.env.items() if key != PLAN_MODEL}
    return structs.replace(
        found,
        description=f"a GPT of {own.model.vocab} words of the size of {run.model.name}, {count:.3g} parameters, "
        f"on {run.gpus} {run.machine.gpu.name}: {shown(run)}",
        model=structs.replace(found.model, parameters=count),
        env=env,
    )


def _layout(run: Run) -> Layout:
    return Layout(
        dp=run.dp,
        pp=run.pp,
        tp=run.tp,
        cp=run.cp,
        zero=run.zero_stage,
        global_batch=run.global_batch,
        micro_batches=run.micro_batches if run.micro_batches > 1 else None,
    )


def _variables(run: Run) -> dict[str, Value]:
    return {
        PLAN_MODEL: model_catalogue.text(run.model),
        "PLAN_MICRO_BATCH": run.micro_batch,
        "PLAN_GRAD_ACCUM": run.micro_batches,
        "PLAN_GLOBAL_BATCH": run.global_batch,
        "PLAN_SEQ_LEN": run.seq_len,
        "PLAN_ZERO_STAGE": run.zero_stage,
        "PLAN_VIRTUAL_STAGES": run.virtual_stages,
        "PLAN_RECOMPUTE": run.recompute,
        "PLAN_SEQUENCE_PARALLEL": int(run.sequence_parallel),
        PLAN_FRAMEWORK: run.framework,
        PLAN_PRECISION: run.precision,
        PLAN_FLASH: int(run.flash),
    }


def _with_gpus(resources: Resources, per_node: int, *, agents: bool) -> Resources:
    """A GPU for each rank, of the kind that the base asks for, in place of the number that it asks for."""
    entries = (resources.gres or "").split(",")
    said = [str(value) for name in sorted(GPU_COUNT_FIELDS) if (value := getattr(resources, name)) is not None]
    said += [entry.partition(":")[2] for entry in entries if is_gpu_item(entry)]
    kind = next((f"{word.partition(':')[0]}:" for word in said if ":" in word), "")
    counts: dict[str, Any] = {**dict.fromkeys(GPU_COUNT_FIELDS), "ntasks_per_gpu": None}
    counts["gres"] = ",".join(entry for entry in entries if not is_gpu_item(entry)) or None
    name, number = ("gpus_per_node", per_node) if agents else ("gpus_per_task", 1)
    counts[name] = f"{kind}{number}" if kind else number
    return structs.replace(resources, **counts)


def _limit(given: str | int | None, seconds: float) -> str | int:
    """The limit for so many predicted seconds, in whole minutes; the base's own where that is longer."""
    needed = 60 * -(-int(MARGIN * seconds + START) // 60)
    with suppress(UnitError):
        if given is not None and (own := parse_time(str(given))) in {UNLIMITED, 0, max(own, needed)}:
            return given
    return format_time(needed)
