"""The clusters that Slurm's commands query and submit to, by name. A job id alone does not identify a job."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")

_NAME = rb'(?im)^[ \t]*ClusterName[ \t]*=[ \t]*(?:("?)([\w.-]+)\1(?=[\s#]|\Z))?'
"""The entry in slurm.conf. Its value is on the same line."""


def queried_cluster(environ: Mapping[str, str]) -> str | None:
    """Return the cluster that squeue, scancel and scontrol query: SLURM_CLUSTERS, else the local Slurm; None: unknown.

    The name of the local Slurm is read from slurm.conf. Running scontrol would take as long as sbatch itself.
    """
    return _normalize(environ.get("SLURM_CLUSTERS")) or _configured_name(environ)


def submit_cluster(environ: Mapping[str, str], option: str | None = None) -> str | None:
    """Return the cluster that sbatch submits to; None: unknown.

    `option` is the script's --clusters. SLURM_CLUSTERS wins over SBATCH_CLUSTERS (observed on 22.05).
    """
    variable = environ.get("SLURM_CLUSTERS") or environ.get("SBATCH_CLUSTERS")
    return _normalize(option) or _normalize(variable) or queried_cluster(environ)


def includes(queried: str, names: str) -> bool:
    """Return whether a query of the clusters `queried` covers all of `names`; both as --clusters takes them."""
    known = queried.split(",")
    return "all" in known or set(names.split(",")) <= set(known)


def several(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the clusters of a list in SLURM_CLUSTERS; nothing for a single name or `all`."""
    names = (_normalize(environ.get("SLURM_CLUSTERS")) or "").split(",")
    return tuple(filter(None, names)) if len(names) > 1 and "all" not in names else ()


def is_one(name: str | None) -> bool:
    """Return whether this is the name of a single cluster: not None, not a list and not `all`."""
    return name is not None and name != "all" and "," not in name


def find_configuration(environ: Mapping[str, str]) -> str | None:
    """Return the slurm.conf that Slurm's commands read: SLURM_CONF, else a file in a usual place; None: not found."""
    sbatch, named = find_command("sbatch", environ), environ.get("SLURM_CONF")
    # A Slurm that a site has built looks for it below its own prefix, PREFIX/bin/sbatch and PREFIX/etc/slurm.conf.
    prefix = f"{os.path.realpath(sbatch).rpartition('/bin/')[0]}/etc/slurm.conf" if sbatch else ""
    paths = (named,) if named else (prefix, *CONFIGURATIONS)
    return next((path for path in paths if os.access(path, os.R_OK)), None)


def find_command(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of a program on PATH, or None."""
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (f"{folder or '.'}/{name}" for folder in folders)
    # A folder may have the name of a program, and it is "executable", too.
    return next((path for path in paths if os.access(path, os.X_OK) and os.path.isfile(path)), None)  # noqa: PTH113


def _normalize(name: str | None) -> str | None:
    # Slurm stores the names of clusters in lower case.
    return name.lower() if name else None


def _configured_name(environ: Mapping[str, str]) -> str | None:
    path = find_configuration(environ)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib would cost every submission its import
            found = re.search(_NAME, file.read())
    except OSError:
        return None
    return found[2].decode().lower() if found and found[2] else None
