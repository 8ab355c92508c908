"""A layout: how the training of one model is split over a machine, and what each framework supports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from hpc_kit.planner.hardware import Machine, RankGroup, make_rank_group
from hpc_kit.planner.transformer import Transformer

Recompute = Literal["none", "selective", "full"]


class TrainingLayout(Struct, frozen=True, kw_only=True):
    """A layout of one model on one machine.

    Ranks are numbered tensor first, then context, data and pipeline: tensor groups lie inside a node if they fit.

    Attributes:
        dp, tp, pp, cp: Degrees of data, tensor, pipeline and context parallelism; their product is `gpus`.
        virtual_stages: Number of chunks of layers on a pipeline rank; 1: not interleaved.
        zero_stage: 0 none, 1 optimizer states, 2 + gradients, 3 + parameters, sharded over dp x cp.
        micro_batch: Sequences of one forward pass on one data-parallel rank.
        global_batch: Sequences of one step.
        tp_overlap: Tensor-parallel communication overlaps with matrix products.
        grad_bytes: Bytes in which the gradient of a parameter is kept and reduced.
        flash: Attention without an s x s matrix.
        precision: Number format of the matrix products: `bf16`, `fp16`, `fp8`.
        rowwise: 8-bit products have a scale for each row, not for each tensor.
        compiled: torch.compile fuses kernels.
        offload: Gradients and optimizer states are in the host's memory, and its CPUs update the parameters. With
            ZeRO-3 the parameters are there, too.
    """

    model: Transformer
    machine: Machine
    seq_len: int
    global_batch: int
    micro_batch: int = 1
    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    virtual_stages: int = 1
    zero_stage: int = 0
    sequence_parallel: bool = False
    tp_overlap: bool = False
    recompute: Recompute = "none"
    flash: bool = True
    precision: str = "bf16"
    rowwise: bool = False
    compiled: bool = False
    grad_bytes: int = 4
    framework: str = "torch"
    offload: bool = False

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def micro_batches(self) -> int:
        """Micro-batches a step on one data-parallel rank: m = B/(d b)."""
        return max(1, round(self.global_batch / (self.dp * self.micro_batch)))

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch on one rank."""
        return self.micro_batch * self.seq_len / self.cp

    @property
    def boundary_bytes(self) -> float:
        """Bytes of the 16-bit activations between two layers, of one micro-batch on one rank: 2 b s h."""
        return 2.0 * self.tokens * self.model.hidden

    @property
    def key_value_bytes(self) -> float:
        """Bytes of a layer's 16-bit keys and values for the whole sequences of a micro-batch."""
        return 4.0 * self.micro_batch * self.seq_len * self.model.kv_heads * self.model.head_dim / self.tp

    @property
    def tensor_all_reduces(self) -> int:
        """All-reduces of a layer over the tensor group.

        Attention and MLP have one each, forward and backward; full recomputation repeats the forward pass.
        """
        return 6 if self.recompute == "full" else 4

    @property
    def context_passes(self) -> int:
        """Passes of a layer's keys and values around the ring of the context group.

        One forward, two backward (keys and values, and their gradients), and one for full recomputation.
        """
        return 4 if self.recompute == "full" else 3

    @property
    def tensor_group(self) -> RankGroup:
        """The ranks that share each matrix."""
        return make_rank_group(self.tp, 1, self.machine.gpus_per_node)

    @property
    def context_group(self) -> RankGroup:
        """The ranks that share a sequence."""
        return make_rank_group(self.cp, self.tp, self.machine.gpus_per_node)

    @property
    def data_group(self) -> RankGroup:
        """The ranks that hold the same parameters: dp x cp."""
        return make_rank_group(self.dp * self.cp, self.tp, self.machine.gpus_per_node)

    @property
    def sends_gradients_to_host(self) -> bool:
        """True if offloaded gradients leave the GPU with every micro-batch.

        With ZeRO-1, several micro-batches are added up on the GPU before they are reduced.
        """
        return self.offload and (self.zero_stage > 1 or self.dp * self.cp == 1 or self.micro_batches == 1)

    @property
    def pipeline_crosses_nodes(self) -> bool:
        """True if neighbouring stages can lie on two nodes."""
        return self.pp > 1 and self.gpus > self.machine.gpus_per_node


class PipelineStage(Struct, frozen=True):
    """A pipeline stage: its number of layers, and whether it has the input and output tables."""

    layers: int
    embedding: bool
    head: bool

    def table_parameters(self, model: Transformer) -> int:
        """Return the parameters of the tables of this stage."""
        return (model.embedding_parameters if self.embedding else 0) + (model.head_parameters if self.head else 0)


