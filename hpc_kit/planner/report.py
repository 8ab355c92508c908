"""A plan as plain values: for `--json` and for tables."""

from __future__ import annotations

from typing import Any

from hpc_kit.planner.layout import Run
from hpc_kit.planner.machine import GIB, Group
from hpc_kit.planner.search import Plan
from hpc_kit.planner.step_time import StepTime

CHECKPOINT_BYTES = 14
"""Bytes a parameter in a checkpoint to go on from: 16-bit weights, fp32 weights, two moments."""
PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers", "ahead")


def link(group: Group) -> str:
    """Which link a group's traffic goes over."""
    return "node" if group.nodes == 1 else f"network, {group.nodes} nodes"


def traffic(run: Run, time: StepTime) -> dict[str, dict[str, Any]]:
    """Seconds a step of communication that is not hidden, by kind, with its link."""
    crosses = run.pipeline_crosses_nodes
    kinds = {
        "tensor": (time.tensor, link(run.tensor_group), run.tp > 1),
        "context": (time.context, link(run.context_group), run.cp > 1),
        "shard": (time.shard, link(run.data_group), run.zero_stage == 3),
        "data": (time.data, link(run.data_group), run.data_group.ranks > 1 and run.zero_stage < 3),
        "pipeline": (time.boundary, "network" if crosses else "node", run.pp > 1),
    }
    return {name: {"seconds": seconds, "link": where} for name, (seconds, where, used) in kinds.items() if used}


def values(plan: Plan) -> dict[str, Any]:
    """A plan as plain values; seconds, GiB, shares of 1."""
    run, time = plan.run, plan.time
    return {
        "dp": run.dp,
        "tp": run.tp,
        "pp": run.pp,
        "cp": run.cp,
        "virtual_stages": run.virtual_stages,
        "zero_stage": run.zero_stage,
        "micro_batch": run.micro_batch,
        "micro_batches": run.micro_batches,
        "recompute": run.recompute,
        "step_time_s": time.total,
        "tokens_per_s_per_gpu": plan.tokens_per_second,
        "mfu": plan.utilisation,
        "memory_gib": plan.memory.gib,
        "memory": {name: getattr(plan.memory, name) / GIB for name in PARTS},
        "time": {name: getattr(time, name) for name in time.__struct_fields__},
        "bubble": time.bubble / time.total,
        "communication": traffic(run, time),
    }


def training(plan: Plan, tokens: float, storage: float) -> dict[str, float]:
    """What a training of so many tokens takes, and its checkpoint, written at `storage` bytes/s."""
    run = plan.run
    steps = tokens / (run.global_batch * run.seq_len)
    seconds = steps * plan.time.total
    size = float(CHECKPOINT_BYTES * run.model.parameters)
    return {
        "tokens": tokens,
        "steps": steps,
        "days": seconds / 86400,
        "gpu_hours": seconds / 3600 * run.gpus,
        "checkpoint_bytes": size,
        "checkpoint_seconds": size / storage,
    }
