"""Which network interface leads to the other nodes.

The nodes of the others know the address by which they reach rank 0. The node of rank 0 does not: its own name may mean
the loopback there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.runtime import addresses

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from hpc_kit.runtime.world import World

_KEY = "address of rank 0"


def tell(notes: Store, world: World, *, master: str, here: str) -> None:
    """Tell the node of rank 0 the address by which this node reaches it."""
    if master != here and not world.local_rank and (address := _address(master)):
        notes.set(_KEY, address)


def interface(notes: Store, world: World, *, master: str) -> str | None:
    """The interface, once all have told; None where it cannot be found out, which leaves it to gloo."""
    if world.nnodes == 1:
        return addresses.interface_with("127.0.0.1")
    told = world.node_rank == 0 and notes.check([_KEY])
    address = notes.get(_KEY).decode() if told else _address(master)
    source = addresses.source_towards(address) if address else None
    return addresses.interface_with(source) if source else None


def _address(host: str) -> str:
    try:
        return addresses.lookup(host)
    except OSError:
        return ""
