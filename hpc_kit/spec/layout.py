"""How the ranks share the work: the degree of each kind of parallelism, and which ranks that puts together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

Degree = Annotated[int, Meta(ge=1)]
Axis = Literal["pp", "dp", "cp", "tp"]


class Layout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Degrees of parallelism, whose product must be the number of ranks; and how a batch is cut for them."""

    dp: Annotated[Degree | None, Meta(description="Data parallel degree (default: what fills the job)")] = None
    pp: Annotated[Degree, Meta(description="Pipeline stages")] = 1
    tp: Annotated[Degree, Meta(description="Tensor parallel degree; best kept inside a node")] = 1
    cp: Annotated[Degree, Meta(description="Context parallel degree")] = 1
    zero: Annotated[
        int, Meta(ge=0, le=3, description="ZeRO stage over dp: 1 optimizer state, 2 and gradients, 3 and parameters")
    ] = 0
    dp_shard: Annotated[
        Degree | None, Meta(description="With zero: ranks of dp that share one replica (default: all of them)")
    ] = None
    global_batch: Annotated[Degree | None, Meta(description="Samples of a step, over all ranks")] = None
    micro_batches: Annotated[
        Degree | None, Meta(description="Parts of a replica's samples that follow one another through the stages")
    ] = None

    def size(self, world_size: int) -> int:
        """Ranks that the layout asks for; a `dp` left out takes what the others leave of `world_size`."""
        return self.pp * self.tp * self.cp * self.replicas(world_size)

    def replicas(self, world_size: int) -> int:
        """The data parallel degree in a world of that size."""
        return self.dp if self.dp is not None else max(1, world_size // (self.pp * self.tp * self.cp))

    def degrees(self, world_size: int) -> dict[Axis, int]:
        """Axes of the mesh, slowest first: neighbouring ranks differ in tp, those of two stages lie farthest apart."""
        return {"pp": self.pp, "dp": self.replicas(world_size), "cp": self.cp, "tp": self.tp}

    def groups(self, axis: Axis, world_size: int) -> list[range]:
        """The ranks that differ in this axis only, group by group."""
        degrees = self.degrees(world_size)
        order = list(degrees)
        step = 1
        for faster in order[order.index(axis) + 1 :]:
            step *= degrees[faster]
        size = degrees[axis]
        starts = [block * step * size + inner for block in range(world_size // (step * size)) for inner in range(step)]
        return [range(start, start + step * size, step) for start in starts]

    def __str__(self) -> str:
        named = [("dp", self.dp), ("pp", self.pp), ("tp", self.tp), ("cp", self.cp)]
        shown = [f"{name} {degree}" for name, degree in named if degree is not None and (degree > 1 or name == "dp")]
        return " x ".join(shown) or "dp"


def idle_share(stages: int, micro_batches: int, per_rank: int = 1) -> float:
    """The share of a step for which the ranks of a pipeline stand idle, where all stages take equally long.

    (p - 1) / (v m + p - 1): Huang et al., 2019 (arXiv:1811.06965), section 2.3.

    Args:
        stages: p, the ranks of the pipeline.
        micro_batches: m.
        per_rank: v, how many stages a rank has that take turns.
    """
    return (stages - 1) / (per_rank * micro_batches + stages - 1)


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the checks and the program are told of the model; what is not said is not checked."""

    layers: Annotated[Degree | None, Meta(description="Layers; a pipeline stage needs one at least")] = None
    heads: Annotated[Degree | None, Meta(description="Attention heads; tp must divide them")] = None
    width: Annotated[Degree | None, Meta(description="Width of the stream between the layers")] = None
    sequence: Annotated[Degree | None, Meta(description="Tokens of a sample; cp must divide them")] = None
    parameters: Annotated[
        Degree | None, Meta(description="Numbers that it learns (default: 12 x layers x width squared)")
    ] = None

    def count(self) -> int | None:
        """Parameters, as said, or those of the matrices of a transformer; None where neither is known."""
        if self.parameters is not None or self.layers is None or self.width is None:
            return self.parameters
        return 12 * self.layers * self.width**2


def told(layout: Layout, model: Model, own: Mapping[str, object] | None = None) -> str:
    """Both as the program is told them: `dp=2 pp=2 heads=4`; empty where the job says nothing of them.

    Args:
        layout: The degrees.
        model: The model.
        own: What the program takes where it is not told, as far as that is known.
    """
    tables = (layout, Layout()), (model, Model())
    return " ".join(
        f"{name}={value}"
        for table, usual in tables
        for name in table.__struct_fields__
        if (value := getattr(table, name)) != getattr(usual, name)
        or (own and value is not None and value != own.get(name, value))
    )
