"""Seconds of one optimizer step, term by term."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hpc_kit.planner import communication_time, hardware
from hpc_kit.planner.compute_time import LayerTime, head_seconds, layer_time
from hpc_kit.planner.constants import Constants
from hpc_kit.planner.hardware import RankGroup
from hpc_kit.planner.layout import PipelineStage, TrainingLayout, owned_parameters, split_stages

LAST_BUCKET = 0.08
"""Share of the gradients that are ready only at the end of the backward pass."""
PRESSURE_THRESHOLD = 0.88
"""Share of a GPU's memory above which the allocator frees and reallocates; no measured run below it was slowed."""


class StepTime(Struct, frozen=True):
    """One step, or one micro-batch in one stage, in seconds. The terms add up to `total`.

    Attributes:
        compute: Layers and output of the slowest stage, all micro-batches.
        tensor: Tensor-parallel traffic that is not hidden.
        context: Context-parallel traffic that attention does not hide.
        shard: ZeRO-3's gathering that is not hidden.
        launch: Waiting for kernels to be launched.
        boundary: Activations from stage to stage.
        bubble: Idle stages while the pipeline fills and drains.
        data: Reduction of gradients that is not hidden.
        optimizer: The optimizer's own step.
        fixed: The rest of a step and of its micro-batches.
        allocator: Freeing and reallocating when memory is almost full.
        offload: Traffic to and from the host's memory that is not hidden, and the update by its CPUs.
    """

    compute: float
    tensor: float
    context: float
    shard: float
    launch: float
    boundary: float
    bubble: float = 0.0
    data: float = 0.0
    optimizer: float = 0.0
    fixed: float = 0.0
    allocator: float = 0.0
    offload: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return float(sum(getattr(self, term) for term in self.__struct_fields__))


def overlap(one: float, other: float, sharpness: float) -> float:
    """Return the seconds of two concurrent activities: the slower one, and slightly more if both are similar.

    This is the p-norm of both, with p = `sharpness`.
    """
    if one <= 0 or other <= 0:
        return max(one, other, 0.0)
    # Divided by the larger one, the power cannot overflow.
    low, high = sorted((one, other))
    return float(high * (1 + (low / high) ** sharpness) ** (1 / sharpness))


def tensor_seconds(layout: TrainingLayout, fitted: Constants) -> float:
    """Return the seconds of a layer's tensor-parallel traffic that no overlap hides."""
    if layout.tp == 1:
        return 0.0
    each = communication_time.all_reduce_seconds(layout.machine, fitted, layout.tensor_group, layout.boundary_bytes)
    return layout.tensor_all_reduces * each * (1 - (fitted.tensor_overlap if layout.tp_overlap else 0.0))


def context_seconds(layout: TrainingLayout, fitted: Constants, work: LayerTime) -> float:
    """Return the seconds of a layer's keys and values in the ring that attention does not hide."""
    if layout.cp == 1:
        return 0.0
    each = communication_time.gather_seconds(layout.machine, fitted, layout.context_group, layout.key_value_bytes)
    return exposed_seconds(layout.context_passes * each, work.attention + work.back_attention, fitted.sharpness)


def shard_seconds(layout: TrainingLayout, fitted: Constants, parameters: float, layers: int) -> float:
    """Return the seconds in which ZeRO-3 gathers parameters twice and reduces gradients once, per micro-batch.

    Each layer waits for its own collectives. In a pipeline parameters stay gathered, so the result covers the whole
    step with one gather (PyTorch's `reshard_after_forward` is off there).
    """
    if layout.zero_stage < 3 or layout.data_group.ranks == 1:
        return 0.0
    group, owned = layout.data_group, parameters / layout.tp
    waits = layers * communication_time.collective_latency(fitted, group)
    gathered = communication_time.gather_seconds(layout.machine, fitted, group, 2.0 * owned) + waits
    reduced = communication_time.gather_seconds(layout.machine, fitted, group, layout.grad_bytes * owned) + waits
    return (2 if layout.pp == 1 else 1) * gathered + reduced


def exposed_seconds(seconds: float, work: float, sharpness: float) -> float:
    """Return the seconds that an activity adds to concurrent `work`."""
    return overlap(work, seconds, sharpness) - work


def _exposed_shard_seconds(layout: TrainingLayout, fitted: Constants, stage: PipelineStage, busy: float) -> float:
    """Return the seconds of ZeRO-3's traffic that `busy` seconds of work of a micro-batch do not hide."""
    parameters = stage.layers * layout.model.layer_parameters + stage.table_parameters(layout.model)
    seconds = shard_seconds(layout, fitted, parameters, stage.layers)
    overlapped = exposed_seconds(seconds * fitted.shard_overlap, busy, fitted.sharpness)
    return max(overlapped + seconds * (1 - fitted.shard_overlap), 0.0)


