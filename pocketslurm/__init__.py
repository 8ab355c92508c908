"""A Slurm for one machine, spoken to by its commands alone: sbatch srun salloc squeue sacct scancel..."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Partition", "Settings", "environment"]

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.settings import Partition as Partition
    from pocketslurm.settings import Settings as Settings


def environment(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Slurm's commands are the embedded ones.

    Args:
        settings: Its nodes, partitions and limits; kept in the state directory, where the commands read them.
        environ: The environment to start from; with HPC_KIT_SLURM_STATE, where `settings` names no state directory.

    Raises:
        AnswerNo: The state directory cannot be made.
    """
    from pocketslurm.install import install

    return install(settings, environ)


def __getattr__(name: str) -> object:
    if name not in {"Settings", "Partition"}:
        raise AttributeError(f"module 'pocketslurm' has no attribute {name!r}")
    from pocketslurm import settings

    return getattr(settings, name)
