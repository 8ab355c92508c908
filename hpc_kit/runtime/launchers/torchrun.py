"""The World of a worker of torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment
from hpc_kit.runtime.launchers import slurm_step, variable_conflicts
from hpc_kit.runtime.launchers.mpi_variables import MPI_LAUNCHERS
from hpc_kit.runtime.rendezvous.network import is_loopback
from hpc_kit.runtime.variables import (
    TORCH_VARIABLES,
    format_variables,
    master_port,
    optional_int,
    read_node_list,
    required_int,
    step_counts,
)
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVIDENCE = ("RANK", "WORLD_SIZE")


def from_torchrun(environ: Mapping[str, str]) -> World | None:
    """Return the World of a worker of torchrun, or None. TORCHELASTIC_RUN_ID with a rank is the evidence.

    Raises:
        IncompleteEnvironment: A variable of torchrun is missing or is not a number.
        ContradictoryEnvironment: The numbers contradict each other, or a later srun step has inherited them.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    if not run or not any(environ.get(name) for name in _EVIDENCE):
        return None
    foreign = variable_conflicts.names_another_job(environ, environ.get("MASTER_ADDR", ""))
    if foreign and slurm_step.reason_not_in_step(environ) is not None:
        return None  # a batch shell of a job that a worker of torchrun submitted
    beside = "TORCHELASTIC_RUN_ID"
    rank, world_size = required_int(environ, "RANK", beside=beside), required_int(environ, "WORLD_SIZE", beside=beside)
    agents = optional_int(environ, "GROUP_WORLD_SIZE")
    if not environ.get("MASTER_ADDR") or master_port(environ) is None:
        raise IncompleteEnvironment(
            "torchrun's address is not set",
            found=f"TORCHELASTIC_RUN_ID = {run}, RANK = {rank}, but not both of MASTER_ADDR and MASTER_PORT",
            remedy="start the program with torchrun; or unset TORCHELASTIC_RUN_ID, if it is left over",
        )
    restart = environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
    warnings = _check_against_step(environ, rank, world_size, agents, foreign=foreign)
    return World(
        rank=rank,
        world_size=world_size,
        local_rank=required_int(environ, "LOCAL_RANK", beside=beside),
        local_world_size=required_int(environ, "LOCAL_WORLD_SIZE", beside=beside),
        node_rank=required_int(environ, "GROUP_RANK", beside=beside),
        nnodes=agents,
        master_addr=environ["MASTER_ADDR"],
        master_port=master_port(environ),
        launcher="torchrun",
        name=f"the torchrun run {run}" + (f", restart {restart}" if restart != "0" else ""),
        key=f"run {run}, restart {restart}, {environ['MASTER_ADDR']}:{environ['MASTER_PORT']}",
        sources=TORCH_VARIABLES,
        warnings=warnings,
        ignored=variable_conflicts.ignored_by_worker(environ),
    ).checked()


def _check_against_step(
    environ: Mapping[str, str], rank: int, world_size: int, agents: int | None, *, foreign: bool
) -> tuple[str, ...]:
    """Return a warning if agents of the step are missing.

    Raises:
        ContradictoryEnvironment: The step is newer than torchrun's variables.
    """
    if agents is None:
        return ()
    if slurm_step.reason_not_in_step(environ) is not None:
        return _more_agents_than_nodes(environ, agents) or _fewer_agents_than_ranks(environ, agents)
    # Containers often have only some variables of the step. Without its size, a step contradicts nothing.
    tasks = optional_int(environ, "SLURM_STEP_NUM_TASKS")
    several_a_node = max(step_counts(environ), default=1) > 1
    by_mpirun = not several_a_node and _are_ranks_of_mpirun(environ, agents)
    # Steps of one task, one for each agent, are a common way to start torchrun.
    if not foreign and (tasks in {None, 1, agents} or by_mpirun):
        return ()
    # This check comes last: a later step has inherited these variables, and only its task 0 looks like a shell.
    if slurm_step.is_interactive_shell(environ) and not foreign:
        return _more_agents_than_nodes(environ, agents)
    if tasks is not None and 1 < agents < tasks and not several_a_node and not foreign:
        return (f"{agents} agents make this world, and the step has {tasks} tasks (GROUP_WORLD_SIZE)",)
    unset = "unset RANK WORLD_SIZE TORCHELASTIC_RUN_ID before srun"
    agents_do = f"torchrun --nnodes={tasks} with one task a node, where the step's tasks are its agents;\n"
    if agents == 1:
        agents_do = f"start the program without torchrun, because srun starts each rank;\nor {agents_do}"
    raise ContradictoryEnvironment(
        "two launchers claim this process",
        found=f"the srun step has {environ.get('SLURM_STEP_NUM_TASKS') or 'some'} tasks (SLURM_STEP_NUM_TASKS), "
        f"this one is {environ.get('SLURM_PROCID')}\n"
        f"torchrun says rank {rank} of {world_size}, from {agents} agents (RANK, WORLD_SIZE, GROUP_WORLD_SIZE)"
        + (f"\nits MASTER_ADDR = {environ['MASTER_ADDR']} is a node of another job" if foreign else ""),
        remedy=f"{unset}; or sbatch --export=NONE, where one job submits another"
        if foreign
        else f"{agents_do}or, where torchrun's variables are left over: {unset};\n"
        "or HPC_KIT_LAUNCHER=torchrun, where each task is to be a launch of its own",
        everywhere=True,
    )


