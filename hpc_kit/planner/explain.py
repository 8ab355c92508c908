"""A plan as formulas, as plain values for `--json` and tables, and as a picture (needs the extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_kit.planner import communication_time
from hpc_kit.planner.constants import Rates
from hpc_kit.planner.hardware import GIB, RankGroup
from hpc_kit.planner.layout import TrainingLayout
from hpc_kit.planner.memory import micro_batches_in_flight
from hpc_kit.planner.search import Plan, format_layout
from hpc_kit.planner.step_time import PRESSURE_THRESHOLD, StepTime
from hpc_kit.plotting import pyplot, save


def explain_terms(plan: Plan, rates: Rates) -> list[tuple[str, str, str]]:
    """Return name, value and formula of every term that is not zero."""
    seconds = [(name, getattr(plan.time, name), text) for name, text in time_terms(plan.layout, rates).items()]
    held = [(name, getattr(plan.memory, name) / GIB, text) for name, text in memory_terms(plan, rates).items()]
    return [
        *((name, f"{value:.4g} s", text) for name, value, text in seconds if value > 0),
        *((name, f"{value:.2f} GiB", text) for name, value, text in held if value >= 0.005),
    ]


def time_terms(layout: TrainingLayout, rates: Rates) -> dict[str, str]:
    """Return the formula of each term of the time."""
    m = layout.micro_batches
    tensor, data = (
        _bandwidth_text(layout, rates, layout.tensor_group),
        _bandwidth_text(layout, rates, layout.data_group),
    )
    gathered = "two gathers and a reduction of each layer and micro-batch"
    if layout.pp > 1:
        gathered = "a gather and a reduction of each layer, once a step"
    more = f", {1e3 * rates.launch_tensor:.2f} ms more with tp" if layout.tp > 1 else ""
    scattered = "after each micro-batch" if layout.zero_stage == 2 else "once"
    calls = f"; {rates.zero_calls:.1f} collectives a layer each way wait for one another" if rates.zero_calls else ""
    reduced = f"reduced and scattered {scattered}, parameters gathered" if layout.zero_stage else "all-reduced"
    return {
        "compute": _compute_text(layout, rates),
        "tensor": f"{6 if layout.recompute == 'full' else 4} all-reduces a layer of 2 b s h bytes, "
        f"2 (t-1)/t S/W, {tensor}",
        "context": f"keys and values, 2 x 2 b s h_kv bytes, round the ring {4 if layout.recompute == 'full' else 3} "
        f"times a layer, (c-1)/c S/W, {_bandwidth_text(layout, rates, layout.context_group)}, beside attention",
        "shard": f"ZeRO-3: {gathered}, (n-1)/n S/W, {data}, {rates.shard_overlap:.0%} of it behind compute",
        "launch": f"a layer's kernels take {1e3 * rates.launch:.2f} ms to launch{more}; "
        "counts where the GPU is done sooner" + (f"; {1e3 * rates.wait:.2f} ms a layer besides" if rates.wait else ""),
        "boundary": "2 b s h bytes to the next stage and back, each micro-batch",
        "bubble": f"(p-1)/(v m) = ({layout.pp}-1)/({layout.virtual_stages} x {m}) = "
        f"{(layout.pp - 1) / (layout.virtual_stages * m):.1%} of the rest, plus what unequal stages add",
        "data": f"gradients of {layout.grad_bytes} bytes, {reduced}, {data}, less what the backward pass hides"
        + (calls if 0 < layout.zero_stage < 3 else ""),
        "optimizer": "28 bytes a parameter moved, of the part that a rank owns",
        "fixed": "what a step takes besides",
        "allocator": f"memory is more than {PRESSURE_THRESHOLD:.0%} full: {rates.thrash:.1f} s a micro-batch",
    }


def _compute_text(layout: TrainingLayout, rates: Rates) -> str:
    gpu, share = layout.machine.gpu, rates.gemm * rates.quality
    peak = gpu.flops * gpu.measured * share / 1e12
    return (
        f"m = B/(d b) = {layout.global_batch}/({layout.dp} x {layout.micro_batch})"
        f" = {layout.micro_batches} micro-batches; "
        f"{layout.model.flops(1, layout.seq_len) / 1e9:.4g} GFLOP a token = 6 W + 12 L h s, "
        f"recompute {layout.recompute}; "
        f"products at {peak:.0f} TFLOP/s = data sheet {gpu.flops / 1e12:.0f} x best measured {gpu.measured:.2f} "
        f"x {share:.2f}"
    )


def _bandwidth_text(layout: TrainingLayout, rates: Rates, group: RankGroup) -> str:
    bandwidth = communication_time.ring_bandwidth(layout.machine, rates, group) / 1e9
    return f"W = {bandwidth:.0f} GB/s over {group.ranks} ranks ({link_name(group)})"


def memory_terms(plan: Plan, rates: Rates) -> dict[str, str]:
    """Return the formula of each term of the memory."""
    layout = plan.layout
    shards, zero = f"/{layout.dp * layout.cp}", layout.zero_stage
    held, states = (4, 8) if zero == 3 else (2, 12)
    stage = f"stage {plan.memory.stage + 1} of {layout.pp}" if layout.pp > 1 else "the only stage"
    each = "2 s b h" if layout.recompute == "full" else "s b (outside + inside/t)"
    return {
        "parameters": f"{held} P{shards if zero >= 3 else ''}; P: parameters of {stage} / t",
        "gradients": f"{layout.grad_bytes} P{shards if zero >= 2 else ''}",
        "optimizer": f"{states} P{shards if zero >= 1 else ''}: Adam and fp32 weights",
        "activations": f"{micro_batches_in_flight(layout):g} micro-batches in flight x layers of the stage x {each}",
        "logits": f"{rates.logit_bytes:.1f} bytes each, s b V/t",
        "buffers": f"{rates.reserve:.1f} GiB and {rates.state_waste:.1f} bytes a parameter"
        + (", one layer gathered" if zero == 3 else ""),
        "ahead": f"2 inputs of 2 s b h (1 - 1/t) of up to {rates.ahead:.0f} layers that the host has launched ahead",
    }


CHECKPOINT_BYTES = 14
"""Bytes per parameter of a checkpoint: 16-bit weights, fp32 weights, two moments."""
MEMORY_TERMS = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers", "ahead")


def link_name(group: RankGroup) -> str:
    """Return the link of a group's traffic."""
    return "node" if group.nodes == 1 else f"network, {group.nodes} nodes"


