"""A layout: how the training of one model is split over a machine, and what each framework supports."""

from __future__ import annotations

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
        virtual_stages: Transformer chunks a pipeline rank holds; 1: not interleaved.
        zero_stage: 0 none, 1 optimizer states, 2 + gradients, 3 + parameters, sharded over dp x cp.
        micro_batch: Sequences of one forward pass on one data-parallel rank.
        global_batch: Sequences a step.
        grad_bytes: Bytes a parameter in which gradients are kept and reduced.
        flash: Attention without an s x s matrix.
        precision: Of the matrix products: `bf16`, `fp16`, `fp8`.
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


def split_stages(model: Transformer, pp: int, *, by_cost: bool = False) -> tuple[PipelineStage, ...]:
    """Split a model into pipeline stages.

    By number: L/p layers each, the remainder on the first ones. By cost: each stage takes blocks until it has its share
    of all multiplications, the output counted with V h (nanotron does so; its first stages have more layers).
    """
    if by_cost and pp > 1:
        counts = _layers_by_cost(model, pp)
    else:
        each, over = divmod(model.layers, pp)
        counts = [each + (i < over) for i in range(pp)]
    return tuple(PipelineStage(count, i == 0, i == pp - 1) for i, count in enumerate(counts))


def _layers_by_cost(model: Transformer, pp: int) -> list[int]:
    layer, head = model.layer_weights, model.vocab * model.hidden
    total = layer * model.layers + head
    counts = [0] * pp
    rank = 0
    for block in range(model.layers):
        while block * layer * pp >= total * (rank + 1) and rank < pp - 1:
            rank += 1
        counts[rank] += 1
    return counts


MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Sequences of one forward pass to try."""
VIRTUAL_STAGES = (1, 2, 3, 4, 6, 8)
"""Numbers of virtual stages to try."""


class Framework(Struct, frozen=True):
    """Features of one framework in the measured releases or later ones.

    Attributes:
        zero: ZeRO stages without a pipeline.
        zero_piped: The same within one.
        replicas_alone: Whether ZeRO-0 goes with no other kind of parallelism.
        tensor, pipeline, context: Which of these kinds it has.
        interleaved: Whether a pipeline's stages can hold several chunks.
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


def can_interleave(layers: int, pp: int, each: int) -> bool:
    """Return whether a pipeline's stages can have this many chunks each.

    The layers divide evenly, or the two tables take the place of layers (Llama 3's 126 layers in 16 x 8 chunks).
    """
    return each == 1 or any((layers + tables) % (pp * each) == 0 for tables in (0, 1, 2))
