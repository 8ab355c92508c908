"""MPI: a process of mpirun or mpiexec. Evidence is a rank and a size, never a prefix of a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime import ports
from hpc_kit.runtime.launchers import leftovers, slurm
from hpc_kit.runtime.variables import hosts_of, master_port, needed, number
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping


class Names(NamedTuple):
    """The variables of one MPI."""

    rank: str
    size: str
    local_rank: str
    local_size: str


FAMILIES = {
    "Open MPI": Names(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    # PMI_RANK and PMI_SIZE come from srun --mpi=pmi2 too; only mpiexec gives a local rank beside them.
    "Hydra (MPICH, Intel MPI)": Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}


def from_mpi(environ: Mapping[str, str]) -> World | None:
    """The world of a process that mpirun or mpiexec started, or None.

    No variable of theirs tells the node; it is None unless all ranks are on this one.

    Raises:
        IncompleteEnvironment: A number is none.
        ContradictoryEnvironment: A rank lies outside its size, or a later srun step has inherited the variables.
    """
    for family, names in FAMILIES.items():
        if not all(environ.get(name) for name in (names.rank, names.size, names.local_rank)):
            continue
        world = _world(environ, family, names)
        if _is_of_a_later_step(environ, world):
            raise _contradiction(environ, world, names)
        return world
    return None


def _world(environ: Mapping[str, str], family: str, names: Names) -> World:
    size, local_size = needed(environ, names.size, beside=names.rank), number(environ, names.local_size)
    job = environ.get("SLURM_JOB_ID", "")
    launch = environ.get("PMIX_NAMESPACE", "")
    key = f"mpi {launch}, job {job}, restart {environ.get('SLURM_RESTART_COUNT') or 0}, size {size}"
    one_node = size == local_size
    return World(
        rank=needed(environ, names.rank, beside=names.size),
        world_size=size,
        local_rank=number(environ, names.local_rank),
        local_world_size=local_size,
        node_rank=0 if one_node else None,
        nnodes=1 if one_node else None,
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=ports.candidates(key, master_port(environ))[0],
        launcher="mpi",
        name=f"the mpirun of {family}" + (f" in job {job}" if job else ""),
        key=key,
        sources={
            "rank": names.rank,
            "world_size": names.size,
            "local_rank": names.local_rank,
            "local_world_size": names.local_size,
            "node_rank": f"{names.local_size} = {names.size}" if one_node else "unknown until the ranks meet",
            "nnodes": f"{names.local_size} = {names.size}" if one_node else "unknown until the ranks meet",
            "master_addr": "MASTER_ADDR, set by the job" if environ.get("MASTER_ADDR") else "unknown until they meet",
            "master_port": f"from {key}",
        },
        left=leftovers.of_mpi(environ),
        hosts=hosts_of(environ, "SLURM_JOB_NODELIST"),
    ).checked()


def _is_of_a_later_step(environ: Mapping[str, str], world: World) -> bool:
    """Whether an srun step with ranks of its own runs here; daemons of mpirun are steps of one task a node."""
    if slurm.why_no_step(environ) is not None:
        return False
    step = slurm.from_slurm_step({name: value for name, value in environ.items() if name.startswith("SLURM")})
    if step is None or (step.rank, step.world_size) == (world.rank, world.world_size):
        return False
    return max(step.tasks_per_node, default=1) > 1


def _contradiction(environ: Mapping[str, str], world: World, names: Names) -> ContradictoryEnvironment:
    return ContradictoryEnvironment(
        "two launchers claim this process",
        found=f"the srun step says rank {environ.get('SLURM_PROCID')} of {environ.get('SLURM_STEP_NUM_TASKS')} "
        "(SLURM_PROCID, SLURM_STEP_NUM_TASKS)\n"
        f"MPI says rank {world.rank} of {world.world_size} ({names.rank}, {names.size})",
        remedy=f"unset {names.rank} {names.size} before srun, if an mpirun outside of the step has left them;\n"
        "for an MPI program: srun --mpi=pmix (srun --mpi=list shows what there is)",
    )