def _micro_batch_time(layout: TrainingLayout, fitted: Constants, stage: PipelineStage, work: LayerTime) -> StepTime:
    """Return the terms of one micro-batch in one stage."""
    compute = stage.layers * (work.forward + work.backward) + (head_seconds(layout, fitted) if stage.head else 0.0)
    tensor = stage.layers * tensor_seconds(layout, fitted)
    context = stage.layers * context_seconds(layout, fitted, work)
    busy = compute + tensor + context
    shard = _exposed_shard_seconds(layout, fitted, stage, busy) if layout.pp == 1 else 0.0
    launch = _launch_seconds(layout, fitted, stage.layers, busy + shard)
    return StepTime(compute, tensor, context, shard, launch, _boundary_seconds(layout, fitted))


def _launch_seconds(layout: TrainingLayout, fitted: Constants, layers: int, busy: float) -> float:
    """Return the seconds of a micro-batch in which the GPU waits for kernels to be launched."""
    # A backward pass counts as two forward passes; recomputation adds one to these three.
    again = 4 / 3 if layout.recompute == "full" else 1.0
    each = fitted.launch * (fitted.compiled if layout.compiled else 1.0)
    # Megatron's fused softmax needs a multiple of four score matrices.
    if not layout.flash and layout.micro_batch * layout.model.heads // layout.tp % 4:
        each += fitted.launch_scores
    if layout.tp > 1:
        each += fitted.launch_tensor + (fitted.hop * layout.tp if layout.pipeline_crosses_nodes else 0.0)
    host = again * each * layers + fitted.micro
    return exposed_seconds(host, busy, fitted.sharpness) + fitted.gap * min(busy, host) + again * fitted.wait * layers


def _boundary_seconds(layout: TrainingLayout, fitted: Constants) -> float:
    """Return the seconds to send a micro-batch's activations and gradients to the neighbouring stages."""
    if layout.pp == 1:
        return 0.0
    size = layout.boundary_bytes / (layout.tp if layout.sequence_parallel or fitted.scatter else 1)
    crosses = layout.pipeline_crosses_nodes
    bandwidth = layout.machine.network * fitted.network if crosses else layout.machine.gpu.link * fitted.link
    latency = fitted.latency + (fitted.latency_network if crosses else 0.0)
    return 2 * layout.virtual_stages * fitted.boundary * (size / bandwidth + latency)


def gradient_seconds(
    layout: TrainingLayout, fitted: Constants, parameters: float, layers: int, back: float, ahead: float
) -> float:
    """Return the seconds per step of gradient reduction that no computation hides.

    Gradients are all-reduced once a step. With ZeRO-1 they are reduced and scattered, then parameters are gathered.
    ZeRO-2 keeps only its share and so reduces and scatters after every micro-batch. A framework that handles each
    tensor by itself waits for each collective, longer with more nodes.

    Gradients travel behind a share of the `back` seconds of a micro-batch's backward pass; ZeRO-1 and -2 gather
    parameters behind a share of the `ahead` seconds of its forward pass.
    """
    group: RankGroup = layout.data_group
    if group.ranks == 1 or layout.zero_stage == 3:
        return 0.0
    size = layout.grad_bytes * parameters
    if layout.zero_stage == 0:
        return _unhidden_traffic(
            communication_time.all_reduce_seconds(layout.machine, fitted, group, size), fitted.data_overlap * back
        )
    scattered = fitted.zero_cost * communication_time.gather_seconds(layout.machine, fitted, group, size)
    gathered = fitted.zero_cost * communication_time.gather_seconds(layout.machine, fitted, group, 2.0 * parameters)
    scattered = _unhidden_traffic(scattered, fitted.zero_overlap * back)
    gathered = _unhidden_traffic(gathered, fitted.zero_overlap * ahead)
    calls = fitted.zero_calls * layers * communication_time.collective_latency(fitted, group)
    return (layout.micro_batches if layout.zero_stage == 2 else 1) * (scattered + calls) + gathered + calls


PCIE_SHARE = 0.8
"""Share of PCIe's data sheet that copies to and from pinned memory reach."""
UPDATE_BYTES = 28.0
"""Bytes that Adam moves for each parameter: fp32 weight and two moments are read and written, the gradient is read."""


