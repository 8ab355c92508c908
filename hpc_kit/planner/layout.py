"""One training run: a model, a machine, and how the work is split."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hpc_kit.planner.machine import Group, Machine, group
from hpc_kit.planner.model import Model

Recompute = Literal["none", "selective", "full"]


class Run(Struct, frozen=True, kw_only=True):
    """A layout of one model on one machine.

    Ranks are counted tensor first, then context, data and pipeline: tensor groups lie inside a node if they fit.

    Attributes:
        dp, tp, pp, cp: Degrees of data, tensor, pipeline and context parallelism; their product is `gpus`.
        virtual_stages: Model chunks a pipeline rank holds; 1: not interleaved.
        zero_stage: 0 none, 1 optimizer states, 2 + gradients, 3 + parameters, sharded over dp x cp.
        micro_batch: Sequences of one forward pass on one data-parallel rank.
        global_batch: Sequences a step.
        grad_bytes: Bytes a parameter in which gradients are kept and reduced.
        flash: Attention without an s x s matrix.
        precision: Of the matrix products: `bf16`, `fp16`, `fp8`.
    """

    model: Model
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
    def tensor_group(self) -> Group:
        """The ranks that share each matrix."""
        return group(self.tp, 1, self.machine.gpus_per_node)

    @property
    def context_group(self) -> Group:
        """The ranks that share a sequence."""
        return group(self.cp, self.tp, self.machine.gpus_per_node)

    @property
    def data_group(self) -> Group:
        """The ranks that hold the same parameters: dp x cp."""
        return group(self.dp * self.cp, self.tp, self.machine.gpus_per_node)

    @property
    def pipeline_crosses_nodes(self) -> bool:
        """Whether neighbouring stages can lie on two nodes."""
        return self.pp > 1 and self.gpus > self.machine.gpus_per_node


class Stage(Struct, frozen=True):
    """A pipeline stage: how many layers it holds, and whether the two tables."""

    layers: int
    embedding: bool
    head: bool


def stages(model: Model, pp: int, *, by_cost: bool = False) -> tuple[Stage, ...]:
    """The stages of a pipeline.

    By number: L/p layers each, what is left over on the first ones. By cost: each stage takes blocks until it holds its
    share of all multiplications, the output counted with V h (nanotron places blocks so; its first stages hold more).
    """
    if by_cost and pp > 1:
        counts = _by_cost(model, pp)
    else:
        each, over = divmod(model.layers, pp)
        counts = [each + (i < over) for i in range(pp)]
    return tuple(Stage(count, i == 0, i == pp - 1) for i, count in enumerate(counts))


def _by_cost(model: Model, pp: int) -> list[int]:
    layer, head = model.layer_weights, model.vocab * model.hidden
    total = layer * model.layers + head
    counts = [0] * pp
    rank = 0
    for block in range(model.layers):
        while block * layer * pp >= total * (rank + 1) and rank < pp - 1:
            rank += 1
        counts[rank] += 1
    return counts
