"""Sets torch's variables (RANK, MASTER_ADDR, ...) for libraries that read the environment."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from hpc_kit.errors import RendezvousError
from hpc_kit.runtime import devices
from hpc_kit.runtime.launchers import inherited_variables
from hpc_kit.runtime.launchers.variable_conflicts import has_own_gpu
from hpc_kit.runtime.rendezvous import store
from hpc_kit.runtime.rendezvous.master_host import expected_hosts
from hpc_kit.runtime.variables import NODE_RANK, RANK_VARIABLES, TORCH_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpc_kit.runtime.rendezvous.meeting import Meeting
    from hpc_kit.runtime.world import World

ACCELERATE_USE_CPU = "ACCELERATE_USE_CPU"
"""Without it, an `Accelerator()` on CPUs makes a world of each rank (accelerate, Launching on CPU)."""


def torch_variables(
    world: World,
    environ: Mapping[str, str],
    meeting: Meeting | None = None,
    *,
    is_expected: bool = False,
    starts_ranks: bool = False,
) -> dict[str, str | None]:
    """Return the variables for `init_process_group("env://")` and libraries. None: to be unset.

    NCCL finds its interfaces itself. gloo takes the interface of the host's name, which is often the wrong one.

    Args:
        world: This process.
        environ: Its environment.
        meeting: The meeting of the ranks, if they have met. Otherwise, the address is that of the launcher.
        is_expected: Without any address, return the one that rank 0 will try first.
        starts_ranks: The program starts its own ranks.
    """
    exports = rank_variables(world, environ)
    if meeting is not None:
        exports |= {"MASTER_ADDR": meeting.host, "MASTER_PORT": str(meeting.port)} | gloo_variables(meeting, environ)
    elif world.world_size == 1:
        exports |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(world.master_port or store.unused_port())}
    elif world.master_addr is not None:
        exports |= {"MASTER_ADDR": world.master_addr, "MASTER_PORT": str(world.master_port)}
    elif is_expected:
        with suppress(RendezvousError):  # no variable names a host
            exports |= {"MASTER_ADDR": expected_hosts(world, environ)[0]}
            exports |= {"MASTER_PORT": str(store.candidate_ports(world.key, world.master_port)[0])}
    if (
        meeting is not None
        and world.world_size > 1
        and ACCELERATE_USE_CPU not in environ
        and devices.is_torch_for_cpus()
    ):
        exports[ACCELERATE_USE_CPU] = "true"
    if threads := devices.thread_count(environ, world.local_world_size or 1):
        exports["OMP_NUM_THREADS"] = str(threads)
    exports |= inherited_variables.export_marker(exports, environ)
    if not starts_ranks:
        return {**exports}
    # Lightning starts its processes only where LOCAL_RANK is not set; where it is set, Lightning waits for processes
    # that are never started. Only the program knows how many ranks share the CPUs.
    exports.pop("OMP_NUM_THREADS", None)
    return {**exports, **dict.fromkeys(name for name in RANK_VARIABLES if name != NODE_RANK)}


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
    values[NODE_RANK] = world.node_rank
    if one_gpu:
        values["LOCAL_RANK"] = 0
    return {name: str(value) for name, value in values.items() if value is not None}


def update_environ(variables: Mapping[str, str | None]) -> None:
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
    update_environ(variables)
    try:
        yield
    finally:
        update_environ(before)
