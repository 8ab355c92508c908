"""Variables beside a launcher's own: of another scope, of another launch, or saying the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.runtime.launchers.agreement import has_own_gpu
from hpc_kit.runtime.variables import read_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpc_kit.runtime.world import World


MISSING_SRUN = "put srun in front of the command"
"""The end of a warning in a shell of a job."""

_LOOKS_LIKE_MPI = ("OMPI_MCA_plm_slurm_args", "PRTE_MCA_plm_slurm_args", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP")
_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
_STEP = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
_TORCHRUN = ("TORCHELASTIC_RUN_ID", "ROLE_RANK")
_WIDER = {"SLURM_JOB_NODELIST": "SLURM_STEP_NODELIST", "SLURM_JOB_NUM_NODES": "SLURM_STEP_NUM_NODES"}
_STALE = {"SLURM_NTASKS": "SLURM_STEP_NUM_TASKS", "SLURM_TASKS_PER_NODE": "SLURM_STEP_TASKS_PER_NODE"}


def ignored_by_step(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What a task of a step leaves aside."""
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
    """What a worker of torchrun leaves aside: the variables of its agent."""
    return _list_variables(environ, (*_STEP, *_MPI), "the agent's") + mpi_lookalikes(environ)


def ignored_by_mpi(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What a process of mpirun leaves aside: the batch shell's or the daemon's variables."""
    return _list_variables(environ, _STEP, "of the shell or daemon that started this process")


def ignored_by_single(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What a process on its own leaves aside."""
    return _list_variables(environ, (*_STEP, *_MPI[::2], *_TORCHRUN, "RANK", "LOCAL_RANK"), "no launch of this process")


def compare_pmi(environ: Mapping[str, str], world: World) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """PMI's rank and size beside a step: those that say the same, and those that another launch has left behind."""
    facts = {"PMI_RANK": world.rank, "PMI_SIZE": world.world_size, "PMIX_RANK": world.rank}
    agrees = tuple(f"{name} = {value}" for name, value in facts.items() if environ.get(name) == str(value))
    others = tuple(name for name, value in facts.items() if environ.get(name, str(value)) != str(value))
    return agrees, _list_variables(environ, others, "left by another launch")


def compare_local_rank(environ: Mapping[str, str], world: World) -> tuple[str, ...]:
    """LOCAL_RANK where it counts GPUs that the task sees, and not tasks."""
    names = ("LOCAL_RANK",) if has_own_gpu(environ, world) else ()
    return _list_variables(environ, names, "the one GPU that this task sees")


def mpi_lookalikes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The names that a recent Slurm puts into every job, so that an mpirun would find it."""
    found = [name for name in _LOOKS_LIKE_MPI if environ.get(name)]
    return (f"{', '.join(found)} (set in every job by Slurm; no sign of MPI)",) if found else ()


def describe_inherited(variables: Mapping[str, str], choice: str) -> tuple[str, ...]:
    """What was left out before any launcher was asked: a step's by the user's choice, another launch's by its mark."""
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
    """Whether `host` is certainly none of this Slurm job's nodes.

    Certain only where it is named as those are, but for the numbers: names for another network (`n1-ib0`, `n1i`),
    addresses, and host names that differ from Slurm's node names tell nothing. So does a shell outside of the nodes,
    and a job that was submitted elsewhere than on a node: nothing has come along from a rank.
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
    """Whether some of these nodes, named by Slurm, are none of the job's."""
    nodes = _job_nodes(environ)
    return bool(nodes) and not {host.partition(".")[0] for host in hosts} <= nodes


def _job_nodes(environ: Mapping[str, str]) -> set[str]:
    """Every node of the job; the components of a heterogeneous one have lists of their own."""
    lists = [name for name in environ if _JOB_NODES.fullmatch(name)]
    return {host.partition(".")[0] for name in lists for host in read_hosts(environ, name)}


def was_submitted_here(environ: Mapping[str, str]) -> bool:
    """Whether sbatch was called on one of the job's own nodes."""
    return environ.get("SLURM_SUBMIT_HOST", "").partition(".")[0] in _job_nodes(environ)


def was_submitted_on_a_node(environ: Mapping[str, str]) -> bool:
    """Whether sbatch was called where, by its name, a node is: of this job or of another."""
    submitter = environ.get("SLURM_SUBMIT_HOST", "").partition(".")[0]
    return bool(submitter) and _host_name_pattern(submitter) in map(_host_name_pattern, _job_nodes(environ))


def _short_host_name(name: str) -> str:
    """Without leading zeros: the host of node n1 may call itself n01."""
    return re.sub(r"\d+", lambda digits: str(int(digits[0])), name)


def _host_name_pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)
