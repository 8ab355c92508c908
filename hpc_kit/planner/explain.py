"""A plan as formulas, as plain values for `--json` and tables, and as a picture (needs the extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from hpc_kit.planner import communication_time, hardware
from hpc_kit.planner.compute_time import layer_time
from hpc_kit.planner.constants import Constants
from hpc_kit.planner.hardware import GIB, RankGroup
from hpc_kit.planner.layout import TrainingLayout, owned_parameters, split_stages
from hpc_kit.planner.memory import micro_batches_in_flight, peak_memory
from hpc_kit.planner.search import Plan, describe_layout
from hpc_kit.planner.step_time import (
    PCIE_SHARE,
    PRESSURE_THRESHOLD,
    UPDATE_BYTES,
    StepTime,
    host_update_seconds,
    offload_bytes,
    step_time,
)
from hpc_kit.plotting import pyplot, save


def explain_terms(plan: Plan, fitted: Constants) -> list[tuple[str, str, str]]:
    """Return name, value and formula of every term that is not zero."""
    seconds = [(name, getattr(plan.time, name), text) for name, text in time_terms(plan.layout, fitted).items()]
    held = [(name, getattr(plan.memory, name) / GIB, text) for name, text in memory_terms(plan, fitted).items()]
    return [
        *((name, f"{value:.4g} s", text) for name, value, text in seconds if value > 0),
        *((name, f"{value:.2f} GiB", text) for name, value, text in held if value >= 0.005),
    ]


def time_terms(layout: TrainingLayout, fitted: Constants) -> dict[str, str]:
    """Return the formula of each term of the time."""
    m = layout.micro_batches
    tensor = _bandwidth_text(layout, fitted, layout.tensor_group)
    data = _bandwidth_text(layout, fitted, layout.data_group)
    gathered = "two gathers and a reduction of each layer and micro-batch"
    if layout.pp > 1:
        gathered = "a gather and a reduction of each layer, once a step"
    tensor_launch = f", {1e3 * fitted.launch_tensor:.2f} ms more with tp" if layout.tp > 1 else ""
    scattered = "after each micro-batch" if layout.zero_stage == 2 else "once"
    calls = f"; {fitted.zero_calls:.1f} collectives a layer each way wait for one another" if fitted.zero_calls else ""
    reduced = f"reduced and scattered {scattered}, parameters gathered" if layout.zero_stage else "all-reduced"
    return {
        "compute": _compute_text(layout, fitted),
        "tensor": f"{layout.tensor_all_reduces} all-reduces a layer of 2 b s h bytes, 2 (t-1)/t S/W, {tensor}",
        "context": f"keys and values, 2 x 2 b s h_kv bytes, round the ring {layout.context_passes} times a layer, "
        f"(c-1)/c S/W, {_bandwidth_text(layout, fitted, layout.context_group)}, beside attention",
        "shard": f"ZeRO-3: {gathered}, (n-1)/n S/W, {data}, {fitted.shard_overlap:.0%} of it behind compute",
        "launch": f"a layer's kernels take {1e3 * fitted.launch:.2f} ms to launch{tensor_launch}; "
        "counts where the GPU is done sooner" + (f"; {1e3 * fitted.wait:.2f} ms a layer more" if fitted.wait else ""),
        "boundary": "2 b s h bytes to the next stage and back, each micro-batch",
        "bubble": f"(p-1)/(v m) = ({layout.pp}-1)/({layout.virtual_stages} x {m}) = "
        f"{(layout.pp - 1) / (layout.virtual_stages * m):.1%} of the rest, plus what unequal stages add",
        "data": f"gradients of {layout.grad_bytes} bytes, {reduced}, {data}, less what the backward pass hides"
        + (calls if 0 < layout.zero_stage < 3 else ""),
        "optimizer": f"{UPDATE_BYTES:.0f} bytes a parameter moved, of the part that a rank owns",
        "fixed": "the rest of a step, whatever its layout",
        "offload": f"gradients to the host and parameters back over PCIe, {PCIE_SHARE:.0%} of "
        f"{hardware.pcie_bandwidth(layout.machine.gpu) / 1e9:.0f} GB/s; the CPUs of a node update "
        f"at {hardware.HOST_MEMORY_BANDWIDTH / 1e9:.0f} GB/s",
        "allocator": f"memory is more than {PRESSURE_THRESHOLD:.0%} full: {fitted.thrash:.1f} s a micro-batch",
    }


def _compute_text(layout: TrainingLayout, fitted: Constants) -> str:
    gpu, share = layout.machine.gpu, fitted.gemm * fitted.quality
    peak = gpu.flops * gpu.measured * share / 1e12
    return (
        f"m = B/(d b) = {layout.global_batch}/({layout.dp} x {layout.micro_batch})"
        f" = {layout.micro_batches} micro-batches; "
        f"{layout.model.flops(1, layout.seq_len) / 1e9:.4g} GFLOP a token = 6 W + 12 L h s, "
        f"recompute {layout.recompute}; "
        f"products at {peak:.0f} TFLOP/s = data sheet {gpu.flops / 1e12:.0f} x best measured {gpu.measured:.2f} "
        f"x {share:.2f}"
    )


def _bandwidth_text(layout: TrainingLayout, fitted: Constants, group: RankGroup) -> str:
    bandwidth = communication_time.ring_bandwidth(layout.machine, fitted, group) / 1e9
    return f"W = {bandwidth:.0f} GB/s over {group.ranks} ranks ({link_name(group)})"


def memory_terms(plan: Plan, fitted: Constants) -> dict[str, str]:
    """Return the formula of each term of the memory."""
    layout = plan.layout
    shards, zero = f"/{layout.dp * layout.cp}", layout.zero_stage
    # ZeRO-3 as FSDP does it: the parameters themselves are fp32, so Adam needs no copy of them.
    held, states = (4, 8) if zero == 3 else (2, 12)
    stage = f"stage {plan.memory.stage + 1} of {layout.pp}" if layout.pp > 1 else "the only stage"
    each = "2 s b h" if layout.recompute == "full" else "s b (outside + inside/t)"
    return {
        "parameters": f"{held} P{shards if zero >= 3 else ''}; P: parameters of {stage} / t",
        "gradients": "one layer; the rest is on the host"
        if layout.sends_gradients_to_host
        else f"{layout.grad_bytes} P{shards if zero >= 2 else ''}",
        "optimizer": f"{states} P{shards if zero >= 1 else ''}: Adam and fp32 weights",
        "activations": f"{micro_batches_in_flight(layout):g} micro-batches in flight x layers of the stage x {each}",
        "logits": f"{fitted.logit_bytes:.1f} bytes each, s b V/t",
        "buffers": f"{fitted.reserve:.1f} GiB and {fitted.state_waste:.1f} bytes a parameter"
        + (", one layer gathered" if zero == 3 else ""),
        "ahead": f"2 inputs of 2 s b h (1 - 1/t) of up to {fitted.ahead:.0f} layers that the host has launched ahead",
    }


class LinkUse(NamedTuple):
    """Traffic of one kind in one step of a GPU; bytes, bytes/s and seconds."""

    kind: str
    link: str
    size: float
    capacity: float
    """Data sheet of the link, for all ranks of the group on a node."""
    reached: float
    """Rate of a large collective."""
    exposed: float
    """Seconds that no computation hides."""

    @property
    def seconds(self) -> float:
        """Seconds of the traffic at the rate of a large collective."""
        return self.size / self.reached


def link_uses(plan: Plan, fitted: Constants) -> list[LinkUse]:
    """Return the traffic of a plan beside the capacity of its links."""
    layout, found = plan.layout, []
    machine, exposed = layout.machine, exposed_traffic(layout, plan.time)
    for kind, (size, group) in communication_time.traffic_per_step(layout, fitted).items():
        capacity = machine.gpu.link if group.nodes == 1 else machine.network * group.per_node
        reached = communication_time.ring_bandwidth(machine, fitted, group)
        found.append(LinkUse(kind, link_name(group), size, capacity, reached, exposed[kind]["seconds"]))
    if layout.offload and machine.gpu.generation != "cpu":
        capacity = hardware.pcie_bandwidth(machine.gpu)
        owned = owned_parameters(layout, split_stages(layout, fitted.by_cost))
        exposed_seconds = plan.time.offload - host_update_seconds(layout, owned)
        size = sum(offload_bytes(layout, owned))
        found.append(LinkUse("offload", "PCIe", size, capacity, PCIE_SHARE * capacity, exposed_seconds))
    return found


def link_sentences(plan: Plan, fitted: Constants) -> list[str]:
    """Return the share of communication in the step, the use of a node's network, and the step on PCIe alone."""
    layout, total = plan.layout, plan.time.total
    uses, machine = link_uses(plan, fitted), layout.machine
    busy, exposed = sum(use.seconds for use in uses), sum(use.exposed for use in uses)
    found = [
        f"communication takes {busy / total:.1%} of the step; {exposed / total:.1%} is not hidden behind computation"
    ]
    traffic = communication_time.traffic_per_step(layout, fitted)
    crossing = [use for use in traffic.values() if use.group.nodes > 1]
    if crossing:
        largest = max(crossing, key=lambda use: use.size).group
        node = 8e-12 * machine.gpus_per_node  # from bytes/s of a GPU to Tb/s of a node
        reached = communication_time.ring_bandwidth(machine, fitted, largest) / largest.per_node
        # A ring enters a node once, whatever the number of its ranks there.
        mean = sum(use.size / use.group.per_node for use in crossing) / total
        found.append(
            f"the network of a node has {machine.network * node:.3g} Tb/s; a large collective reaches "
            f"{reached * node:.2g} Tb/s, the mean over the step is {mean * node:.2g} Tb/s"
        )
    pcie = hardware.pcie_bandwidth(machine.gpu)
    if machine.gpu.link > pcie:
        pcie_machine = structs.replace(machine, gpu=structs.replace(machine.gpu, link=pcie))
        on_pcie = step_time(structs.replace(layout, machine=pcie_machine), fitted).total
        found.append(
            f"links inside a node: {machine.gpu.link / 1e9:.0f} GB/s, {machine.gpu.link / pcie:.1f} times PCIe"
            f" ({pcie / 1e9:.0f} GB/s); on PCIe the step takes {on_pcie:.4g} s ({on_pcie / total - 1:+.0%})"
        )
    return found


