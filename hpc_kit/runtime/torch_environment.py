"""Sets torch's variables (RANK, MASTER_ADDR, ...) for libraries that read the environment."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpc_kit.errors import RendezvousError
from hpc_kit.runtime import devices
from hpc_kit.runtime.launchers import inherited_variables
from hpc_kit.runtime.launchers.other_variables import has_own_gpu
from hpc_kit.runtime.rendezvous import store
from hpc_kit.runtime.rendezvous.master_host import expected_hosts
from hpc_kit.runtime.variables import RANK_VARIABLES, TORCH_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpc_kit.runtime.rendezvous.meeting import Meeting
    from hpc_kit.runtime.world import World


def torch_variables(meeting: Meeting, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for `init_process_group("env://")` and libraries. Values that are set already stay.

    NCCL finds its interfaces itself. gloo takes the interface of the host's name, which is often the wrong one.
    """
    exports = rank_variables(meeting.world, environ) | {"MASTER_ADDR": meeting.host, "MASTER_PORT": str(meeting.port)}
    exports |= gloo_variables(meeting, environ)
    threads = devices.thread_count(environ, meeting.world.local_world_size or 1)
    if threads:
        exports["OMP_NUM_THREADS"] = str(threads)
    return exports | inherited_variables.export_marker(exports, environ)


def gloo_variables(meeting: Meeting, environ: Mapping[str, str]) -> dict[str, str]:
    """Return GLOO_SOCKET_IFNAME with the interface on which the ranks met, unless it is set in this job."""
    chosen = environ.get("GLOO_SOCKET_IFNAME") and "GLOO_SOCKET_IFNAME" not in inherited_variables.inherited_exports(
        environ
    )
    return {"GLOO_SOCKET_IFNAME": meeting.interface} if meeting.interface and not chosen else {}


def rank_variables(world: World, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the known numbers of a World under torch's names.

    LOCAL_RANK stays 0 where a script has set it because each task sees only its own GPU.
    """
    left = inherited_variables.inherited_exports(environ)
    one_gpu = has_own_gpu({name: value for name, value in environ.items() if name not in left}, world)
    values = {name: getattr(world, field) for field, name in TORCH_VARIABLES.items() if name in RANK_VARIABLES}
    if one_gpu:
        values["LOCAL_RANK"] = 0
    return {name: str(value) for name, value in values.items() if value is not None}


def command_variables(
    world: World, environ: Mapping[str, str], address: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables for a command that replaces this process and meets the other ranks itself.

    Args:
        world: This process.
        environ: Its environment.
        address: MASTER_ADDR and MASTER_PORT, if they are to be set although no rank has tried them.
    """
    exports = {**rank_variables(world, environ), **(address or {})}
    if world.world_size == 1:
        exports |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(world.master_port or store.unused_port())}
    elif world.master_addr is not None:
        exports |= {"MASTER_ADDR": world.master_addr, "MASTER_PORT": str(world.master_port)}
    threads = devices.thread_count(environ, world.local_world_size or 1)
    exports |= inherited_variables.export_marker(exports, environ)
    return exports | ({"OMP_NUM_THREADS": str(threads)} if threads else {})


def expected_address(world: World, environ: Mapping[str, str]) -> dict[str, str]:
    """Return MASTER_ADDR and MASTER_PORT as rank 0 will try them first, before several ranks have met."""
    if world.world_size == 1 or world.master_addr is not None:
        return {}
    try:
        host = expected_hosts(world, environ)[0]
    except RendezvousError:
        return {}
    return {"MASTER_ADDR": host, "MASTER_PORT": str(store.candidate_ports(world.key, world.master_port)[0])}


def unset_rank_variables(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Return `variables` for a program that starts its own ranks: the variables of one rank are None, to be unset.

    Lightning starts its processes only where LOCAL_RANK is not set; where it is set, Lightning waits for processes
    that are never started. Only the program knows how many ranks share the CPUs, so OMP_NUM_THREADS stays as it is.
    """
    kept = {name: value for name, value in variables.items() if name != "OMP_NUM_THREADS"}
    return {**kept, **dict.fromkeys(RANK_VARIABLES)}


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Set these variables in `os.environ`; None unsets one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def environment_set(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set these variables in `os.environ`, and restore the former values at the end; None unsets one."""
    before = {name: os.environ.get(name) for name in variables}
    set_variables(variables)
    try:
        yield
    finally:
        set_variables(before)
