"""Memory of one GPU: parameters, gradients, optimizer states, activations, logits and buffers.

The formulas are those of arXiv 1910.02054 (model states) and 2205.05198 (activations). A few constants cover the rest:
copies that a framework keeps, gathered tensors, temporaries, and waste of the allocator.
"""

from __future__ import annotations

import math

from msgspec import Struct, structs

from hpc_kit.planner.constants import Constants
from hpc_kit.planner.hardware import GIB
from hpc_kit.planner.layout import PipelineStage, TrainingLayout, split_stages
from hpc_kit.planner.transformer import Transformer

STALLING_GPUS = 512
"""Number of GPUs from which the measured pipelines stall, so that the host cannot run ahead."""


class Memory(Struct, frozen=True):
    """Peak bytes on one GPU by kind; `stage` is the pipeline stage.

    `ahead` are allocations that the host makes before the GPU needs them; they are freed before an allocation fails.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float
    stage: int = 0
    ahead: float = 0.0

    @property
    def total(self) -> float:
        """Peak in bytes."""
        held = self.parameters + self.gradients + self.optimizer + self.activations + self.logits + self.buffers
        return held + self.ahead

    @property
    def gib(self) -> float:
        """Peak in GiB."""
        return self.total / GIB


def model_state_bytes(
    parameters: float, shards: int, zero_stage: int, grad_bytes: int = 2, *, master: bool = False
) -> tuple[float, float, float]:
    """Return the bytes of 16-bit parameters, gradients, and Adam with its fp32 copy.

    They are 2 P, g P and 12 P for the parameters P after tensor and pipeline division, and gradients of g bytes. ZeRO
    shards them from right to left. `master`: the parameters themselves are fp32 (FSDP with mixed precision), which
    makes 4 P, g P and 8 P.
    """
    held, states = (4.0, 8.0) if master else (2.0, 12.0)
    return (
        held * parameters / (shards if zero_stage >= 3 else 1),
        float(grad_bytes) * parameters / (shards if zero_stage >= 2 else 1),
        states * parameters / (shards if zero_stage >= 1 else 1),
    )


def activation_bytes(
    model: Transformer,
    seq_len: int,
    tp: int,
    *,
    sequence_parallel: bool,
    recompute: str,
    flash: bool,
    dropout: bool,
    gate: float = 8.0,
) -> float:
    """Return the bytes that one layer keeps of one token for its backward pass (arXiv 2205.05198).

    A GPT without flash attention keeps h (10 + 24/t + 5 a s/(h t)), see equations 1 to 6. Sequence parallelism divides
    all of it by t. The term 5 a s disappears with flash attention or recomputed attention; 2 h remain if the whole
    layer is recomputed. A gated MLP keeps `gate` bytes for each column.
    """
    # Two bytes a column: inputs of both norms, of attention and of the MLP; dropout masks of one byte, two a layer.
    outside = (10.0 if dropout else 8.0) * model.hidden
    # Queries and the output have the width of all heads, keys and values that of the key heads.
    attention = 2.0 * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    inside = attention + (gate if model.gated else 4.0) * model.ffn
    scores = 0.0 if flash or recompute == "selective" else 5.0 * model.heads * seq_len
    share = tp if sequence_parallel else 1
    if recompute == "full":
        return 2.0 * model.hidden / share
    return outside / share + (inside + scores) / tp


def kept_bytes(layout: TrainingLayout, fitted: Constants, recompute: str) -> float:
    """Return the bytes that one layer of a layout keeps of one token with this recomputation."""
    return activation_bytes(
        layout.model,
        layout.seq_len,
        layout.tp,
        sequence_parallel=layout.sequence_parallel,
        recompute=recompute,
        flash=layout.flash,
        dropout=layout.model.norm_biases,
        gate=fitted.gate,
    )


def micro_batches_in_flight(layout: TrainingLayout, index: int = 0) -> float:
    """Return the micro-batches whose activations a stage keeps.

    They are min(m, p - i). Interleaved, a stage begins v-1 rounds of p chunks ahead, and two more chunks for each later
    stage (arXiv 2104.04473; the order of Megatron and torch), so at most p + (p-1-2i)/v; a chunk has 1/v of its layers.
    """
    p, v = layout.pp, layout.virtual_stages
    if v == 1:
        return min(layout.micro_batches, p - index)
    return min(layout.micro_batches, ((v - 1) * p + 2 * (p - 1 - index) + 1) / v)


def stage_memory(layout: TrainingLayout, fitted: Constants, stage: PipelineStage, index: int = 0) -> Memory:
    """Return the peak memory of a GPU of one stage."""
    model, shards = layout.model, layout.dp * layout.cp
    tables = stage.table_parameters(model)
    if stage.head and not stage.embedding and model.tied:
        # The last stage needs a copy of the tied table.
        tables += model.vocab * model.hidden
    owned = (stage.layers * model.layer_parameters + tables) / layout.tp
    parameters, gradients, optimizer = model_state_bytes(
        owned, shards, layout.zero_stage, layout.grad_bytes, master=layout.zero_stage == 3
    )
    if layout.sends_gradients_to_host:
        # A gradient leaves the GPU as soon as the backward pass of its layer has computed it.
        gradients = layout.grad_bytes * model.largest_layer / layout.tp
    if layout.offload:
        optimizer, parameters = 0.0, parameters if layout.zero_stage < 3 else 0.0
    in_flight = micro_batches_in_flight(layout, index)
    activations, working = _activation_memory(layout, fitted)
    # From the second micro-batch on, the previous output is still allocated.
    each = fitted.logit_bytes + (fitted.logit_kept if layout.micro_batches > 1 else 0.0)
    logits = layout.tokens * (each * model.vocab / layout.tp + 4 * model.hidden) if stage.head else 0.0
    unsharded = 4.0 * model.largest_layer / layout.tp if layout.zero_stage == 3 else 0.0
    if layout.zero_stage == 3 and layout.pp > 1:
        # A pipeline uses them for every micro-batch, so parameters and gradients stay gathered for the whole step.
        unsharded = (2.0 + layout.grad_bytes) * owned
    on_gpu = owned / (shards if layout.zero_stage == 3 else 1)
    if layout.offload:
        on_gpu = 0.0
    found = Memory(
        parameters,
        gradients,
        optimizer,
        in_flight * stage.layers * activations + (working if stage.layers else 0.0),
        logits,
        fitted.reserve * GIB + fitted.state_waste * on_gpu + unsharded,
        index,
        _prefetched_bytes(layout, fitted, stage, in_flight) if fitted.ahead else 0.0,
    )
    # Before an allocation fails, the allocator waits for the GPU and gets these bytes back. Memory 0 means unknown.
    excess = found.total - (layout.machine.gpu.memory * fitted.usable or math.inf)
    # One byte more, because sums are rounded.
    return structs.replace(found, ahead=max(0.0, found.ahead - excess - 1)) if excess > 0 and found.ahead else found


def _prefetched_bytes(layout: TrainingLayout, fitted: Constants, stage: PipelineStage, in_flight: float) -> float:
    """Return the bytes gathered for layers that the host has launched before the GPU reaches them.

    Each layer gathers its input over the tensor group twice in the forward pass. In a pipeline the host runs ahead
    during the first forward passes, but not if the pipeline stalls: on many GPUs, or with tensor groups across nodes.
    With one stage it always runs ahead, from the second micro-batch on by the maximum.
    """
    if not layout.sequence_parallel:
        return 0.0
    layers = fitted.ahead if layout.micro_batches > 1 else fitted.ahead / 2
    if layout.pp > 1:
        stalls = layout.gpus >= STALLING_GPUS or layout.tensor_group.nodes > 2
        layers = 0.0 if stalls else min(max(0.0, (in_flight - 2) * stage.layers), fitted.ahead)
    # Two inputs of 2 bytes; 1/t of each is on the rank anyway.
    return layout.tokens * 4 * layout.model.hidden * (1 - 1 / layout.tp) * layers


def _activation_memory(layout: TrainingLayout, fitted: Constants) -> tuple[float, float]:
    """Return the bytes that a layer keeps of one micro-batch, and the extra bytes of the active layer."""
    # The active layer gathers the input of a matrix product and its gradient.
    gathered = 4.0 * layout.model.hidden * (1 - 1 / layout.tp) if layout.sequence_parallel else 0.0
    whole, scale = kept_bytes(layout, fitted, "none"), fitted.activation_scale
    if layout.recompute == "full":
        # The active layer has recomputed all of its activations.
        return layout.tokens * kept_bytes(layout, fitted, "full"), layout.tokens * (scale * whole + gathered)
    if layout.recompute == "none":
        return layout.tokens * scale * whole, layout.tokens * gathered
    if not fitted.selective_core:
        return layout.tokens * scale * fitted.selective_share * whole, layout.tokens * gathered
    kept = kept_bytes(layout, fitted, "selective")
    return layout.tokens * scale * kept, layout.tokens * (scale * (whole - kept) + gathered)


def peak_memory(layout: TrainingLayout, fitted: Constants) -> Memory:
    """Return the memory of the stage with the highest peak, which is the first or the last."""
    stages = split_stages(layout, fitted.by_cost)
    first = stage_memory(layout, fitted, stages[0])
    if layout.pp == 1:
        return first
    last = stage_memory(layout, fitted, stages[-1], layout.pp - 1)
    return max(first, last, key=lambda memory: memory.total)