def split_stages(layout: TrainingLayout, by_cost: float = 0.0) -> tuple[PipelineStage, ...]:
    """Split the model of a layout into pipeline stages.

    With `by_cost` 0 they have L/p layers each, the remainder on the first stages. With 1, each stage takes layers until
    it has its share of all multiplications, V h for the output included. nanotron splits in this way, so that its first
    stages have more layers.
    """
    model, pp = layout.model, layout.pp
    if by_cost and pp > 1:
        counts = _layers_by_cost(model, pp)
    else:
        quotient, remainder = divmod(model.layers, pp)
        counts = [quotient + (index < remainder) for index in range(pp)]
    return tuple(PipelineStage(count, index == 0, index == pp - 1) for index, count in enumerate(counts))


def _layers_by_cost(model: Transformer, pp: int) -> list[int]:
    layer, head = model.layer_weights, model.vocab * model.hidden
    total = layer * model.layers + head
    counts = [0] * pp
    stage = 0
    for index in range(model.layers):
        # The layers before this one fill the share of the stage. With integers, nothing is rounded.
        while index * layer * pp >= total * (stage + 1) and stage < pp - 1:
            stage += 1
        counts[stage] += 1
    return counts


def owned_parameters(layout: TrainingLayout, stages: Sequence[PipelineStage]) -> float:
    """Return the parameters of a rank before ZeRO shards them: most layers of a stage, and the first stage's tables."""
    layers = max(stage.layers for stage in stages)
    return (layers * layout.model.layer_parameters + stages[0].table_parameters(layout.model)) / layout.tp


MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Sequences of one forward pass to try."""
VIRTUAL_STAGES = (1, 2, 3, 4, 6, 8)
"""Numbers of virtual stages to try."""


class Framework(Struct, frozen=True):
    """Features of one framework in the measured releases or later ones.

    Attributes:
        zero: ZeRO stages without a pipeline.
        zero_piped: ZeRO stages within a pipeline.
        replicas_alone: ZeRO-0 works only without any other kind of parallelism.
        tensor, pipeline, context: The framework supports this kind of parallelism.
        interleaved: A pipeline rank can have several chunks of layers.
    """

    zero: tuple[int, ...] = (0, 1, 2, 3)
    zero_piped: tuple[int, ...] = (0, 1)
    replicas_alone: bool = False
    tensor: bool = True
    pipeline: bool = True
    context: bool = True
    interleaved: bool = True


FRAMEWORKS = {
    "torch": Framework(),
    # Megatron's distributed optimizer is ZeRO-1. Its newer FSDP was not measured and is not offered.
    "megatron": Framework(zero=(0, 1)),
    "nemo": Framework(zero=(0, 1)),
    "nanotron": Framework(zero=(0, 1), interleaved=False),
    "megatron-deepspeed": Framework(context=False, interleaved=False),
    # Fully sharded, or with parameters left gathered after the forward pass (ZeRO-2); in a pipeline they always are.
    "torchtitan": Framework(zero=(0, 2, 3), zero_piped=(3,), replicas_alone=True),
    "fsdp": Framework(zero=(0, 2, 3), tensor=False, pipeline=False, context=False),
}


def zero_stages(layout: TrainingLayout) -> tuple[int, ...]:
    """Return the ZeRO stages that the framework supports with these degrees."""
    if layout.dp * layout.cp == 1:
        return (0,)
    own = FRAMEWORKS[layout.framework]
    known = own.zero_piped if layout.pp > 1 else own.zero
    return known if layout.dp == layout.gpus or not own.replicas_alone else tuple(stage for stage in known if stage)


def unsupported_reason(layout: TrainingLayout) -> str:
    """Return why the framework does not support these degrees, or an empty text."""
    own = FRAMEWORKS[layout.framework]
    kinds = (("tp", layout.tp, own.tensor), ("pp", layout.pp, own.pipeline), ("cp", layout.cp, own.context))
    missing = [name for name, degree, has in kinds if degree > 1 and not has]
    return f"{layout.framework} has no {' and no '.join(missing)}" if missing else ""


def virtual_stage_options(layout: TrainingLayout) -> list[int]:
    """Return the virtual stages to try; the micro-batches must be a multiple of p."""
    if layout.pp == 1 or layout.micro_batches % layout.pp or not FRAMEWORKS[layout.framework].interleaved:
        return [1]
    return [v for v in VIRTUAL_STAGES if can_interleave(layout.model.layers, layout.pp, v)]


def can_interleave(layers: int, pp: int, virtual_stages: int) -> bool:
    """Return whether a pipeline's stages can have this many chunks each.

    The layers divide evenly, or the two tables take the place of layers (Llama 3's 126 layers in 16 x 8 chunks).
    """
    return virtual_stages == 1 or any((layers + tables) % (pp * virtual_stages) == 0 for tables in (0, 1, 2))
