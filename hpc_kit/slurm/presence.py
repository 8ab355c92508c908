"""Whether this machine is part of a Slurm cluster: asked by every command, so it imports next to nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.slurm.runner import Runner

PROBE_SECONDS = 5.0
"""Without a configuration Slurm asks DNS for one, and a broken DNS takes long to say no."""

CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


def find_slurm(environ: Mapping[str, str], runner: Runner | None = None) -> str | None:
    """`system` where sbatch is on PATH and Slurm has a configuration, else None."""
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    if not any(os.access(f"{folder or '.'}/sbatch", os.X_OK) for folder in folders):
        return None
    # Slurm would look for a file that is named and not there for a whole minute.
    if named := environ.get("SLURM_CONF"):
        return "system" if os.access(named, os.R_OK) else None
    if any(os.access(path, os.R_OK) for path in CONFIGURATIONS):
        return "system"
    from hpc_kit.errors import SlurmUnavailable
    from hpc_kit.slurm.runner import run

    try:
        answer = (runner or run)(["sinfo", "--noheader"], timeout=PROBE_SECONDS, environ=environ)
    except SlurmUnavailable:
        return None
    configured = answer.returncode == 0 or "configuration source" not in answer.stderr
    return "system" if configured else None