def offload_bytes(layout: TrainingLayout, parameters: float) -> tuple[float, float]:
    """Return the bytes per step from a GPU to its host (gradients) and back (parameters), both in 16 bits.

    `parameters` are those of one rank before ZeRO shards them.
    """
    owned = parameters / (layout.dp * layout.cp if layout.zero_stage else 1)
    # ZeRO-3 gathers parameters for the forward and for the backward pass of every micro-batch.
    down = 2.0 * owned * (layout.micro_batches if layout.sends_gradients_to_host else 1)
    return down, 2.0 * owned * (2 * layout.micro_batches if layout.zero_stage == 3 else 1)


def _offload_seconds(layout: TrainingLayout, parameters: float, backward: float) -> float:
    """Return the seconds per step that offloading adds; gradients travel behind the backward pass of a micro-batch."""
    down, up = (
        size / hardware.pcie_bandwidth(layout.machine.gpu) / PCIE_SHARE for size in offload_bytes(layout, parameters)
    )
    passes = layout.micro_batches if layout.sends_gradients_to_host else 1
    return passes * _unhidden_traffic(down / passes, backward) + up + host_update_seconds(layout, parameters)


def host_update_seconds(layout: TrainingLayout, parameters: float) -> float:
    """Return the seconds in which the CPUs of a node update the parameters of all its GPUs."""
    updated = parameters / (layout.dp * layout.cp if layout.zero_stage else 1)
    per_node = min(layout.gpus, layout.machine.gpus_per_node)
    return UPDATE_BYTES * updated * per_node / hardware.HOST_MEMORY_BANDWIDTH


def _unhidden_traffic(seconds: float, hidden: float) -> float:
    """Return the traffic that computation does not hide; the last bucket is never hidden."""
    return max(seconds - hidden, LAST_BUCKET * seconds)


def step_time(
    layout: TrainingLayout, fitted: Constants, filled: float = 0.0, work: LayerTime | None = None
) -> StepTime:
    """Return the seconds of one optimizer step: micro-batches through the pipeline, gradients, optimizer.

    `filled` is the peak memory as a share of the GPU's; a step that fills it waits for the allocator. `work` is
    `layer_time(layout, fitted)` if known, because it is the same for many layouts.
    """
    m, stages = layout.micro_batches, split_stages(layout, fitted.by_cost)
    work = work or layer_time(layout, fitted)
    # Most stages are equal, so each kind is computed once.
    times = {stage: _micro_batch_time(layout, fitted, stage, work) for stage in set(stages)}
    slowest = max(times.values(), key=lambda time: time.total)
    whole = pipelined_seconds([times[stage].total for stage in stages], m, layout.virtual_stages)
    owned, layers = owned_parameters(layout, stages), max(stage.layers for stage in stages)
    forward, backward = layers * work.forward, layers * work.backward
    # In a pipeline, ZeRO-3 gathers parameters once a step.
    gathered_once = 0.0
    if layout.pp > 1:
        gathered_once = max(_exposed_shard_seconds(layout, fitted, stage, times[stage].compute) for stage in times)
    shards = layout.dp * layout.cp if layout.zero_stage else 1
    moved = fitted.optimizer * UPDATE_BYTES * owned / shards
    # Clipping reads the gradients, and each step sets them to zero.
    moved += 2.0 * layout.grad_bytes * owned / (shards if layout.zero_stage > 1 else 1)
    # The full delay of the allocator applies from 4 points above the threshold.
    pressure = min(1.0, max(0.0, (filled - PRESSURE_THRESHOLD) / 0.04))
    return StepTime(
        offload=_offload_seconds(layout, owned, backward) if layout.offload else 0.0,
        compute=m * slowest.compute,
        tensor=m * slowest.tensor,
        context=m * slowest.context,
        shard=m * slowest.shard + gathered_once,
        launch=m * slowest.launch,
        boundary=m * slowest.boundary,
        bubble=whole - m * slowest.total,
        data=gradient_seconds(layout, fitted, owned, layers, backward, forward),
        optimizer=0.0 if layout.offload else moved / layout.machine.gpu.bandwidth,
        fixed=fitted.step,
        allocator=m * fitted.thrash * pressure,
    )


def pipelined_seconds(times: Sequence[float], micro_batches: int, virtual_stages: int = 1) -> float:
    """Return the seconds of one pipelined step, from the seconds of a micro-batch in each stage.

    The slowest stage processes all micro-batches. Filling and draining takes the time of all remaining stages once,
    divided by the interleaved chunks. With equal stages the result is (m + (p-1)/v) t.
    """
    slowest = max(times)
    return micro_batches * slowest + (sum(times) - slowest) / virtual_stages
