"""Whether this machine is part of a Slurm cluster: asked by every command, so it imports next to nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.slurm.client import Runner

PROBE_SECONDS = 5.0
"""Without a configuration Slurm asks DNS for one, and a broken DNS takes long to say no."""

CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


def find_slurm(environ: Mapping[str, str], runner: Runner | None = None) -> str | None:
    """`system` where sbatch is on PATH and Slurm does not say that it lacks a configuration, else None.

    Raises:
        SlurmUnavailable: There is an sbatch, no configuration in its usual places, and no answer from sinfo.
    """
    sbatch = _program("sbatch", environ)
    if sbatch is None:
        return None
    # Slurm would look for a file that is named and not there for a whole minute.
    found = configuration(environ)
    if found or environ.get("SLURM_CONF"):
        return "system" if found else None
    # A stand-in or a wrapper of a site may be sbatch alone.
    if _program("sinfo", environ) is None:
        return "system"
    from hpc_kit.errors import SlurmUnavailable
    from hpc_kit.slurm.client import run

    try:
        answer = (runner or run)(["sinfo", "--noheader"], timeout=PROBE_SECONDS, environ=environ)
    except SlurmUnavailable as error:
        # Neither may be guessed: one would train on the login node, the other wait for a queue that is not there.
        raise SlurmUnavailable(
            "there is an sbatch here, but sinfo does not tell whether it has a cluster",
            found=error.found,
            remedy="try again, or say which: --cluster slurm (HPC_KIT_CLUSTER=slurm), or --cluster local for the "
            "embedded Slurm",
        ) from error
    configured = answer.returncode == 0 or "configuration source" not in answer.stderr
    return "system" if configured else None


def is_embedded(environ: Mapping[str, str]) -> bool:
    """Return whether the first sbatch on PATH is the embedded Slurm's own, as inside its jobs.

    Its folder contains the file `.pocketslurm`.
    """
    sbatch = _program("sbatch", environ) if environ.get("HPC_KIT_SLURM_STATE") else None
    return sbatch is not None and os.path.exists(f"{os.path.dirname(sbatch)}/.pocketslurm")  # noqa: PTH110, PTH120


def configuration(environ: Mapping[str, str]) -> str | None:
    """The slurm.conf that Slurm's commands read: the one that is named, else one in a usual place; None: not found."""
    sbatch, named = _program("sbatch", environ), environ.get("SLURM_CONF")
    beside = f"{os.path.realpath(sbatch).rpartition('/bin/')[0]}/etc/slurm.conf" if sbatch else ""
    paths = (named,) if named else (beside, *CONFIGURATIONS)
    return next((path for path in paths if os.access(path, os.R_OK)), None)


def _program(name: str, environ: Mapping[str, str]) -> str | None:
    """A program on PATH."""
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (f"{folder or '.'}/{name}" for folder in folders)
    return next((path for path in paths if os.access(path, os.X_OK)), None)
