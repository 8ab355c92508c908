"""The World of a rank of mpirun or mpiexec. The evidence is a rank with a size, never the prefix of a name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment
from hpc_kit.runtime.launchers import slurm_step, variable_conflicts
from hpc_kit.runtime.launchers.mpi_variables import (
    LAUNCHERS_WITHOUT_SIZE,
    MPI_LAUNCHERS,
    RankVariables,
    batch_job_of,
    hosts_of_job,
    is_set_by_hydra,
    mpi_launch_key,
)
from hpc_kit.runtime.rendezvous import store
from hpc_kit.runtime.variables import format_variables, master_port, optional_int, read_node_list, required_int
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping


_OWN_NAMES = {"jsrun", "Flux", "PALS", "PALS without PMI", "ALPS", "Horovod", "HTCondor"}
"""Launchers that do not belong to an MPI library."""


def from_mpi(environ: Mapping[str, str]) -> World | None:
    """Return the World of a process that mpirun or mpiexec started, or None.

    Most launchers set no variable for the node. It is then None unless all ranks are on this node.

    Raises:
        IncompleteEnvironment: A rank has no size, or a value is not a number.
        ContradictoryEnvironment: A rank is not below its size, or a later srun step has inherited the variables.
    """
    for family, names in MPI_LAUNCHERS.items():
        if not names.is_set_in(environ):
            continue
        world = _build_world(environ, family, names)
        in_step = slurm_step.reason_not_in_step(environ) is None
        if _is_started_by_step(environ, world, names) if in_step else _foreign_evidence(environ, names):
            return None
        if in_step and _is_inherited_by_later_step(environ, world, family):
            raise _contradiction(environ, world, names)
        warnings = () if in_step else _more_ranks_than_tasks(environ, world, names)
        agrees = variable_conflicts.check_agreement(environ, world)
        ignored = world.ignored + variable_conflicts.compare_local_rank(environ, world)
        return replace(world, warnings=warnings, agrees=agrees, ignored=ignored)
    _refuse_half_set(environ)
    return None


def _more_ranks_than_tasks(environ: Mapping[str, str], world: World, names: RankVariables) -> tuple[str, ...]:
    """Warn in a batch shell that may have inherited the variables of a rank of mpirun that called sbatch."""
    tasks = optional_int(environ, "SLURM_NTASKS")
    if tasks is None or world.world_size <= tasks or not variable_conflicts.was_submitted_here(environ):
        return ()
    variables = format_variables(environ, names.rank, names.size, "SLURM_NTASKS", "SLURM_SUBMIT_HOST")
    return (f"more ranks than the job has tasks: {variables}; unset {names.rank} if it is the submitter's",)


def _refuse_half_set(environ: Mapping[str, str]) -> None:
    """Raise an error for a rank without a size, unless srun sets this variable, too, or it is inherited."""
    in_slurm = bool(environ.get("SLURM_JOB_ID"))
    for names in MPI_LAUNCHERS.values():
        of_srun = in_slurm and names.size == "PMI_SIZE" and not is_set_by_hydra(environ)
        rank, size = bool(environ.get(names.rank)), bool(environ.get(names.size))
        if rank != size and not of_srun and names.rank not in LAUNCHERS_WITHOUT_SIZE:
            required_int(environ, names.size if rank else names.rank, beside=names.rank if rank else names.size)
    for name in LAUNCHERS_WITHOUT_SIZE:
        if environ.get(name) and not (in_slurm and _may_be_set_by_srun(environ, name)):
            raise IncompleteEnvironment(
                f"{name} gives a rank, but no variable gives the number of ranks",
                found=format_variables(
                    environ, name, "PMIX_NAMESPACE", "PMIX_HOSTNAME", "PALS_LOCAL_SIZE", "MPI_LOCALNRANKS"
                ),
                remedy="export WORLD_SIZE=RANKS in the job script, before the launcher starts them;\n"
                "or start with mpirun, mpiexec, srun or torchrun, which set the size too;\n"
                f"or unset {name}, if it is left over",
                everywhere=True,
            )


def _may_be_set_by_srun(environ: Mapping[str, str], name: str) -> bool:
    if name == "PMIX_RANK":
        foreign = variable_conflicts.names_another_job(environ, environ.get("PMIX_HOSTNAME", ""))
        return foreign or not environ.get("PMIX_NAMESPACE", "").startswith("prte")
    return name != "PMI_ID" or bool(environ.get("PMI_RANK")) or not environ.get("MPI_LOCALRANKID")


def _build_world(environ: Mapping[str, str], family: str, names: RankVariables) -> World:
    size, nodes = required_int(environ, names.size, beside=names.rank), optional_int(environ, names.nodes)
    local_size, source = _local_size(environ, names, size, nodes)
    key, job = mpi_launch_key(environ, names, size), batch_job_of(environ)
    one_node = nodes == 1 or size == local_size
    known = names.nodes if nodes else f"{names.local_size} = {names.size}"
    unknown = "unknown until the ranks meet"
    return World(
        rank=required_int(environ, names.rank, beside=names.size),
        world_size=size,
        local_rank=optional_int(environ, names.local_rank),
        local_world_size=local_size,
        node_rank=optional_int(environ, names.node) if not one_node else 0,
        nnodes=1 if one_node else nodes,
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=store.candidate_ports(key, master_port(environ))[0],
        launcher="mpi",
        name=f"the {family} launch"
        if family in _OWN_NAMES
        else f"the mpirun of {family}" + (f" in job {job}" if job else ""),
        key=key,
        sources={
            "rank": names.rank,
            "world_size": names.size,
            "local_rank": names.local_rank or unknown,
            "local_world_size": source or unknown,
            "node_rank": known if one_node else names.node or unknown,
            "nnodes": known if one_node or nodes else unknown,
            "master_addr": "MASTER_ADDR, set by the job" if environ.get("MASTER_ADDR") else unknown,
            "master_port": f"from {key}",
        },
        ignored=variable_conflicts.ignored_by_mpi(environ),
        hosts=hosts_of_job(environ),
    ).checked()


def _local_size(
    environ: Mapping[str, str], names: RankVariables, size: int, nodes: int | None
) -> tuple[int | None, str]:
    """Return the number of ranks on this node and its source, or None where several numbers are possible."""
    count = optional_int(environ, names.local_size)
    if count is not None:
        return count, names.local_size
    if nodes == 1:
        return size, f"{names.size}, one node"
    return (1, f"{names.size} = {names.nodes}") if nodes == size else (None, "")


def _is_started_by_step(environ: Mapping[str, str], world: World, names: RankVariables) -> bool:
    """Return whether the step has set these variables, which then agree with the step's rank, size and nodes.

    ParaStation's srun sets Hydra's variables. MPI_Init of Open MPI sets its own in a rank of srun for child processes,
    and scripts set them for programs that read nothing else.
    """
    by_srun = environ.get("PMIX_NAMESPACE", "").startswith("slurm.pmix.")
    if by_srun and "PMIX_NAMESPACE" in names.launch and environ.get("PMIX_RANK") == environ.get("SLURM_PROCID"):
        return True  # an mpirun inside of the step would have replaced the namespace, so its variables are left over
    if not by_srun and any(environ.get(name) for name in (*names.host, *names.launch)):
        return False
    step = _step(environ, world)
    # Daemons of mpirun are steps of one task a node. Where each daemon has one rank, the step has the same numbers.
    daemon = step is not None and max(step.tasks_per_node, default=1) == 1
    if step is None or (names.over_ssh and not by_srun and (slurm_step.is_interactive_shell(environ) or daemon)):
        return False
    numbers = ("rank", "world_size", "local_rank", "local_world_size")
    return all(getattr(world, name) in {getattr(step, name), None} for name in numbers)


def _step(environ: Mapping[str, str], world: World) -> World | None:
    """Return the surrounding step, or None where its size is not set, as in containers."""
    if not environ.get("SLURM_STEP_NUM_TASKS") and world.world_size > 1:
        return None
    return slurm_step.from_slurm_step({name: value for name, value in environ.items() if name.startswith("SLURM")})


def _foreign_evidence(environ: Mapping[str, str], names: RankVariables) -> bool:
    """Return evidence that the variables name a host of another job, because a rank of mpirun called sbatch."""
    return any(variable_conflicts.names_another_job(environ, environ.get(name, "")) for name in names.host)


def _is_inherited_by_later_step(environ: Mapping[str, str], world: World, family: str) -> bool:
    """Return whether an srun step with ranks of its own runs here. Daemons of mpirun are steps of one task a node."""
    names, step = MPI_LAUNCHERS[family], _step(environ, world)
    if step is None or (step.rank, step.world_size) == (world.rank, world.world_size):
        return False
    if _foreign_evidence(environ, names):
        return True
    if slurm_step.is_interactive_shell(environ):
        return False
    # An MPI library that finds no launcher makes a world of one rank. All other launches have several.
    alone = world.world_size == 1 < step.world_size and family not in _OWN_NAMES
    if max(step.tasks_per_node, default=1) > 1 or alone:
        return True
    # A daemon starts ranks on its own node only.
    nodes = read_node_list(environ, "SLURM_JOB_NODELIST")
    elsewhere = [environ[name] for name in names.host if environ.get(name) in nodes and environ[name] not in step.hosts]
    return bool(elsewhere)


def _contradiction(environ: Mapping[str, str], world: World, names: RankVariables) -> ContradictoryEnvironment:
    if world.world_size == 1:
        remedy = "srun --mpi=pmix, so that MPI sees the step's ranks (srun --mpi=list shows what there is here);\n"
        remedy += f"or unset {names.rank} {names.size} before srun, if they are left over"
    else:
        remedy = f"unset {names.rank} {names.size} before srun, if an mpirun outside of the step has left them;\n"
        remedy += "for an MPI program: srun --mpi=pmix (srun --mpi=list shows what there is)"
    remedy += ";\nor set HPC_KIT_LAUNCHER to slurm or to mpi, whichever is right"
    return ContradictoryEnvironment(
        "two launchers claim this process",
        found=f"{slurm_step.describe_claim(environ)}\n"
        f"MPI says rank {world.rank} of {world.world_size} ({names.rank}, {names.size})",
        remedy=remedy,
        everywhere=environ.get("SLURM_STEP_NUM_TASKS") != environ[names.size],
    )
