"""RANK and WORLD_SIZE, set by hand or by a launcher that we do not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import IncompleteEnvironment
from hpc_kit.runtime.launchers import leftovers, places
from hpc_kit.runtime.variables import master_port, needed, number, shown
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping


PLAIN_SOURCES = {
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "node_rank": "GROUP_RANK",
    "nnodes": "GROUP_WORLD_SIZE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}
"""Torch's own names."""


def from_plain_variables(environ: Mapping[str, str]) -> World | None:
    """The world that RANK and WORLD_SIZE describe, or None where neither is set.

    Raises:
        IncompleteEnvironment: Only one of them is set, or several ranks have no address to meet at.
        ContradictoryEnvironment: The numbers do not fit together.
    """
    if not environ.get("RANK") and environ.get("WORLD_SIZE", "1").strip() in {"", "1"}:
        return None
    if places.names_another_job(environ, environ.get("MASTER_ADDR", "")):
        return None  # a batch shell whose job a rank of another one has submitted
    rank = needed(environ, "RANK", beside="WORLD_SIZE")
    size = needed(environ, "WORLD_SIZE", beside="RANK")
    address, port = environ.get("MASTER_ADDR") or None, master_port(environ)
    if size > 1 and (address is None or port is None):
        raise IncompleteEnvironment(
            "the ranks have no address to meet at",
            found=f"{shown(environ, 'RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')}, "
            f"but no {'MASTER_ADDR' if address is None else 'MASTER_PORT'}",
            remedy="start with srun or torchrun; or set MASTER_ADDR, the host of rank 0, and MASTER_PORT",
        )
    return World(
        rank=rank,
        world_size=size,
        local_rank=number(environ, "LOCAL_RANK"),
        local_world_size=number(environ, "LOCAL_WORLD_SIZE"),
        node_rank=number(environ, "GROUP_RANK"),
        nnodes=number(environ, "GROUP_WORLD_SIZE"),
        master_addr=address,
        master_port=port,
        launcher="env",
        name="the launch that set RANK and WORLD_SIZE",
        key=f"env {address}:{port}, size {size}",
        sources=dict(PLAIN_SOURCES),
        left=leftovers.looks_like_mpi(environ),
    ).checked()
