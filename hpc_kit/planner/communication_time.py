"""Seconds of communication: collectives over a group, by its size and the links that it crosses."""

from __future__ import annotations

from hpc_kit.planner.constants import Rates
from hpc_kit.planner.machine import Group, Machine


def bus(machine: Machine, rates: Rates, group: Group) -> float:
    """Bytes/s at which a ring over the group moves data past each rank.

    Inside a node the GPU's own links. Between nodes a ring enters and leaves each node once, through the network of all
    its GPUs there; the more nodes, the less of it is reached.
    """
    inside = machine.gpu.link * rates.link
    if group.nodes == 1:
        return inside
    return min(inside, machine.network * rates.network * share_of_network(rates, group))


def share_of_network(rates: Rates, group: Group) -> float:
    """The bytes/s of a ring between nodes, as a multiple of the network of one GPU."""
    return float(group.per_node**rates.rails) / (1 + (group.nodes - 2) / rates.spread)


def delay(rates: Rates, group: Group) -> float:
    """Seconds that a collective takes besides its bytes."""
    return rates.latency + rates.latency_network * (group.nodes - 1)


def all_reduce(machine: Machine, rates: Rates, group: Group, size: float) -> float:
    """Seconds to sum `size` bytes over a group: 2 (n-1)/n S/W."""
    if group.ranks == 1:
        return 0.0
    return 2 * (group.ranks - 1) / group.ranks * size / bus(machine, rates, group) + 2 * delay(rates, group)


def gather(machine: Machine, rates: Rates, group: Group, size: float) -> float:
    """Seconds to gather, or reduce and scatter, `size` bytes in all: (n-1)/n S/W."""
    return all_reduce(machine, rates, group, size) / 2
