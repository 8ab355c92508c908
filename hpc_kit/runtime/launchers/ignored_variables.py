"""Describes variables that do not decide the rank: of the job, of another launch, or without new information."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.runtime.launchers.agreement import has_own_gpu
from hpc_kit.runtime.launchers.mpi_variables import COMMON_MPI_VARIABLES
from hpc_kit.runtime.variables import read_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpc_kit.runtime.world import World


MISSING_SRUN = "put srun in front of the command"
"""The end of every warning about a command in a batch shell that needs srun."""

_LOOKS_LIKE_MPI = ("OMPI_MCA_plm_slurm_args", "PRTE_MCA_plm_slurm_args", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP")
_STEP = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
_TORCHRUN = ("TORCHELASTIC_RUN_ID", "ROLE_RANK")
_WIDER = {"SLURM_JOB_NODELIST": "SLURM_STEP_NODELIST", "SLURM_JOB_NUM_NODES": "SLURM_STEP_NUM_NODES"}
_STALE = {"SLURM_NTASKS": "SLURM_STEP_NUM_TASKS", "SLURM_TASKS_PER_NODE": "SLURM_STEP_TASKS_PER_NODE"}


def ignored_by_step(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Describe the variables that a task of a step ignores."""
    notes = [
        f"{job} = {environ[job]} (the job's, wider than this step)"
        for job, step in _WIDER.items()
        if environ.get(job) and environ.get(step) and environ[job] != environ[step]
    ]
    notes += [
        f"{name} = {environ[name]} (not this step's: {step} = {environ[step]})"
        for name, step in _STALE.items()
        if environ.get(name) and environ.get(step) and environ[name] != environ[step]
    ]
    host, node = environ.get("HOSTNAME"), environ.get("SLURMD_NODENAME")
    if host and node and host.split(".")[0] != node.split(".")[0]:
        notes.append(f"HOSTNAME = {host} (the batch host's)")
    notes += _list_variables(environ, _TORCHRUN, "left by a torchrun outside of this step")
    return (*notes, *mpi_lookalikes(environ))


def ignored_by_worker(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Describe the variables of the agent, which a worker of torchrun ignores."""
    return _list_variables(environ, (*_STEP, *COMMON_MPI_VARIABLES), "the agent's") + mpi_lookalikes(environ)


def ignored_by_mpi(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Describe the variables of the batch shell or daemon, which a rank of mpirun ignores."""
    return _list_variables(environ, _STEP, "of the shell or daemon that started this process")


def ignored_by_single(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Describe the variables that a single process ignores."""
    names = (*_STEP, "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_SIZE", *_TORCHRUN, "RANK", "LOCAL_RANK")
    return _list_variables(environ, names, "no launch of this process")


def compare_pmi(environ: Mapping[str, str], world: World) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return PMI's variables that agree with the step, and descriptions of those that another launch has left."""
    facts = {"PMI_RANK": world.rank, "PMI_SIZE": world.world_size, "PMIX_RANK": world.rank}
    agrees = tuple(f"{name} = {value}" for name, value in facts.items() if environ.get(name) == str(value))
    others = tuple(name for name, value in facts.items() if environ.get(name, str(value)) != str(value))
    return agrees, _list_variables(environ, others, "left by another launch")


def compare_local_rank(environ: Mapping[str, str], world: World) -> tuple[str, ...]:
    """Describe a LOCAL_RANK that counts the GPUs of the task instead of the tasks of the node."""
    names = ("LOCAL_RANK",) if has_own_gpu(environ, world) else ()
    return _list_variables(environ, names, "the one GPU that this task sees")


def mpi_lookalikes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Describe the variables that recent releases of Slurm set in every job for mpirun; they are no evidence of MPI."""
    found = [name for name in _LOOKS_LIKE_MPI if environ.get(name)]
    return (f"{', '.join(found)} (set in every job by Slurm; no sign of MPI)",) if found else ()


def describe_removed(variables: Mapping[str, str], choice: str) -> tuple[str, ...]:
    """Describe variables that were removed before any launcher was asked.

    Variables of a step are removed because of HPC_KIT_LAUNCHER, variables of another launch because of its export
    marker.
    """
    of_slurm = tuple(name for name in _STEP if name in variables)
    others = tuple(name for name in variables if not name.startswith("SLURM"))
    chosen = _list_variables(variables, of_slurm, f"not asked: HPC_KIT_LAUNCHER = {choice}")
    return chosen + _list_variables(
        variables, others, "exported by a rank of another launch, which has started this one"
    )


def _list_variables(environ: Mapping[str, str], names: tuple[str, ...], why: str) -> tuple[str, ...]:
    return tuple(f"{name} = {environ[name]} ({why})" for name in names if environ.get(name))


_JOB_NODES = re.compile(r"SLURM_(JOB_)?NODELIST(_(HET|PACK)_GROUP_\d+)?")


def names_another_job(environ: Mapping[str, str], host: str) -> bool:
    """Return whether `host` is certainly outside of this Slurm job.

    The answer is certain only where the name follows the pattern of the node names. Names for another network
    (`n1-ib0`, `n1i`), addresses, and host names that differ from Slurm's node names prove nothing. Neither does a shell
    outside of the nodes, nor a job that was submitted from a host that is not a node, because no rank's variables can
    have been inherited.
    """
    nodes = _job_nodes(environ)
    if environ.get("SLURM_SUBMIT_HOST") and not was_submitted_on_a_node(environ):
        return False
    name = host.partition(".")[0]
    if not name or name.isdigit() or ":" in host or environ.get("SLURMD_NODENAME", "").partition(".")[0] not in nodes:
        return False
    return _short_host_name(name) not in map(_short_host_name, nodes) and _host_name_pattern(name) in map(
        _host_name_pattern, nodes
    )


def is_outside_job(environ: Mapping[str, str], hosts: Sequence[str]) -> bool:
    """Return whether some of these node names are outside of the job."""
    nodes = _job_nodes(environ)
    return bool(nodes) and not {host.partition(".")[0] for host in hosts} <= nodes


def _job_nodes(environ: Mapping[str, str]) -> set[str]:
    """Return all nodes of the job. The components of a heterogeneous job have separate lists."""
    lists = [name for name in environ if _JOB_NODES.fullmatch(name)]
    return {host.partition(".")[0] for name in lists for host in read_hosts(environ, name)}


def was_submitted_here(environ: Mapping[str, str]) -> bool:
    """Return whether sbatch was called on one of the job's nodes."""
    return environ.get("SLURM_SUBMIT_HOST", "").partition(".")[0] in _job_nodes(environ)


def was_submitted_on_a_node(environ: Mapping[str, str]) -> bool:
    """Return whether the host on which sbatch was called is named like a node, of this job or of another one."""
    submitter = environ.get("SLURM_SUBMIT_HOST", "").partition(".")[0]
    return bool(submitter) and _host_name_pattern(submitter) in map(_host_name_pattern, _job_nodes(environ))


def _short_host_name(name: str) -> str:
    """Return the short name without leading zeros: the host of node n1 may call itself n01."""
    return re.sub(r"\d+", lambda digits: str(int(digits[0])), name)


def _host_name_pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)
