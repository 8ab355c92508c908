"""Which network interface leads to the other nodes.

The nodes of the others know the address by which they reach rank 0. The node of rank 0 does not: its own name may mean
the loopback there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from hpc_kit.runtime.rendezvous.store import OpenStore
    from hpc_kit.runtime.world import World

_KEY = "address of rank 0"


def publish_address(notes: Store, world: World, opened: OpenStore, here: str) -> None:
    """Tell the node of rank 0 the address by which this node reaches it."""
    if opened.host != here and not world.local_rank and (address := opened.address or _address(opened.host)):
        notes.set(_KEY, address)


def read_address(notes: Store, world: World, opened: OpenStore) -> str:
    """The address of rank 0, once all have told; on its own node it is the one by which the others reach it."""
    if world.nnodes != 1 and world.node_rank == 0 and notes.check([_KEY]):
        return notes.get(_KEY).decode()
    return opened.address or _address(opened.host)


def route_interface(world: World, address: str) -> str | None:
    """The interface that leads to rank 0; None where it cannot be found out, which leaves it to gloo."""
    if world.nnodes == 1:
        return network.interface_with("127.0.0.1")
    source = network.source_address(address) if address else None
    return network.interface_with(source) if source else None


def name_for(opened: OpenStore, address: str) -> str:
    """What libraries of this process are told: the host's name, or the address where the name leads nowhere."""
    leads_there = opened.bell is not None or _address(opened.host)
    return opened.host if leads_there else address or "127.0.0.1"


def _address(host: str) -> str:
    try:
        return network.lookup(host)[0]
    except OSError:
        return ""
