"""Reads numbers and lists from environment variables, with errors that name the variable and its value."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hpc_kit.errors import HostlistError, IncompleteEnvironment, SpecError
from hpc_kit.slurm import nodelist

if TYPE_CHECKING:
    from collections.abc import Mapping

CHOICE = "HPC_KIT_LAUNCHER"
"""Environment variable that names a launcher. The runtime then uses this launcher and asks no other."""

BACKEND_VARIABLE = "HPC_KIT_BACKEND"
"""Environment variable with `launch.backend` of the job."""

TIMEOUT_VARIABLE = "HPC_KIT_TIMEOUT"
"""Environment variable with `launch.timeout` of the job, in seconds."""

WAIT_LONGER = f"{TIMEOUT_VARIABLE}=SECONDS, or distributed(timeout=SECONDS), waits longer"
"""The end of the remedy of each time-out while ranks meet."""

SSH_VARIABLES = SSH_NODE, SSH_HOSTS, SSH_MASTER, SSH_LAUNCH = tuple(
    f"HPC_KIT_SSH_{name}" for name in ("NODE", "HOSTS", "MASTER", "LAUNCH")
)
"""Variables of an agent of `hpc-kit launch`. They are removed for its workers and for jobs that the workers submit."""

TORCH_VARIABLES = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "world_size": "WORLD_SIZE",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "node_rank": "GROUP_RANK",
    "nnodes": "GROUP_WORLD_SIZE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}
"""torch's own variables of the fields of `World`."""

NODE_RANK = "NODE_RANK"
"""Another name of GROUP_RANK. Composer and Lightning read it; torchrun does not set it."""

RANK_VARIABLES = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", NODE_RANK
"""Variables by which a program sees that a launcher has started it as one rank."""

_MOST_DIGITS = 18
_LAST_PORT = 65_535


_SETTERS = {
    "SLURM": "srun",
    "OMPI_": "mpirun",
    "PMI": "mpirun or mpiexec",
    "MPI": "mpirun or mpiexec",
    "MV": "mpirun or mpiexec",
    "PALS_": "mpiexec",
    "ALPS_": "aprun",
    "JSM_": "jsrun",
    "FLUX_": "flux run",
    "PLE_": "mpiexec",
    "HOROVOD_": "horovodrun",
    "SUBMITIT_": "submitit",
    "HPC_KIT_SSH_": "hpc-kit launch",
}


def launcher_setting(name: str) -> str:
    """Return the launcher that sets a variable, by its name; torchrun for torch's own variables."""
    return next((who for start, who in _SETTERS.items() if name.startswith(start)), "torchrun")


def optional_int(environ: Mapping[str, str], name: str) -> int | None:
    """Return a count or an index, or None if the variable is not set or empty.

    Raises:
        IncompleteEnvironment: The value is not a number from 0 up.
    """
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise IncompleteEnvironment(
            f"{name} is not a number from 0 up",
            found=f"{name} = {environ[name]!r}",
            remedy=f"unset {name}, or let the launcher ({launcher_setting(name)}) set it",
        )
    return int(text)


def required_int(environ: Mapping[str, str], name: str, *, beside: str) -> int:
    """Return a number that must be set because the variables named in `beside` are set.

    Raises:
        IncompleteEnvironment: The variable is not set, or not a number.
    """
    value = optional_int(environ, name)
    if value is None:
        raise IncompleteEnvironment(
            f"{name} is not set",
            found=f"{format_variables(environ, *beside.split())}, but no {name}",
            remedy=f"start the program with {launcher_setting(name)}, which sets {name} too;\n"
            f"or unset {beside}, if it is left over",
        )
    return value


def positive_seconds(value: float | str, name: str) -> float:
    """Return a number of seconds; `name` is the variable or the argument that contains it.

    Raises:
        SpecError: It is not a positive number.
    """
    with suppress(ValueError):
        if 0 < float(value) < float("inf"):
            return float(value)
    raise SpecError(f"{name} is no number of seconds", found=f"{name} = {value}", remedy="a number above 0: 300")


def cpus_per_task(environ: Mapping[str, str]) -> int | None:
    """Return --cpus-per-task of the job or of the step, or None if neither has it."""
    for name in ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK"):
        text = environ.get(name, "")
        if text.isdigit() and int(text):
            return int(text)
    return None


def format_variables(environ: Mapping[str, str], *names: str) -> str:
    """Return `NAME = value, NAME = value` for the variables that are set."""
    return ", ".join(f"{name} = {environ[name]}" for name in names if environ.get(name, ""))


def master_port(environ: Mapping[str, str]) -> int | None:
    """Return MASTER_PORT, or None if it is not set.

    Raises:
        IncompleteEnvironment: The value is not a port.
    """
    port = optional_int(environ, "MASTER_PORT")
    if port is not None and not 0 < port <= _LAST_PORT:
        raise IncompleteEnvironment(
            "MASTER_PORT is no port", found=f"MASTER_PORT = {port}", remedy="unset MASTER_PORT; or a number below 32768"
        )
    return port


def read_node_list(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the hosts of a node list variable, or () if it is not set.

    Raises:
        IncompleteEnvironment: The list is malformed.
    """
    try:
        return tuple(nodelist.expand(environ.get(name, "").strip()))
    except HostlistError as error:
        raise _malformed(name, "a node list", error) from error


def step_counts(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the step's number of tasks on each node, or () if it is not set.

    Raises:
        IncompleteEnvironment: The list is malformed.
    """
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "").strip()
    try:
        return tuple(nodelist.expand_tasks_per_node(text)) if text else ()
    except HostlistError as error:
        raise _malformed("SLURM_STEP_TASKS_PER_NODE", "a list of counts", error) from error


def _malformed(name: str, kind: str, error: HostlistError) -> IncompleteEnvironment:
    return IncompleteEnvironment(
        f"{name} is not {kind}: {error.what}", found=error.found, remedy=f"unset {name}, or let srun set it"
    )
