"""The job's [layout] as a DeviceMesh over all ranks."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING

from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.device_mesh import DeviceMesh

LAYOUT_VARIABLE = "HPC_KIT_LAYOUT"
"""Environment variable with [layout] and [model] of the job, such as `dp=2 pp=2 tp=2 micro_batches=4 heads=8`."""

INNER_DEGREES = ("pp", "dp_shard", "cp", "tp")
"""Degrees whose product divides the ranks. dp takes the rest."""

DEGREE_NAMES = ("dp", *INNER_DEGREES)


def read_layout(environ: Mapping[str, str]) -> dict[str, int]:
    """Return the job's layout and model; empty if the job has none.

    Raises:
        SpecError: The variable does not consist of pairs of name and number.
    """
    text = environ.get(LAYOUT_VARIABLE, "")
    pairs = [word.partition("=") for word in text.split()]
    if any(not (name.isidentifier() and number.isdigit()) for name, _, number in pairs):
        raise SpecError(
            f"{LAYOUT_VARIABLE} cannot be read", found=f"{LAYOUT_VARIABLE}={text}", remedy="pairs such as 'pp=2 tp=2'"
        )
    return {name: int(number) for name, _, number in pairs}


def mesh_shape(world_size: int, degrees: Mapping[str, int]) -> dict[str, int]:
    """Return the axes of the mesh and their sizes, slowest first. Neighbouring ranks, on one node, differ in tp.

    `dp` takes the remaining ranks. With `dp_shard` it becomes two axes: replicas, and shards of a replica.

    Raises:
        SpecError: The product of the degrees is not the world size.
    """
    pp, shard, cp, tp = inner = [degrees.get(name, 1) for name in INNER_DEGREES]
    replicas, rest = divmod(world_size, math.prod(inner)) if min(inner) > 0 else (0, 0)
    dp_degree = degrees.get("dp", replicas * shard)
    if rest or not replicas or dp_degree != replicas * shard:
        product = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if name in DEGREE_NAMES)
        raise SpecError(
            "the layout does not fill the world",
            found=f"{product}; {world_size} ranks",
            remedy=f"use degrees whose product is {world_size}, or leave out dp; dp_shard must divide dp",
        )
    dp = {"dp_replicate": replicas, "dp_shard": shard} if "dp_shard" in degrees else {"dp": replicas}
    return {"pp": pp, **dp, "cp": cp, "tp": tp}


def create_mesh(
    world_size: int, device_type: str, degrees: Mapping[str, int], timeout: float | None = None
) -> DeviceMesh:
    """Create a DeviceMesh over all ranks; a collective.

    Raises:
        SpecError: The product of the degrees is not the world size.
    """
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    axes = mesh_shape(world_size, degrees)
    if timeout is None:
        return init_device_mesh(device_type, tuple(axes.values()), mesh_dim_names=tuple(axes))
    # init_device_mesh gives its groups torch's default time-out of 30 minutes, so the groups are created here.
    limit = timedelta(seconds=timeout)
    ranks = torch.arange(world_size).view(*axes.values())
    groups = [
        dist.new_subgroups_by_enumeration(ranks.movedim(axis, -1).reshape(-1, size).tolist(), timeout=limit)[0]
        if size > 1
        # All ranks would create the group of each rank: thousands of calls in a large world.
        else dist.new_group([dist.get_rank()], timeout=limit, use_local_synchronization=True)
        for axis, size in enumerate(axes.values())
    ]
    return DeviceMesh.from_group(groups, device_type, mesh=ranks, mesh_dim_names=tuple(axes))