def _fewer_agents_than_ranks(environ: Mapping[str, str], agents: int) -> tuple[str, ...]:
    """Return a warning if each rank of an mpirun may be a training of its own, or if only some ranks are agents."""
    for family, names in MPI_LAUNCHERS.items():
        # torchrun itself has set WORLD_SIZE.
        is_started_by_mpi = names.size not in _EVIDENCE and names.is_set_in(environ)
        if is_started_by_mpi and (ranks := required_int(environ, names.size, beside=names.rank)) > agents:
            counts = f"{ranks} ranks ({names.size}) and torchrun {agents} agents (GROUP_WORLD_SIZE)"
            return (f"{family}'s launch has {counts}: torchrun --nnodes={ranks}, where each of them is an agent",)
    return ()


def _are_ranks_of_mpirun(environ: Mapping[str, str], agents: int) -> bool:
    """Return whether mpirun started the agents. Its daemons are the step, and the first node may need none."""
    nodes, here = read_node_list(environ, "SLURM_JOB_NODELIST"), environ.get("SLURMD_NODENAME")
    for names in MPI_LAUNCHERS.values():
        if names.is_set_in(environ) and optional_int(environ, names.size) == agents:
            # A daemon starts ranks on its own node. In a later step, the name is that of the host that called srun.
            return all(environ.get(name) in {None, here} or environ[name] not in nodes for name in names.host)
    return False


def _more_agents_than_nodes(environ: Mapping[str, str], agents: int) -> tuple[str, ...]:
    """Check in a batch shell that torchrun's variables do not come from a worker that called sbatch.

    Returns a warning if the agents meet on this node, from which the job was submitted.

    Raises:
        ContradictoryEnvironment: The agents meet on another node.
    """
    nodes = optional_int(environ, "SLURM_JOB_NUM_NODES")
    # Several agents on one node meet there, as in a rehearsal of a job on several nodes.
    address = environ["MASTER_ADDR"]
    if nodes is None or agents <= nodes or is_loopback(address):
        return ()
    # torchrun's c10d rendezvous sets the fully qualified host name.
    labels = {host.partition(".")[0].lower() for host in (address, environ.get("SLURMD_NODENAME", ""))}
    if len(labels) > 1:
        raise ContradictoryEnvironment(
            "torchrun's variables are of another job",
            found=f"GROUP_WORLD_SIZE = {agents} agents (TORCHELASTIC_RUN_ID = {environ['TORCHELASTIC_RUN_ID']})\n"
            f"SLURM_JOB_NUM_NODES = {nodes} (job {environ.get('SLURM_JOB_ID')})",
            remedy="sbatch --export=NONE, where one job submits another;\n"
            "or unset RANK WORLD_SIZE TORCHELASTIC_RUN_ID in the batch script;\n"
            "or HPC_KIT_LAUNCHER=torchrun, where they are right",
        )
    if not variable_conflicts.was_submitted_here(environ):
        return ()
    variables = format_variables(environ, "GROUP_WORLD_SIZE", "SLURM_JOB_NUM_NODES", "SLURM_SUBMIT_HOST")
    return (f"more agents than the job has nodes: {variables}; unset TORCHELASTIC_RUN_ID if it is the submitter's",)
