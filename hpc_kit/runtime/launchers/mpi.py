"""MPI: a process of mpirun or mpiexec. Evidence is a rank and a size, never a prefix of a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment
from hpc_kit.runtime import ports
from hpc_kit.runtime.launchers import leftovers, places, slurm
from hpc_kit.runtime.variables import hosts_of, master_port, needed, number, shown
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping


class Names(NamedTuple):
    """The variables of one MPI."""

    rank: str
    size: str
    local_rank: str
    local_size: str
    node: str = ""
    """The node's index among those of the launch, where it is told."""
    host: tuple[str, ...] = ()
    """This process's own host."""
    of_srun_too: bool = False
    """Whether srun sets them as well, with an MPI plugin: in a Slurm job they are the step's, or left by one."""


FAMILIES = {
    # OMPI_COMM_WORLD_NODE_RANK is a local rank: that of all jobs on the node.
    "Open MPI": Names(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        host=("PMIX_HOSTNAME",),
    ),
    "MVAPICH2": Names(
        "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"
    ),
    "PALS": Names(
        "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", node="PALS_NODEID", of_srun_too=True
    ),
    "Cray PMI": Names("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", of_srun_too=True),
    "Hydra (MPICH, Intel MPI)": Names(
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        host=("PMI_HOSTNAME", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "HYDRA_BSTRAP_LOCALHOST"),
    ),
    # What starts ranks without telling them their place on the node.
    "PMI": Names("PMI_RANK", "PMI_SIZE", "", "", of_srun_too=True),
}


def from_mpi(environ: Mapping[str, str]) -> World | None:
    """The world of a process that mpirun or mpiexec started, or None.

    No variable of most of them tells the node; it is None unless all ranks are on this one.

    Raises:
        IncompleteEnvironment: A rank stands without a size, or a number is none.
        ContradictoryEnvironment: A rank lies outside its size, or a later srun step has inherited the variables.
    """
    for family, names in FAMILIES.items():
        if not _evident(environ, names):
            continue
        world = _world(environ, family, names)
        if slurm.why_no_step(environ) is not None:
            return None if _foreign(environ, names) else world
        if _is_of_a_later_step(environ, world, names):
            raise _contradiction(environ, world, names)
        return world
    _refuse_half_set(environ)
    return None


def _evident(environ: Mapping[str, str], names: Names) -> bool:
    if not (environ.get(names.rank) and environ.get(names.size)):
        return False
    if names.of_srun_too:
        return not environ.get("SLURM_JOB_ID") and bool(not names.local_rank or environ.get(names.local_rank))
    return bool(environ.get(names.local_rank)) or names.rank != "PMI_RANK"


def _refuse_half_set(environ: Mapping[str, str]) -> None:
    """Outside of a step, a rank without a size is a launch that cannot be told; in a Slurm job it may be inherited."""
    if slurm.why_no_step(environ) is None:
        return
    in_slurm = bool(environ.get("SLURM_JOB_ID"))
    for names in FAMILIES.values():
        rank, size = bool(environ.get(names.rank)), bool(environ.get(names.size))
        inherited = in_slurm and names.size == "PMI_SIZE"
        if rank != size and not inherited and (rank or names.rank != "PALS_RANKID"):
            needed(environ, names.size if rank else names.rank, beside=names.rank if rank else names.size)
    if environ.get("PMIX_RANK") and not environ.get("PMI_RANK") and not in_slurm:
        raise IncompleteEnvironment(
            "PMIX_RANK tells a rank, and no variable how many there are",
            found=shown(environ, "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_HOSTNAME"),
            remedy="start with mpirun, mpiexec, srun or torchrun, which set the size too;\n"
            "or unset PMIX_RANK, if it is left over",
        )


def _world(environ: Mapping[str, str], family: str, names: Names) -> World:
    size, local_size = needed(environ, names.size, beside=names.rank), number(environ, names.local_size)
    job = environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID") or ""
    launch = environ.get("PMIX_NAMESPACE") or environ.get("I_MPI_HYDRA_UUID") or environ.get("PALS_APID") or ""
    key = f"mpi {launch}, job {job}, restart {environ.get('SLURM_RESTART_COUNT') or 0}, size {size}"
    one_node = size == local_size
    unknown = "unknown until the ranks meet"
    return World(
        rank=needed(environ, names.rank, beside=names.size),
        world_size=size,
        local_rank=number(environ, names.local_rank),
        local_world_size=local_size,
        node_rank=number(environ, names.node) if not one_node else 0,
        nnodes=1 if one_node else None,
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=ports.candidates(key, master_port(environ))[0],
        launcher="mpi",
        name=f"the mpirun of {family}" + (f" in job {job}" if job else ""),
        key=key,
        sources={
            "rank": names.rank,
            "world_size": names.size,
            "local_rank": names.local_rank or unknown,
            "local_world_size": names.local_size or unknown,
            "node_rank": f"{names.local_size} = {names.size}" if one_node else names.node or unknown,
            "nnodes": f"{names.local_size} = {names.size}" if one_node else unknown,
            "master_addr": "MASTER_ADDR, set by the job" if environ.get("MASTER_ADDR") else unknown,
            "master_port": f"from {key}",
        },
        left=leftovers.of_mpi(environ),
        hosts=hosts_of(environ, "SLURM_JOB_NODELIST"),
    ).checked()


def _foreign(environ: Mapping[str, str], names: Names) -> bool:
    """Whether the variables name a host of another job: a rank of mpirun has called sbatch."""
    return any(places.names_another_job(environ, environ.get(name, "")) for name in names.host)


def _is_of_a_later_step(environ: Mapping[str, str], world: World, names: Names) -> bool:
    """Whether an srun step with ranks of its own runs here; daemons of mpirun are steps of one task a node."""
    step = slurm.from_slurm_step({name: value for name, value in environ.items() if name.startswith("SLURM")})
    if step is None or (step.rank, step.world_size) == (world.rank, world.world_size):
        return False
    if max(step.tasks_per_node, default=1) > 1 or (world.world_size == 1 < step.world_size):
        return True
    # A daemon starts its ranks on its own node.
    nodes = hosts_of(environ, "SLURM_JOB_NODELIST")
    elsewhere = [environ[name] for name in names.host if environ.get(name) in nodes and environ[name] not in step.hosts]
    return bool(elsewhere) or _foreign(environ, names)


def _contradiction(environ: Mapping[str, str], world: World, names: Names) -> ContradictoryEnvironment:
    if world.world_size == 1:
        remedy = "srun --mpi=pmix, so that MPI sees the step's ranks (srun --mpi=list shows what there is here);\n"
        remedy += f"or unset {names.rank} {names.size} before srun, if they are left over"
    else:
        remedy = f"unset {names.rank} {names.size} before srun, if an mpirun outside of the step has left them;\n"
        remedy += "for an MPI program: srun --mpi=pmix (srun --mpi=list shows what there is)"
    return ContradictoryEnvironment(
        "two launchers claim this process",
        found=f"the srun step says rank {environ.get('SLURM_PROCID')} of {environ.get('SLURM_STEP_NUM_TASKS')} "
        "(SLURM_PROCID, SLURM_STEP_NUM_TASKS)\n"
        f"MPI says rank {world.rank} of {world.world_size} ({names.rank}, {names.size})",
        remedy=remedy,
    )
