"""Which of several clusters Slurm's commands mean: each counts its jobs from 1."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.slurm.presence import configuration

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(
    rb'^[ \t]*ClusterName[ \t]*=[ \t]*(?:("?)([\w.-]+)\1(?=[\s#]|\Z))?',  # not what goes on in the next line
    re.IGNORECASE | re.MULTILINE,
)


def asked(environ: Mapping[str, str]) -> str | None:
    """Whom squeue, scancel and scontrol ask: SLURM_CLUSTERS, else the Slurm here; None: not known without a question.

    Read from its configuration, where that lies in a usual place: asking scontrol would take as long as sbatch itself.
    """
    return _folded(environ.get("SLURM_CLUSTERS")) or _configured(environ)


def chosen(environ: Mapping[str, str], option: str | None = None) -> str | None:
    """Whom sbatch gives a job to; None: not known.

    Args:
        environ: Its environment; seen on 22.05: of its two variables SLURM_CLUSTERS wins.
        option: What the script says as --clusters.
    """
    return _folded(option) or _folded(environ.get("SLURM_CLUSTERS") or environ.get("SBATCH_CLUSTERS")) or asked(environ)


def reaches(asked: str, taken: str) -> bool:
    """Whether who asks the clusters `asked` asks all of `taken`; both are lists as --clusters takes them."""
    names = asked.split(",")
    return "all" in names or set(taken.split(",")) <= set(names)


def several(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The clusters of a list in SLURM_CLUSTERS; none where it is no list, or `all`."""
    names = (_folded(environ.get("SLURM_CLUSTERS")) or "").split(",")
    return tuple(filter(None, names)) if len(names) > 1 and "all" not in names else ()


def is_one(name: str | None) -> bool:
    """Whether it is the name of one cluster: neither unknown nor a list."""
    return name is not None and name != "all" and "," not in name


def _folded(name: str | None) -> str | None:
    """Slurm keeps the names of clusters in small letters."""
    return name.lower() if name else None


def _configured(environ: Mapping[str, str]) -> str | None:
    path = configuration(environ)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - once for each submission
            found = _NAME.search(file.read())
    except OSError:
        return None
    return found[2].decode().lower() if found and found[2] else None
