"""Bytes and seconds of communication: collectives over a group, by its size and the links that it crosses."""

from __future__ import annotations

from typing import NamedTuple

from hpc_kit.planner.constants import Constants
from hpc_kit.planner.hardware import Machine, RankGroup
from hpc_kit.planner.layout import TrainingLayout, owned_parameters, split_stages


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
    transfer = 2 * (group.ranks - 1) / group.ranks * size / ring_bandwidth(machine, fitted, group)
    return transfer + 2 * collective_latency(fitted, group)


def gather_seconds(machine: Machine, fitted: Constants, group: RankGroup, size: float) -> float:
    """Return the seconds to gather, or to reduce and scatter, `size` bytes in total: (n-1)/n S/W."""
    # A ring all-reduce is a reduce-scatter and an all-gather.
    return all_reduce_seconds(machine, fitted, group, size) / 2


class Traffic(NamedTuple):
    """Bytes that a GPU sends in one step for one kind of parallelism, and the ranks among which they travel."""

    size: float
    group: RankGroup


def traffic_groups(layout: TrainingLayout) -> dict[str, RankGroup]:
    """Return the ranks among which the traffic of a layout travels, by kind; kinds without traffic are missing."""
    nodes = 2 if layout.pipeline_crosses_nodes else 1
    groups = {
        "tensor": layout.tensor_group,
        "context": layout.context_group,
        "shard" if layout.zero_stage == 3 else "data": layout.data_group,
        "pipeline": RankGroup(min(layout.pp, 2), 2 // nodes, nodes),
    }
    return {kind: group for kind, group in groups.items() if group.ranks > 1}


def traffic_per_step(layout: TrainingLayout, fitted: Constants) -> dict[str, Traffic]:
    """Return the traffic of the stage with the most layers by kind; kinds without traffic are missing.

    A rank of a ring sends (n-1)/n of the bytes that are gathered or scattered, twice that for an all-reduce.
    """
    m, stages = layout.micro_batches, split_stages(layout, fitted.by_cost)
    layers, owned = max(stage.layers for stage in stages), owned_parameters(layout, stages)
    if layout.zero_stage == 3 and layout.pp == 1:
        # Parameters of two bytes are gathered for the forward and for the backward pass.
        reduced = m * (2 * 2.0 + layout.grad_bytes) * owned
    elif layout.zero_stage == 3:
        # In a pipeline, they stay gathered for the whole step.
        reduced = (2.0 + layout.grad_bytes) * owned
    elif layout.zero_stage:
        reduced = (layout.grad_bytes * (m if layout.zero_stage == 2 else 1) + 2.0) * owned
    else:
        reduced = 2.0 * layout.grad_bytes * owned
    sizes = {
        "tensor": 2 * layout.tensor_all_reduces * layers * m * layout.boundary_bytes,
        "context": layout.context_passes * layers * m * layout.key_value_bytes,
        "shard": reduced,
        "data": reduced,
        # Of two neighbours, each sends half. One way: the activations to the next stage. The gradients return on the
        # other direction of the link.
        "pipeline": 2 * layout.virtual_stages * m * layout.boundary_bytes / layout.tp,
    }
    return {
        kind: Traffic(sizes[kind] * (group.ranks - 1) / group.ranks, group)
        for kind, group in traffic_groups(layout).items()
    }
