"""The hosts of the ranks that measure."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from hpc_kit.bench.machine import LOOK_SECONDS, Host, this_host
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from hpc_kit.runtime.process_group import Group


def hosts_of(world: Group, look: float = LOOK_SECONDS) -> tuple[list[Host], list[str]]:
    """The hosts, described by the first rank of each while no rank does anything; the host of each rank by name.

    A collective: every rank must call it.
    """
    from torch import distributed as dist

    dist.barrier()
    mine: Host | None = None
    if world.local_rank == 0:
        mine = this_host(look)
    else:
        time.sleep(look)
    found: list[tuple[str, Host | None]] = [("", None)] * world.world_size
    dist.all_gather_object(found, (network.this_node_name(os.environ), mine))
    return [host for _, host in found if host is not None], [name for name, _ in found]
