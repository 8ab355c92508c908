"""Variables beside those of the launcher that decides: which of them agree, contradict it, or are ignored.

They describe the job or another launch, or a job script has set torch's variables (RANK, WORLD_SIZE, ...).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime.launchers.mpi_variables import COMMON_MPI_VARIABLES
from hpc_kit.runtime.variables import CHOICE, TORCH_VARIABLES, optional_int, read_node_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpc_kit.runtime.world import World


_COMPARED = {field: TORCH_VARIABLES[field] for field in ("rank", "world_size", "local_rank", "local_world_size")}

_STARTERS = (
    ("the step", "or start the step with --ntasks-per-node=1 and torchrun"),
    ("mpirun", "or start one process a node with mpirun, and torchrun there"),
)


def check_agreement(environ: Mapping[str, str], world: World) -> tuple[str, ...]:
    """Return those of RANK, WORLD_SIZE, ... that are set and agree with `world`.

    A LOCAL_RANK that differs is left out where `has_own_gpu` allows it.

    Raises:
        ContradictoryEnvironment: A variable contradicts `world`.
    """
    if environ.get(CHOICE, "").strip() == world.launcher:
        return ()
    torch_values = {name: value for name in _COMPARED.values() if (value := optional_int(environ, name)) is not None}
    fields = {name: field for field, name in _COMPARED.items() if name in torch_values}
    wrong = {name: each for name, each in fields.items() if getattr(world, each) not in {torch_values[name], None}}
    if wrong and not has_own_gpu(environ, world):
        began, instead = _STARTERS[world.launcher == "mpi"]
        raise ContradictoryEnvironment(
            "two launchers claim this process",
            found=f"{world.name} says {_describe_world(world, wrong)}\n"
            f"the environment says {_describe_variables(torch_values)}, set before {began} began",
            remedy=f"unset {' '.join(torch_values)} in the batch script; {instead};\n"
            f"or HPC_KIT_LAUNCHER=env, where a launcher inside of {began} has set them",
            everywhere="WORLD_SIZE" in wrong,
        )
    return tuple(f"{name} = {value}" for name, value in torch_values.items() if name not in wrong)


def has_own_gpu(environ: Mapping[str, str], world: World) -> bool:
    """Return whether LOCAL_RANK = 0 is valid although the local rank is another one.

    Job scripts set it in tasks that see only their own GPU. RANK and WORLD_SIZE must then agree with `world`.
    """
    if not environ.get("LOCAL_RANK") or environ.get(CHOICE, "").strip() == world.launcher:
        return False
    values = {field: optional_int(environ, name) for field, name in _COMPARED.items()}
    rest = all(values[field] == getattr(world, field) for field in ("rank", "world_size"))
    others = values["local_world_size"] is None or world.local_world_size in {values["local_world_size"], None}
    return rest and others and values["local_rank"] == 0 and world.local_rank not in {0, None}


def _describe_world(world: World, wrong: Mapping[str, str]) -> str:
    variables = [world.sources[field] for field in wrong.values()]
    text = f"rank {world.rank} of {world.world_size}"
    if any(name.startswith("LOCAL") for name in wrong):
        text += f", local rank {world.local_rank} of {world.local_world_size}"
    return f"{text} ({', '.join(variables)})"


def _describe_variables(values: Mapping[str, int]) -> str:
    both = {"RANK", "WORLD_SIZE"} <= values.keys()
    words = [f"rank {values['RANK']} of {values['WORLD_SIZE']} (RANK, WORLD_SIZE)"] if both else []
    words += [f"{name} = {value}" for name, value in values.items() if not both or name.startswith("LOCAL")]
    return ", ".join(words)


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


_JOB_NODES = re.compile(r"SLURM_(JOB_)?NODELIST(_HET_GROUP_\d+)?")


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
    return {host.partition(".")[0] for name in lists for host in read_node_list(environ, name)}


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
