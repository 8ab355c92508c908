"""Seconds of communication: collectives over a group, by its size and the links that it crosses."""

from __future__ import annotations

from hpc_kit.planner.constants import Rates
from hpc_kit.planner.hardware import Machine, RankGroup


def ring_bandwidth(machine: Machine, rates: Rates, group: RankGroup) -> float:
    """Return the bytes/s at which a ring moves data past each rank.

    Inside a node it uses the GPUs' own links. Between nodes it enters and leaves each node once, through the network of
    all its GPUs there; the share that is reached falls with the number of nodes.
    """
    inside = machine.gpu.link * rates.link
    if group.nodes == 1:
        return inside
    return min(inside, machine.network * rates.network * network_share(rates, group))


def network_share(rates: Rates, group: RankGroup) -> float:
    """Return the bytes/s of a ring between nodes, in units of the network of one GPU."""
    return float(group.per_node**rates.rails) / (1 + (group.nodes - 2) / rates.spread)


def collective_latency(rates: Rates, group: RankGroup) -> float:
    """Return the seconds of a collective without data."""
    return rates.latency + rates.latency_network * (group.nodes - 1)


def all_reduce_seconds(machine: Machine, rates: Rates, group: RankGroup, size: float) -> float:
    """Return the seconds to sum `size` bytes over a group: 2 (n-1)/n S/W."""
    if group.ranks == 1:
        return 0.0
    return 2 * (group.ranks - 1) / group.ranks * size / ring_bandwidth(machine, rates, group) + 2 * collective_latency(
        rates, group
    )


def gather_seconds(machine: Machine, rates: Rates, group: RankGroup, size: float) -> float:
    """Return the seconds to gather, or to reduce and scatter, `size` bytes in total: (n-1)/n S/W."""
    return all_reduce_seconds(machine, rates, group, size) / 2
