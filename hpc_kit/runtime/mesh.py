"""The degrees of parallelism that a job file says, as the program in the job sees them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.device_mesh import DeviceMesh

    from hpc_kit.runtime.process_group import Group

LAYOUT_VARIABLE = "HPC_KIT_LAYOUT"
"""Environment variable: [layout] and [model] of the job, such as `dp=2 pp=2 tp=2 micro_batches=4 heads=8`."""

INNER_DEGREES = ("pp", "dp_shard", "cp", "tp")
"""What divides the ranks, besides dp, which takes those that are left."""

DEGREE_NAMES = ("dp", *INNER_DEGREES)


def read_layout(environ: Mapping[str, str]) -> dict[str, int]:
    """What the job says of its layout and model; empty outside of a job that says something.

    Raises:
        SpecError: The variable does not read as pairs of name and number.
    """
    text = environ.get(LAYOUT_VARIABLE, "")
    pairs = [word.partition("=") for word in text.split()]
    if any(not (name.isidentifier() and number.isdigit()) for name, _, number in pairs):
        raise SpecError(
            f"{LAYOUT_VARIABLE} cannot be read", found=f"{LAYOUT_VARIABLE}={text}", remedy="pairs such as 'pp=2 tp=2'"
        )
    return {name: int(number) for name, _, number in pairs}


def mesh_axes(world_size: int, degrees: Mapping[str, int]) -> dict[str, int]:
    """Axes of the mesh and their sizes, slowest first: neighbouring ranks, on one node, differ in tp.

    `dp` takes the ranks that the others leave; with `dp_shard` it is two axes, replicas and shards of a replica.

    Raises:
        SpecError: The degrees do not fill the world.
    """
    pp, shard, cp, tp = (degrees.get(name, 1) for name in INNER_DEGREES)
    replicas, rest = divmod(world_size, pp * shard * cp * tp)
    said = degrees.get("dp", replicas * shard)
    if rest or not replicas or said != replicas * shard:
        product = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if name in DEGREE_NAMES)
        raise SpecError(
            "the layout does not fill the world",
            found=f"{product}; {world_size} ranks",
            remedy="degrees whose product is that; dp may be left out: it takes what is left. dp_shard divides dp",
        )
    dp = {"dp_replicate": replicas, "dp_shard": shard} if "dp_shard" in degrees else {"dp": replicas}
    return {"pp": pp, **dp, "cp": cp, "tp": tp}


def create_mesh(group: Group, degrees: Mapping[str, int]) -> DeviceMesh:
    """A DeviceMesh over all ranks, with the time-out of the default group in each of its groups.

    Raises:
        SpecError: The degrees do not fill the world.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.distributed_c10d import _set_pg_timeout

    axes = mesh_axes(group.world_size, degrees)
    made = init_device_mesh(group.device.type, tuple(axes.values()), mesh_dim_names=tuple(axes))
    if group.timeout is not None:  # a new group starts with torch's half an hour, whatever the default group has
        for each in made.get_all_groups():
            _set_pg_timeout(timedelta(seconds=group.timeout), each)
    return made
