"""The World of a process that no launcher started."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hpc_kit.runtime.launchers import slurm_step, variable_conflicts
from hpc_kit.runtime.launchers.mpi_variables import MPI_LAUNCHERS
from hpc_kit.runtime.launchers.variable_conflicts import MISSING_SRUN
from hpc_kit.runtime.variables import CHOICE, format_variables, optional_int
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def single_process(environ: Mapping[str, str]) -> World:
    """Return a World of one rank, with a warning if the surrounding job has room for more ranks."""
    job = environ.get("SLURM_JOB_ID")
    why = (
        f"no launcher started this process: {slurm_step.reason_not_in_step(environ) or 'no srun step'}"
        if job
        else "no launcher started this process"
    )
    here = environ.get("SLURMD_NODENAME") or None
    return World(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        nnodes=1,
        master_addr=here,
        launcher="single",
        name=f"one process in job {job}, outside of any step" if job else "one process",
        key="single",
        sources=dict.fromkeys(("local_rank", "world_size", "local_world_size", "node_rank", "nnodes"), "one process")
        | {
            "rank": why,
            "master_addr": "SLURMD_NODENAME, this node" if here else "this machine",
            "master_port": "any free",
        },
        warnings=() if environ.get(CHOICE) else (*_unused_launch_warnings(environ), *_rejected_variables(environ)),
        ignored=variable_conflicts.ignored_by_single(environ),
    )


def _unused_launch_warnings(environ: Mapping[str, str]) -> tuple[str, ...]:
    if (
        environ.get("SLURM_PROCID")
        and not environ.get("SLURMD_NODENAME")
        and (optional_int(environ, "SLURM_NTASKS") or 1) > 1
    ):
        variables = format_variables(environ, "SLURM_PROCID", "SLURM_NTASKS")
        missing = next(name for name in ("SLURM_STEP_NUM_TASKS", "SLURMD_NODENAME") if not environ.get(name))
        variables += f", but no {missing}: let the container have all of SLURM_*"
        return (f"some variables of a task or a shell, {variables}; or, in a shell, {MISSING_SRUN}",)
    return _missing_srun_warning(environ) if environ.get("SLURM_JOB_ID") else _missing_launcher_warning(environ)


def _rejected_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Warn about variables of one rank among several that do not count here."""
    on_a_node = variable_conflicts.was_submitted_on_a_node(environ)
    sizes = {names.rank: names.size for names in MPI_LAUNCHERS.values()} | {"RANK": "WORLD_SIZE"}
    for rank, size in sizes.items():
        if not environ.get(rank) or not environ.get(size, "").isdecimal() or int(environ[size]) < 2:
            continue
        text = format_variables(environ, rank, size)
        launcher = "mpi" if rank != "RANK" else "torchrun" if environ.get("TORCHELASTIC_RUN_ID") else "env"
        origin = "taken for those of the job that has submitted this one" if on_a_node else "none of this process's"
        text += f" are {origin}, and this is one process"
        return (f"{text}; to use them, set HPC_KIT_LAUNCHER={launcher}",)
    return ()


def _missing_srun_warning(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Warn about a command in the batch shell of a job with several tasks or nodes."""
    for name, unit in (("SLURM_NTASKS", "tasks"), ("SLURM_NPROCS", "tasks"), ("SLURM_JOB_NUM_NODES", "nodes")):
        count = optional_int(environ, name)
        if count is not None and count > 1:
            return (
                f"this job has {count} {unit} ({name}), and this is one process outside of any step: {MISSING_SRUN}",
            )
    return ()


_ROOM: dict[str, tuple[Callable[[str], int], str, str]] = {
    "PET_NNODES": (lambda text: int(text.rpartition(":")[2]), "nodes", "put torchrun in front of the command"),
    "PET_NPROC_PER_NODE": (int, "processes a node", "put torchrun in front of the command"),
    "SM_HOSTS": (lambda text: text.count(",") + 1, "hosts", "distribution={'torch_distributed': {'enabled': True}}"),
    "PBS_NUM_NODES": (int, "nodes", "put mpiexec in front of the command"),
    "PBS_VNODENUM": (lambda text: int(text) + 1, "nodes or more", "mpiexec in place of pbsdsh"),
    "LSB_MCPU_HOSTS": (lambda text: len(text.split()) // 2, "hosts", "put jsrun or mpirun in front of the command"),
    "NHOSTS": (int, "hosts", "put mpirun in front of the command"),
    "AWS_BATCH_JOB_NUM_NODES": (int, "nodes", "put torchrun in front of the command"),
    "SKYPILOT_NUM_NODES": (int, "nodes", "put torchrun in front of the command"),
}
"""Jobs outside of Slurm with room for several processes: Kubeflow, SageMaker, Torque, LSF, Grid Engine, ..."""

_BESIDE = {"NHOSTS": "PE_HOSTFILE"}
"""A second variable that proves the meaning of a common name."""


def _missing_launcher_warning(environ: Mapping[str, str]) -> tuple[str, ...]:
    for name, (count, unit, remedy) in _ROOM.items():
        with suppress(ValueError):
            meant = environ.get(name) and environ.get(_BESIDE.get(name, name))
            if meant and (found := count(environ[name])) > 1:
                return (f"this job has {found} {unit} ({name}), and this is one process: {remedy}",)
    return ()
