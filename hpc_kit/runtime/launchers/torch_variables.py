"""The World of a process with RANK and WORLD_SIZE, set by hand or by an unknown launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment
from hpc_kit.runtime.launchers import slurm_step, variable_conflicts
from hpc_kit.runtime.variables import (
    TORCH_VARIABLES,
    format_variables,
    master_port,
    optional_int,
    required_int,
    step_counts,
)
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping


_ALTERNATIVE_NAMES = {"local_world_size": ("LOCAL_SIZE",), "node_rank": ("NODE_RANK",), "nnodes": ()}
"""Other names of these values in Ray Train, Lightning, Azure ML and deepspeed, which set RANK and WORLD_SIZE."""

_AGENT_LAUNCHERS = {
    "Ray Train": ("RAY_RAYLET_PID", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    "deepspeed": ("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE"),
}
"""Launchers whose agents are tasks of a step or of mpirun, and the variables that they set beside torch's."""


def inner_launcher(environ: Mapping[str, str]) -> str | None:
    """Return the launcher that set torch's variables inside a step or mpirun with one process a node, or None."""
    whole = all(environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"))
    several_a_node = max(step_counts(environ), default=1) > 1
    if not whole or (several_a_node and not slurm_step.is_interactive_shell(environ)):
        return None  # an agent is the only task on its node
    name = next((name for name, beside in _AGENT_LAUNCHERS.items() if all(environ.get(each) for each in beside)), None)
    return name or ("an agent on each node" if _numbers_node_after_node(environ) else None)


def _numbers_node_after_node(environ: Mapping[str, str]) -> bool:
    """Return whether an agent has set torch's variables, as Composer does: a world larger than the step."""
    names = (
        "SLURM_NODEID",
        "SLURM_STEP_NUM_NODES",
        "NODE_RANK",
        "LOCAL_WORLD_SIZE",
        "LOCAL_RANK",
        "RANK",
        "WORLD_SIZE",
    )
    if not all(environ.get(name) for name in names):
        return False
    here, nodes, node, size, local, rank, world = (required_int(environ, name, beside="NODE_RANK") for name in names)
    laid = (node, rank, world) == (here, node * size + local, nodes * size) and local < size
    return laid and optional_int(environ, "SLURM_STEP_NUM_TASKS") != world


def from_plain_variables(environ: Mapping[str, str]) -> World | None:
    """Return the World that RANK and WORLD_SIZE describe, or None if neither is set.

    Raises:
        IncompleteEnvironment: Only one of them is set, or several ranks have no MASTER_ADDR and MASTER_PORT.
        ContradictoryEnvironment: The numbers contradict each other.
    """
    if not environ.get("RANK") and environ.get("WORLD_SIZE", "1").strip() in {"", "1"}:
        return None
    if variable_conflicts.names_another_job(environ, environ.get("MASTER_ADDR", "")):
        return None  # a batch shell of a job that a rank of another job submitted
    of_rank = "LOCAL_RANK" if _is_on_first_node(environ) else "RANK"
    rank = required_int(environ, of_rank, beside="WORLD_SIZE")
    size = required_int(environ, "WORLD_SIZE", beside="RANK")
    address, port = environ.get("MASTER_ADDR") or None, master_port(environ)
    if size > 1 and (address is None or port is None):
        raise IncompleteEnvironment(
            "the ranks have no address to meet at",
            found=f"{format_variables(environ, 'RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')}, "
            f"but no {'MASTER_ADDR' if address is None else 'MASTER_PORT'}",
            remedy="start with srun or torchrun; or set MASTER_ADDR, the host of rank 0, and MASTER_PORT",
        )
    numbers, sources = _node_values(environ, rank, size)
    return World(
        rank=rank,
        world_size=size,
        local_rank=numbers["local_rank"],
        local_world_size=numbers["local_world_size"],
        node_rank=numbers["node_rank"],
        nnodes=numbers["nnodes"],
        master_addr=address,
        master_port=port,
        launcher="env",
        name=f"the launch by {inner_launcher(environ) or 'what has set RANK and WORLD_SIZE'}",
        key=f"env {address}:{port}, size {size}",
        sources=TORCH_VARIABLES | sources | ({} if of_rank == "RANK" else {"rank": "LOCAL_RANK, on the first node"}),
        warnings=_shell_warnings(environ, rank, size),
        ignored=variable_conflicts.mpi_lookalikes(environ),
    ).checked()


def _shell_warnings(environ: Mapping[str, str], rank: int, size: int) -> tuple[str, ...]:
    """Warn in a batch shell.

    Slurm calls the shell rank 0 of all tasks, and scripts and hooks of containers copy these numbers.
    """
    shell = rank == optional_int(environ, "SLURM_PROCID") == 0 and 1 < size == optional_int(environ, "SLURM_NTASKS")
    if not shell or slurm_step.reason_not_in_step(environ) is None:
        return ()
    variables = format_variables(environ, "RANK", "WORLD_SIZE")
    instead = variable_conflicts.MISSING_SRUN
    return (f"{variables} are those of the job's shell; unless others start the other ranks, {instead}",)


def _is_on_first_node(environ: Mapping[str, str]) -> bool:
    """Return whether LOCAL_RANK is the rank: Lightning sets no RANK on the first node, and numbers by node."""
    is_complete = all(environ.get(name) for name in ("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return is_complete and not environ.get("RANK") and optional_int(environ, "NODE_RANK") == 0


def _node_values(environ: Mapping[str, str], rank: int, size: int) -> tuple[dict[str, int | None], dict[str, str]]:
    """Return local rank, local size, node and number of nodes with their sources; None is a value that is unknown."""
    names = {
        value: (TORCH_VARIABLES[value], *_ALTERNATIVE_NAMES.get(value, ()))
        for value in ("local_rank", *_ALTERNATIVE_NAMES)
    }
    if inner_launcher(environ) == "deepspeed":  # Horovod gives these names another meaning
        names |= {"node_rank": ("CROSS_RANK",), "nnodes": ("CROSS_SIZE",)}
    sources = {value: next((each for each in some if environ.get(each)), some[0]) for value, some in names.items()}
    found = {value: optional_int(environ, name) for value, name in sources.items()}
    known, source = _derived_values(environ, rank, size, found)
    missing = {value: known[value] for value in known if found[value] is None}
    return found | missing, sources | dict.fromkeys(missing, source)


def _derived_values(
    environ: Mapping[str, str], rank: int, size: int, found: Mapping[str, int | None]
) -> tuple[dict[str, int | None], str]:
    """Return the values that follow from the known ones, where no other number is possible."""
    pod = environ.get("PET_NODE_RANK", "")
    if found["local_rank"] is None and pod == environ["RANK"] and environ.get("PET_NNODES", "").isdigit():
        return _kubeflow_values(environ, rank, size), "PET_NNODES = WORLD_SIZE, a process a pod"
    if found["local_world_size"] == size:
        return {"node_rank": 0, "nnodes": 1}, "all ranks are on this node"
    if found["nnodes"] == 1:
        return {"node_rank": 0, "local_rank": rank, "local_world_size": size}, "one node"
    return {}, ""


def _kubeflow_values(environ: Mapping[str, str], rank: int, size: int) -> dict[str, int | None]:
    """Return the values of a pod of Kubeflow's PyTorchJob.

    It counts pods in RANK, and in WORLD_SIZE the processes that torchrun is to start in them.

    Raises:
        ContradictoryEnvironment: Each pod needs several processes, and torchrun did not start this one.
    """
    pods = required_int(environ, "PET_NNODES", beside="RANK")
    if size != pods:
        raise ContradictoryEnvironment(
            "RANK counts the pods, and WORLD_SIZE the processes",
            found=format_variables(environ, "RANK", "PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE", "WORLD_SIZE"),
            remedy="torchrun PROGRAM.py in the pods: it reads the variables PET_; or nprocPerNode: 1 in the PyTorchJob",
        )
    return {"local_rank": 0, "local_world_size": 1, "node_rank": rank, "nnodes": pods}
