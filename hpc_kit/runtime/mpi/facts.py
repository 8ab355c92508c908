"""What only the communicator knows: which ranks share a host, and where rank 0 is; mpirun gives no variable for it."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hpc_kit.errors import HpcKitError
from hpc_kit.runtime import first_failure
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from types import ModuleType

    from hpc_kit.runtime.world import World


def world_from_mpi(world: World, timeout: float) -> World:
    """`world`, completed by the communicator of the mpirun that has started it; unchanged for other launchers.

    Where mpi4py is missing or cannot be used the variables stay alone: only the backend mpi cannot do without.

    Args:
        world: What the variables tell.
        timeout: Seconds to wait for ranks that do not come: then the process ends.
    """
    if world.launcher != "mpi":
        return world
    from hpc_kit.runtime.mpi import evidence, init_watchdog, library

    # Two mpiexec of MPICH in one job, or on one host, are told apart by nothing else.
    if mpiexec := evidence.mpiexec_of_proxy():
        world = replace(world, key=f"{world.key}, mpiexec at {mpiexec}")
    if find_spec("mpi4py") is None:
        return world

    with init_watchdog.mpi_init_deadline(world, timeout):
        try:
            module = library.import_mpi4py(world, os.environ)
        except HpcKitError:
            return world
        if mpiexec:
            # It kills the others, and would end with their 9; what MPI_Abort tells it is its own exit code.
            first_failure.set_abort_function(
                lambda code: None if module.Is_finalized() else module.COMM_WORLD.Abort(code)
            )
        return _read_communicator(world, module)


def _read_communicator(world: World, module: ModuleType) -> World:
    comm = module.COMM_WORLD
    host = comm.Split_type(module.COMM_TYPE_SHARED)
    local_rank, local_size = host.rank, host.size
    first_here = host.bcast(comm.rank)
    host.Free()
    ranks = comm.allgather((first_here, network.this_node_name(os.environ)))
    leaders = sorted({first for first, _ in ranks})
    own = (*network.own_addresses(), socket.gethostname())
    # Two launches of one size on a host share everything that variables tell: this number they do not.
    where, key = comm.bcast((own, uuid.uuid4().hex))
    facts = {
        "local_rank": local_rank,
        "local_world_size": local_size,
        "node_rank": leaders.index(first_here),
        "nnodes": len(leaders),
    }
    sources = dict(world.sources) | dict.fromkeys(facts, "MPI_COMM_WORLD, split by shared memory")
    return replace(
        world,
        **facts,
        key=f"mpi {key}",
        hosts=tuple(ranks[leader][1] for leader in leaders),
        tasks_per_node=tuple([first for first, _ in ranks].count(leader) for leader in leaders),
        reach=("127.0.0.1",) if first_here == 0 else where,
        sources=sources,
    ).checked()
