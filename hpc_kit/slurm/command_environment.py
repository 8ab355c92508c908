"""What a command takes over from the job that it is called in, and Slurm's commands must not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_INHERITED = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "TORCHELASTIC_", "PMI_", "PMIX_", "OMPI_COMM_WORLD_")
_INHERITED_NAMES = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
})  # fmt: skip
_SCRIPTS_OWN = frozenset({
    "HPC_KIT_RUN", "HPC_KIT_LOGS", "HPC_KIT_LAYOUT", "HPC_KIT_BACKEND", "HPC_KIT_TIMEOUT", "HPC_KIT_LAUNCHER",
    "RAY_ADDRESS", "RAY_NODES", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH",
})  # fmt: skip
"""What a script of ours sets for its own ranks."""

_USERS_OWN = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_CLUSTERS"})
"""Which Slurm is meant; of these, Slurm itself sets nothing of a job's: its cluster is SLURM_CLUSTER_NAME."""


_SHAPING = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SLURM_TIME_FORMAT")
_FEDERATIONS = frozenset({"SQUEUE_FEDERATION", "SACCT_FEDERATION"})
"""These widen the question, as --federation does; they take nothing away."""


def plain_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the variables that filter or reshape what Slurm's commands tell and do, and with full lists of tasks."""
    plain = {name: value for name, value in environ.items() if name in _FEDERATIONS or not name.startswith(_SHAPING)}
    return {**plain, "SLURM_BITSTR_LEN": "0"}


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for submitting from inside a job: without what belongs to that job and its launcher.

    Outside a job nothing is taken away: SBATCH_ACCOUNT and its like are then the user's own defaults.
    """
    if not {"SLURM_JOB_ID", "SLURM_JOBID"} & environ.keys():
        return dict(environ)
    # In a job of ours, its script has set these; in another, or in a shell of salloc, the user has.
    ours = _SCRIPTS_OWN if "HPC_KIT_RUN" in environ else frozenset()
    return {
        name: value
        for name, value in environ.items()
        if name in _USERS_OWN or not (name.startswith(_INHERITED) or name in _INHERITED_NAMES or name in ours)
    }
