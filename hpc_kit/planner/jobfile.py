"""A plan as a job file: its layout and nodes, and for the program what a layout cannot say."""

from __future__ import annotations

from msgspec import structs

from hpc_kit.planner.search import Plan, shown
from hpc_kit.spec.job import Job, Value
from hpc_kit.spec.layout import Layout, Model


def job(plan: Plan, base: Job, name: str) -> Job:
    """The job of a plan, from the job whose program it runs.

    What neither `[layout]` nor `[model]` can say the program finds in variables PLAN_*.
    """
    run = plan.run
    per_node = min(run.gpus, run.machine.gpus_per_node)
    resources = structs.replace(
        base.resources,
        nodes=run.gpus // per_node,
        ntasks=None,
        ntasks_per_node=1 if base.launch.starts_agents else per_node,
        job_name=None,
    )
    launch = structs.replace(base.launch, nproc_per_node=per_node) if base.launch.starts_agents else base.launch
    said: dict[str, Value] = {
        "PLAN_MICRO_BATCH": run.micro_batch,
        "PLAN_GRAD_ACCUM": run.micro_batches,
        "PLAN_GLOBAL_BATCH": run.global_batch,
        "PLAN_SEQ_LEN": run.seq_len,
        "PLAN_ZERO_STAGE": run.zero_stage,
        "PLAN_VIRTUAL_STAGES": run.virtual_stages,
        "PLAN_RECOMPUTE": run.recompute,
    }
    return structs.replace(
        base,
        name=name,
        description=f"{run.model.name} on {run.gpus} {run.machine.gpu.name}: {shown(run)}",
        resources=resources,
        layout=Layout(
            dp=run.dp,
            pp=run.pp,
            tp=run.tp,
            cp=run.cp,
            zero=run.zero_stage,
            global_batch=run.global_batch,
            micro_batches=run.micro_batches if run.micro_batches > 1 else None,
        ),
        model=Model(
            layers=run.model.layers,
            heads=run.model.heads,
            width=run.model.hidden,
            sequence=run.seq_len,
            parameters=run.model.parameters,
        ),
        launch=launch,
        env={**base.env, **said},
    )
