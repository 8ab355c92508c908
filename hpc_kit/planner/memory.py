"""Memory of one GPU: parameters, gradients, optimizer states, activations, logits, buffers; and whether it fits.

The formulas are those of arXiv 1910.02054 (model states) and 2205.05198 (activations); few constants stand for what
they leave out: copies that a framework keeps, gathered tensors, temporaries, the allocator's waste.
"""

from __future__ import annotations

import math

from msgspec import Struct, structs

from hpc_kit.planner.constants import Rates
from hpc_kit.planner.hardware import GIB
from hpc_kit.planner.layout import PipelineStage, TrainingLayout, split_stages
from hpc_kit.planner.model import Model

STALLING_GPUS = 512
"""GPUs from which the pipelines of the measured sweep stand still a second a micro-batch: no host is ahead there."""


class Memory(Struct, frozen=True):
    """Bytes on one GPU at the peak, by what holds them; `stage` is the pipeline stage they were counted for.

    `ahead` is what a host has asked for before the GPU needs it: it is given back before an allocation fails.
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
        """The peak."""
        held = self.parameters + self.gradients + self.optimizer + self.activations + self.logits + self.buffers
        return held + self.ahead

    @property
    def gib(self) -> float:
        """The peak in GiB."""
        return self.total / GIB


def model_state_bytes(
    parameters: float, shards: int, zero_stage: int, grad_bytes: int = 2, *, master: bool = False
) -> tuple[float, float, float]:
    """Bytes of 16-bit parameters, gradients, and Adam with its fp32 copy: 2 P, g P, 12 P; ZeRO divides from the right.

    Args:
        parameters: P, after tensor and pipeline division.
        shards: Ranks over which ZeRO shards.
        zero_stage: 0 to 3.
        grad_bytes: g, bytes a gradient is kept in.
        master: Parameters themselves are fp32 (FSDP with mixed precision): 4 P, g P, 8 P.
    """
    held, states = (4.0, 8.0) if master else (2.0, 12.0)
    return (
        held * parameters / (shards if zero_stage >= 3 else 1),
        float(grad_bytes) * parameters / (shards if zero_stage >= 2 else 1),
        states * parameters / (shards if zero_stage >= 1 else 1),
    )


def activation_bytes(
    model: Model,
    seq_len: int,
    tp: int,
    *,
    sequence_parallel: bool,
    recompute: str,
    flash: bool,
    dropout: bool,
    gate: float = 8.0,
) -> float:
    """Bytes that one layer keeps of one token until its backward pass (arXiv 2205.05198, equations 1 to 6).

    A GPT without flash attention: h (10 + 24/t + 5 a s/(h t)); with sequence parallelism all of it divided by t;
    without the 5 a s where attention is flash or recomputed; 2 h where the whole layer is. A gated MLP keeps `gate`
    bytes for each column: both products, their activation and what comes of them; fused, all but the activation.
    """
    outside = (10.0 if dropout else 8.0) * model.hidden
    attention = 2.0 * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    inside = attention + (gate if model.gated else 4.0) * model.ffn
    scores = 0.0 if flash or recompute == "selective" else 5.0 * model.heads * seq_len
    share = tp if sequence_parallel else 1
    if recompute == "full":
        return 2.0 * model.hidden / share
    return outside / share + (inside + scores) / tp


def micro_batches_in_flight(layout: TrainingLayout, index: int = 0) -> float:
    """Micro-batches whose activations a stage keeps: min(m, p - i); interleaved, at most p + (p-1-2i)/v.

    Interleaved, a stage begins v-1 rounds of p chunks ahead, and two chunks more for each stage behind it (arXiv
    2104.04473, Megatron's and torch's order); a chunk is 1/v of its layers.
    """
    p, v = layout.pp, layout.virtual_stages
    if v == 1:
        return min(layout.micro_batches, p - index)
    return min(layout.micro_batches, ((v - 1) * p + 2 * (p - 1 - index) + 1) / v)


def stage_memory(layout: TrainingLayout, rates: Rates, stage: PipelineStage, index: int = 0) -> Memory:
    """Peak memory of a GPU of one stage."""
    model, shards = layout.model, layout.dp * layout.cp
    tables = (model.embedding_parameters if stage.embedding else 0) + (model.head_parameters if stage.head else 0)
    if stage.head and not stage.embedding and model.tied:
        tables += model.vocab * model.hidden
    owned = (stage.layers * model.layer_parameters + tables) / layout.tp
    parameters, gradients, optimizer = model_state_bytes(
        owned, shards, layout.zero_stage, layout.grad_bytes, master=layout.zero_stage == 3
    )
    kept = micro_batches_in_flight(layout, index)
    activations, working = _activation_memory(layout, rates)
    # From the second micro-batch on, the output of the one before is still held.
    each = rates.logit_bytes + (rates.logit_kept if layout.micro_batches > 1 else 0.0)
    logits = layout.tokens * (each * model.vocab / layout.tp + 4 * model.hidden) if stage.head else 0.0
    unsharded = 4.0 * model.largest_layer / layout.tp if layout.zero_stage == 3 else 0.0
    if layout.zero_stage == 3 and layout.pp > 1:
        # A pipeline needs them for each micro-batch: parameters and gradients stay gathered for the whole step.
        unsharded = (2.0 + layout.grad_bytes) * owned
    found = Memory(
        parameters,
        gradients,
        optimizer,
        kept * stage.layers * activations + (working if stage.layers else 0.0),
        logits,
        rates.reserve * GIB + rates.state_waste * owned / (shards if layout.zero_stage == 3 else 1) + unsharded,
        index,
        _prefetched_bytes(layout, rates, stage, kept) if rates.ahead else 0.0,
    )
    # Before an allocation fails the allocator waits for the GPU, and has back what it needs.
    excess = found.total - (layout.machine.gpu.memory * rates.usable or math.inf)
    # A byte more than that: sums are rounded.
    return structs.replace(found, ahead=max(0.0, found.ahead - excess - 1)) if excess > 0 and found.ahead else found


def _prefetched_bytes(layout: TrainingLayout, rates: Rates, stage: PipelineStage, kept: float) -> float:
    """Bytes gathered over the tensor group for layers that the host has launched and the GPU has not reached.

    Each layer gathers its input twice going forward. In a pipeline the host is ahead while the first micro-batches go
    forward and nothing has come back, and not where the pipeline stands still: on many GPUs, or with tensor groups
    over several nodes. With one stage it is ahead always, from the second micro-batch on by all that it may be.
    """
    if not layout.sequence_parallel:
        return 0.0
    layers = rates.ahead if layout.micro_batches > 1 else rates.ahead / 2
    if layout.pp > 1:
        stalls = layout.gpus >= STALLING_GPUS or layout.tensor_group.nodes > 2
        layers = 0.0 if stalls else min(max(0.0, (kept - 2) * stage.layers), rates.ahead)
    return layout.tokens * 4 * layout.model.hidden * (1 - 1 / layout.tp) * layers


def _activation_memory(layout: TrainingLayout, rates: Rates) -> tuple[float, float]:
    """Bytes that a layer keeps of one micro-batch, and what the layer at work needs besides."""

    def of_token(recompute: str) -> float:
        return activation_bytes(
            layout.model,
            layout.seq_len,
            layout.tp,
            sequence_parallel=layout.sequence_parallel,
            recompute=recompute,
            flash=layout.flash,
            dropout=layout.model.norm_biases,
            gate=rates.gate,
        )

    # A matrix product of the layer at work has its input gathered, and the gradient of that.
    gathered = 4.0 * layout.model.hidden * (1 - 1 / layout.tp) if layout.sequence_parallel else 0.0
    whole, scale = of_token("none"), rates.activation_scale
    if layout.recompute == "full":
        return layout.tokens * of_token("full"), layout.tokens * (scale * whole + gathered)
    if layout.recompute == "none":
        return layout.tokens * scale * whole, layout.tokens * gathered
    if not rates.selective_core:
        return layout.tokens * scale * rates.selective_share * whole, layout.tokens * gathered
    kept = of_token("selective")
    return layout.tokens * scale * kept, layout.tokens * (scale * (whole - kept) + gathered)


def peak_memory(layout: TrainingLayout, rates: Rates) -> Memory:
    """The memory of the stage that needs most: the first and the last are looked at, all others hold less."""
    parts = split_stages(layout.model, layout.pp, by_cost=bool(rates.by_cost))
    first = stage_memory(layout, rates, parts[0])
    if layout.pp == 1:
        return first
    last = stage_memory(layout, rates, parts[-1], layout.pp - 1)
    return max(first, last, key=lambda memory: memory.total)
