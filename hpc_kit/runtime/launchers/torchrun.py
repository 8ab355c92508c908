"""Torchrun: a worker of its agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment
from hpc_kit.runtime.launchers import ignored_variables, slurm_step
from hpc_kit.runtime.launchers.mpi_variables import MPI_LAUNCHERS
from hpc_kit.runtime.launchers.torch_variables import TORCH_SOURCES
from hpc_kit.runtime.rendezvous.network import is_loopback
from hpc_kit.runtime.variables import format_variables, master_port, optional_int, read_counts, read_hosts, required_int
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVIDENCE = ("RANK", "WORLD_SIZE")


def from_torchrun(environ: Mapping[str, str]) -> World | None:
    """The world of a worker that torchrun started, or None: TORCHELASTIC_RUN_ID beside a rank is the evidence.

    Raises:
        IncompleteEnvironment: A variable of torchrun is missing or is no number.
        ContradictoryEnvironment: The numbers do not fit together, or a later srun step has inherited them.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    if not run or not any(environ.get(name) for name in _EVIDENCE):
        return None
    foreign = ignored_variables.names_another_job(environ, environ.get("MASTER_ADDR", ""))
    if foreign and slurm_step.reason_not_in_step(environ) is not None:
        return None  # a batch shell whose job a worker of torchrun has submitted
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
        sources=dict(TORCH_SOURCES),
        warnings=warnings,
        left=ignored_variables.ignored_by_worker(environ),
    ).checked()


def _check_against_step(
    environ: Mapping[str, str], rank: int, world_size: int, agents: int | None, *, foreign: bool
) -> tuple[str, ...]:
    """A warning where agents of the step are missing; an error where the step is newer than torchrun's variables."""
    if agents is None:
        return ()
    if slurm_step.reason_not_in_step(environ) is not None:
        return _more_agents_than_nodes(environ, agents) or _fewer_agents_than_ranks(environ, agents)
    # Containers often get a few of the step's variables: without its size it contradicts nobody.
    tasks = optional_int(environ, "SLURM_STEP_NUM_TASKS")
    several_a_node = max(read_counts(environ, "SLURM_STEP_TASKS_PER_NODE"), default=1) > 1
    by_mpirun = not several_a_node and _are_ranks_of_mpirun(environ, agents)
    # Steps of one task, one for each agent, are a common way to start torchrun.
    if not foreign and (tasks in {None, 1, agents} or by_mpirun):
        return ()
    # Asked last: a later step has inherited by what it is known, and there task 0 alone looks so.
    if slurm_step.is_interactive_shell(environ) and not foreign:
        return _more_agents_than_nodes(environ, agents)
    if tasks is not None and 1 < agents < tasks and not several_a_node and not foreign:
        return (f"{agents} agents make this world, and the step has {tasks} tasks (GROUP_WORLD_SIZE)",)
    unset = "unset RANK WORLD_SIZE TORCHELASTIC_RUN_ID before srun"
    agents_do = f"torchrun --nnodes={tasks} with one task a node, where the step's tasks are its agents;\n"
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
    """A warning where each rank of an mpirun may be a training of its own; or one of each node is an agent."""
    for family, names in MPI_LAUNCHERS.items():
        # WORLD_SIZE is torchrun's own here.
        told = names.size not in _EVIDENCE and names.is_set_in(environ)
        if told and (ranks := required_int(environ, names.size, beside=names.rank)) > agents:
            said = f"{ranks} ranks ({names.size}) and torchrun {agents} agents (GROUP_WORLD_SIZE)"
            return (f"{family}'s launch has {said}: torchrun --nnodes={ranks}, where each of them is an agent",)
    return ()


def _are_ranks_of_mpirun(environ: Mapping[str, str], agents: int) -> bool:
    """Whether mpirun has started the agents: its daemons are the step, and the first node may need none."""
    nodes, here = read_hosts(environ, "SLURM_JOB_NODELIST"), environ.get("SLURMD_NODENAME")
    for names in MPI_LAUNCHERS.values():
        if names.is_set_in(environ) and optional_int(environ, names.size) == agents:
            # A daemon starts its ranks on its own node; in a later step the name is that of whoever has called srun.
            return all(environ.get(name) in {None, here} or environ[name] not in nodes for name in names.host)
    return False


def _more_agents_than_nodes(environ: Mapping[str, str], agents: int) -> tuple[str, ...]:
    """In a batch shell: sbatch, called by a worker of torchrun, hands that torchrun's variables on to the new job.

    A warning where they meet on this very node, from which the job was submitted; an error where they meet elsewhere.
    """
    nodes = optional_int(environ, "SLURM_JOB_NUM_NODES")
    # Several agents on one node, as in a rehearsal of several nodes, meet there.
    address = environ["MASTER_ADDR"]
    if nodes is None or agents <= nodes or is_loopback(address):
        return ()
    # torchrun's c10d gives the full name of the host.
    if _first_label(address) != _first_label(environ.get("SLURMD_NODENAME", "")):
        raise ContradictoryEnvironment(
            "torchrun's variables are of another job",
            found=f"GROUP_WORLD_SIZE = {agents} agents (TORCHELASTIC_RUN_ID = {environ['TORCHELASTIC_RUN_ID']})\n"
            f"SLURM_JOB_NUM_NODES = {nodes} (job {environ.get('SLURM_JOB_ID')})",
            remedy="sbatch --export=NONE, where one job submits another;\n"
            "or unset RANK WORLD_SIZE TORCHELASTIC_RUN_ID in the batch script;\n"
            "or HPC_KIT_LAUNCHER=torchrun, where they are right",
        )
    if not ignored_variables.was_submitted_here(environ):
        return ()
    said = format_variables(environ, "GROUP_WORLD_SIZE", "SLURM_JOB_NUM_NODES", "SLURM_SUBMIT_HOST")
    return (f"more agents than the job has nodes: {said}; unset TORCHELASTIC_RUN_ID if it is the submitter's",)


def _first_label(host: str) -> str:
    return host.partition(".")[0].lower()
