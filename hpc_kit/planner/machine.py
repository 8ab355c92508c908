"""What a cluster can do, from data sheets: GPUs, the links inside a node, the network between nodes."""

from __future__ import annotations

from msgspec import Struct

GIB = 2.0**30


class Gpu(Struct, frozen=True, kw_only=True):
    """One kind of GPU.

    Attributes:
        memory: Bytes that a program can have, GiB x 2^30: what the driver shows less its own share.
        bandwidth: Bytes/s of its memory.
        flops: Floating-point operations/s of dense 16-bit matrix products, data sheet.
        flops8: The same of 8-bit floating point; 0: it has none.
        measured: Share of `flops` that the best measured matrix product reaches.
        link: Bytes/s, each way, to the other GPUs of its node.
        bf16: Whether it has matrix products of bfloat16.
        units: Multiprocessors: a matrix product runs in waves of this many tiles.
        generation: Which fitted constants hold.
    """

    name: str
    memory: float
    bandwidth: float
    flops: float
    link: float
    units: int
    generation: str
    flops8: float = 0.0
    measured: float = 0.8
    bf16: bool = True


class Machine(Struct, frozen=True, kw_only=True):
    """Nodes of one kind and the network between them.

    Attributes:
        network: Bytes/s of network a GPU has, each way.
        fabric: `infiniband`, `efa`, `omnipath` or `ethernet`.
    """

    gpu: Gpu
    gpus_per_node: int
    network: float
    fabric: str = "infiniband"


class Group(Struct, frozen=True):
    """Ranks that talk to one another: `ranks` in all, `per_node` on each of `nodes` nodes."""

    ranks: int
    per_node: int
    nodes: int


def group(ranks: int, stride: int, gpus_per_node: int) -> Group:
    """The group of `ranks` ranks that lie `stride` apart, where ranks fill node after node."""
    per_node = max(1, min(ranks, gpus_per_node // stride)) if stride <= gpus_per_node else 1
    return Group(ranks, per_node, -(-ranks // per_node))