def exposed_traffic(layout: TrainingLayout, time: StepTime) -> dict[str, dict[str, Any]]:
    """Return the seconds per step of communication that is not hidden, by kind, with its link."""
    crosses = layout.pipeline_crosses_nodes
    kinds = {
        "tensor": (time.tensor, link_name(layout.tensor_group), layout.tp > 1),
        "context": (time.context, link_name(layout.context_group), layout.cp > 1),
        "shard": (time.shard, link_name(layout.data_group), layout.zero_stage == 3),
        "data": (time.data, link_name(layout.data_group), layout.data_group.ranks > 1 and layout.zero_stage < 3),
        "pipeline": (time.boundary, "network" if crosses else "node", layout.pp > 1),
    }
    return {name: {"seconds": seconds, "link": where} for name, (seconds, where, used) in kinds.items() if used}


def plan_values(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values: seconds, GiB, shares of 1."""
    layout, time = plan.layout, plan.time
    return {
        "dp": layout.dp,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "virtual_stages": layout.virtual_stages,
        "zero_stage": layout.zero_stage,
        "micro_batch": layout.micro_batch,
        "micro_batches": layout.micro_batches,
        "recompute": layout.recompute,
        "step_time_s": time.total,
        "tokens_per_s_per_gpu": plan.tokens_per_second,
        "mfu": plan.utilisation,
        "memory_gib": plan.memory.gib,
        "memory": {name: getattr(plan.memory, name) / GIB for name in MEMORY_TERMS},
        "time": {name: getattr(time, name) for name in time.__struct_fields__},
        "bubble": time.bubble / time.total,
        "communication": exposed_traffic(layout, time),
    }


def training_values(plan: Plan, tokens: float, storage: float) -> dict[str, float]:
    """Return duration and checkpoint size of a training; checkpoints are written at `storage` bytes/s."""
    layout = plan.layout
    steps = tokens / (layout.global_batch * layout.seq_len)
    seconds = steps * plan.time.total
    size = float(CHECKPOINT_BYTES * layout.model.parameters)
    return {
        "tokens": tokens,
        "steps": steps,
        "days": seconds / 86400,
        "gpu_hours": seconds / 3600 * layout.gpus,
        "checkpoint_bytes": size,
        "checkpoint_seconds": size / storage,
    }


TIME_TERMS = ("compute", "tensor", "shard", "launch", "boundary", "bubble", "data", "optimizer", "fixed", "allocator")


def draw_plans(plans: Sequence[Plan], path: Path, limit: float) -> None:
    """Draw the step time and the memory of each layout as stacked bars; `limit` in bytes.

    Raises:
        SpecError: matplotlib is not installed, or the file cannot be written.
    """
    names = [format_layout(plan.layout) for plan in plans][::-1]
    figure, (left, right) = pyplot().subplots(1, 2, sharey=True, figsize=(12, 1.2 + 0.45 * len(plans)))
    for axes, parts, scale in ((left, TIME_TERMS, 1.0), (right, MEMORY_TERMS, GIB)):
        start = [0.0] * len(plans)
        for part in parts:
            width = [getattr(plan.time if axes is left else plan.memory, part) / scale for plan in plans][::-1]
            if any(width):
                axes.barh(names, width, left=start, label=part)
            start = [a + b for a, b in zip(start, width, strict=True)]
        axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    left.set_xlabel("seconds a step")
    right.set_xlabel("GiB a GPU")
    right.axvline(limit / GIB, color="black", linestyle=":")
    figure.tight_layout()
    save(figure, path)
