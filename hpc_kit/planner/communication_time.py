"""Bytes and seconds of communication: collectives over a group, by its size and the links that it crosses."""

from __future__ import annotations

from typing import NamedTuple

from hpc_kit.planner.constants import Constants
from hpc_kit.planner.hardware import Machine, RankGroup
from hpc_kit.planner.layout import TrainingLayout, split_stages


def ring_bandwidth(machine: Machine, fitted: Constants, group: RankGroup) -> float:
    """Return the bytes/s at which a ring moves data past each rank.

    Inside a node it uses the GPUs' own links. Between nodes it enters and leaves each node once, through the network of
    all its GPUs there; the share that is reached falls with the number of nodes.
    """
    inside = machine.gpu.link * fitted.link
    if group.nodes == 1:
        return inside
    return min(inside, machine.network * fitted.network * network_share(fitted, group))


def network_share(fitted: Constants, group: RankGroup) -> float:
    """Return the bytes/s of a ring between nodes, in units of the network of one GPU."""
    return float(group.per_node**fitted.rails) / (1 + (group.nodes - 2) / fitted.spread)


def collective_latency(fitted: Constants, group: RankGroup) -> float:
    """Return the seconds of a collective without data."""
    return fitted.latency + fitted.latency_network * (group.nodes - 1)


def all_reduce_seconds(machine: Machine, fitted: Constants, group: RankGroup, size: float) -> float:
    """Return the seconds to sum `size` bytes over a group: 2 (n-1)/n S/W."""
    if group.ranks == 1:
        return 0.0
    return 2 * (group.ranks - 1) / group.ranks * size / ring_bandwidth(machine, fitted, group) + 2 * collective_latency(
        fitted, group
    )


def gather_seconds(machine: Machine, fitted: Constants, group: RankGroup, size: float) -> float:
    """Return the seconds to gather, or to reduce and scatter, `size` bytes in total: (n-1)/n S/W."""
    return all_reduce_seconds(machine, fitted, group, size) / 2


class Traffic(NamedTuple):
    """Bytes that a GPU sends in one step for one kind of parallelism, and the ranks among which they travel."""

    size: float
    group: RankGroup


def owned_parameters(layout: TrainingLayout) -> float:
    """Return the parameters of the first stage's ranks, before ZeRO shards them."""
    model, layers = layout.model, max(stage.layers for stage in split_stages(layout.model, layout.pp))
    tables = model.embedding_parameters + (0 if layout.pp > 1 else model.head_parameters)
    return (layers * model.layer_parameters + tables) / layout.tp


def traffic_per_step(layout: TrainingLayout) -> dict[str, Traffic]:
    """Return the traffic of the stage with the most layers by kind; kinds without traffic are missing.

    A rank of a ring sends (n-1)/n of the bytes that are gathered or scattered, twice that for an all-reduce.
    """
    model, m = layout.model, layout.micro_batches
    layers = max(stage.layers for stage in split_stages(model, layout.pp))
    owned = owned_parameters(layout)
    all_reduces, passes = (6, 4) if layout.recompute == "full" else (4, 3)
    activations = 2.0 * layout.tokens * model.hidden
    keys = 4.0 * layout.micro_batch * layout.seq_len * model.kv_heads * model.head_dim / layout.tp
    if layout.zero_stage == 3:
        times = m if layout.pp == 1 else 1
        gathered = times * ((4.0 if layout.pp == 1 else 2.0) + layout.grad_bytes) * owned
    elif layout.zero_stage:
        gathered = (layout.grad_bytes * (m if layout.zero_stage == 2 else 1) + 2.0) * owned
    else:
        gathered = 2.0 * layout.grad_bytes * owned
    sizes = {
        "tensor": (2 * all_reduces * layers * m * activations, layout.tensor_group),
        "context": (passes * layers * m * keys, layout.context_group),
        "shard" if layout.zero_stage == 3 else "data": (gathered, layout.data_group),
    }
    found = {
        kind: Traffic(size * (group.ranks - 1) / group.ranks, group)
        for kind, (size, group) in sizes.items()
        if group.ranks > 1
    }
    if layout.pp > 1:
        # One way: the activations to the next stage. The gradients return on the other direction of the link.
        neighbours = RankGroup(2, 1, 2) if layout.pipeline_crosses_nodes else RankGroup(2, 2, 1)
        found["pipeline"] = Traffic(layout.virtual_stages * m * activations / layout.tp, neighbours)
    return found
