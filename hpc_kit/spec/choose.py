"""Which cluster file holds where the user names none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "HPC_KIT_CLUSTER"
"""Environment variable: name or path of the cluster file, for people who work on one cluster only."""


def default_cluster(root: Path, environ: Mapping[str, str]) -> str:
    """$HPC_KIT_CLUSTER; else the project's env/default.toml; else `slurm` where there is one, or `local`."""
    if named := environ.get(VARIABLE):
        return named
    if (root / "env" / "default.toml").is_file():
        return "default"
    from hpc_kit.slurm import commands

    return "slurm" if commands.find_slurm(environ, commands.run) else "local"