class Alternative(NamedTuple):
    """A change of a plan, with its effect on the plan and on a single GPU without any splitting."""

    name: str
    memory: float
    """Bytes a GPU."""
    seconds: float
    tokens_per_second: float
    single_memory: float


def alternatives(plan: Plan, fitted: Constants) -> list[Alternative]:
    """Return the plan, and what smaller batches, a smaller model, recomputation and offloading change."""
    layout = plan.layout
    model = structs.replace(layout.model, layers=max(layout.pp, layout.model.layers // 2))
    changes: dict[str, dict[str, Any]] = {"as planned": {}}
    if layout.micro_batch > 1:
        changes["smaller batch: micro-batch 1"] = {"micro_batch": 1}
    changes[f"smaller model: {model.layers} of {layout.model.layers} layers"] = {"model": model, "virtual_stages": 1}
    if layout.recompute != "full":
        changes["recompute all activations"] = {"recompute": "full"}
    if not layout.offload:
        changes["offload gradients and optimizer"] = {"offload": True}
    found = []
    for name, change in changes.items():
        changed = structs.replace(layout, **change)
        single = structs.replace(
            changed, dp=1, tp=1, pp=1, cp=1, virtual_stages=1, zero_stage=0, sequence_parallel=False, tp_overlap=False
        )
        memory = peak_memory(changed, fitted).total
        seconds = step_time(changed, fitted, memory / layout.machine.gpu.memory).total
        rate = layout.global_batch * layout.seq_len / seconds / layout.gpus
        found.append(Alternative(name, memory, seconds, rate, peak_memory(single, fitted).total))
    return found


SECONDS_PER_YEAR = 365.25 * 86400


def single_gpu_years(plan: Plan, fitted: Constants, tokens: float) -> str:
    """Return a sentence on the years of one GPU: 8 T P operations with recomputation (arXiv 2104.04473)."""
    layout = plan.layout
    gpu, model = layout.machine.gpu, layout.model
    alone = structs.replace(layout, dp=1, tp=1, pp=1, cp=1, recompute="full", offload=False, sequence_parallel=False)
    layer = layer_time(alone, fitted)
    # Forward once, backward twice that, and the recomputed forward pass: four times a forward pass.
    work = 4 * alone.tokens * (2 * model.layer_weights + model.attention_flops(layout.seq_len))
    rate = work / (layer.forward + layer.backward)
    operations = 8 * tokens * model.parameters
    return (
        f"8 T P = {operations:.3g} operations for {tokens:.3g} tokens with recomputation: one {gpu.name} takes "
        f"{operations / gpu.flops / SECONDS_PER_YEAR:.3g} years at its data sheet's {gpu.flops / 1e12:.0f} TFLOP/s, "
        f"{operations / rate / SECONDS_PER_YEAR:.3g} years at the computed {rate / 1e12:.0f} TFLOP/s of a layer"
    )


CHECKPOINT_BYTES = 14
"""Bytes per parameter of a checkpoint: 16-bit weights, fp32 weights, two moments."""
LAYOUT_VALUES = (
    "dp", "tp", "pp", "cp", "virtual_stages", "zero_stage", "micro_batch", "micro_batches", "recompute"
)  # fmt: skip
MEMORY_TERMS = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers", "ahead")


def link_name(group: RankGroup) -> str:
    """Return the link of a group's traffic."""
    return "node" if group.nodes == 1 else f"network, {group.nodes} nodes"


def exposed_traffic(layout: TrainingLayout, time: StepTime) -> dict[str, dict[str, Any]]:
    """Return the seconds per step of communication that is not hidden, by kind, with its link."""
    found: dict[str, dict[str, Any]] = {}
    for kind, group in communication_time.traffic_groups(layout).items():
        seconds, link = getattr(time, "boundary" if kind == "pipeline" else kind), link_name(group)
        # Neighbouring stages always share two nodes.
        found[kind] = {"seconds": seconds, "link": link.partition(",")[0] if kind == "pipeline" else link}
    return found


def plan_values(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values: seconds, GiB, shares of 1."""
    layout, time = plan.layout, plan.time
    return {
        **{name: getattr(layout, name) for name in LAYOUT_VALUES},
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


def draw_plans(plans: Sequence[Plan], path: Path, limit: float) -> None:
    """Draw the step time and the memory of each layout as stacked bars; `limit` in bytes.

    Raises:
        SpecError: matplotlib is not installed, or the file cannot be written.
    """
    # matplotlib draws bars from the bottom, so the best plan is last.
    names = [describe_layout(plan.layout) for plan in plans][::-1]
    figure, (left, right) = pyplot().subplots(1, 2, sharey=True, figsize=(12, 1.2 + 0.45 * len(plans)))
    for axes, parts, scale in ((left, StepTime.__struct_fields__, 1.0), (right, MEMORY_TERMS, GIB)):
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
