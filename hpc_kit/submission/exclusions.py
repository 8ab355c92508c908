"""The user's exclusions: nodes that no later job of a cluster shall use, each with a reason and an expiry.

They are in one file for each cluster, `$XDG_STATE_HOME/hpc_kit/exclusions/<cluster>.json`. sbatch gets them as its
option --exclude, so that scripts stay as they are.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from hpc_kit.errors import HostlistError, RecordError
from hpc_kit.run_files import write_whole
from hpc_kit.slurm import nodelist

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpc_kit.spec.resolve import Resolved


class Exclusion(Struct, frozen=True, kw_only=True):
    """One node that is not used. Times are in seconds since 1970."""

    node: str
    reason: str
    since: float
    until: float


def exclusions_file(cluster: str, environ: Mapping[str, str]) -> Path:
    """Return the path of the file of a cluster."""
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".local" / "state"
    return Path(state, "hpc_kit", "exclusions", f"{cluster}.json")


def read_exclusions(
    cluster: str, environ: Mapping[str, str] | None = None, *, now: float | None = None
) -> list[Exclusion]:
    """Return the exclusions of a cluster that have not expired, by node.

    Raises:
        RecordError: The file cannot be read.
    """
    path = exclusions_file(cluster, os.environ if environ is None else environ)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[Exclusion])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise RecordError(
            "the excluded nodes cannot be read", found=f"{path}: {error}", remedy=f"repair the file, or rm {path}"
        ) from error
    now = time.time() if now is None else now
    return sorted((each for each in found if each.until > now), key=lambda each: each.node)


def write_exclusions(cluster: str, exclusions: Iterable[Exclusion], environ: Mapping[str, str] | None = None) -> None:
    """Replace the exclusions of a cluster.

    Raises:
        RecordError: The file cannot be written.
    """
    path = exclusions_file(cluster, os.environ if environ is None else environ)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(list(exclusions)), indent=1) + b"\n")
    except OSError as error:
        raise RecordError(
            "the excluded nodes cannot be written",
            found=f"{path}: {error.strerror or error}",
            remedy="set XDG_STATE_HOME to a folder that you may write",
        ) from error


def exclude_option(resolved: Resolved) -> tuple[list[str], list[str]]:
    """Return sbatch's option with the exclusions of the job and of the user, and a note about each of the user's.

    Nodes that the job itself excludes or demands are left out. sbatch cannot exclude nodes from all components of a
    heterogeneous job at once.

    Raises:
        RecordError: The user's exclusions cannot be read.
    """
    exclusions = read_exclusions(resolved.cluster.name)
    if not exclusions:
        return [], []
    if resolved.components:
        return [], ["the user's exclusions are not applied to a heterogeneous job: hpc-kit cluster exclusions"]
    own, demanded = (_expand(option) for option in (resolved.job.resources.exclude, resolved.job.resources.nodelist))
    used = [each for each in exclusions if each.node not in {*own, *demanded}]
    notes = [
        f"excluding {each.node} until {time.strftime('%Y-%m-%d %H:%M', time.localtime(each.until))}: {each.reason}"
        for each in used
    ]
    return [f"--exclude={','.join([*own, *(each.node for each in used)])}"] * bool(used), notes


def _expand(option: str | None) -> list[str]:
    """Return the nodes of an option: a list, or the path of a file, which contains a slash.

    A list that only Slurm can read stays as it is.
    """
    if not option:
        return []
    try:
        text = ",".join(Path(option).read_text(encoding="utf-8").split()) if "/" in option else option
        return nodelist.expand(text)
    except (OSError, HostlistError):
        return [option]
