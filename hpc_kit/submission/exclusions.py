"""The user's exclusions: nodes that later jobs of a cluster must not use, each with a reason and an expiry.

They are in one file for each cluster, `$XDG_STATE_HOME/hpc_kit/exclusions/<cluster>.json`, with Slurm's own name of the
cluster. sbatch gets them as its option --exclude, so that scripts stay as they are.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from hpc_kit.errors import HostlistError, RecordError, SlurmUnavailable
from hpc_kit.run_files import write_whole
from hpc_kit.slurm.cluster_identity import is_one, submit_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpc_kit.slurm.client import SlurmClient
    from hpc_kit.spec.cluster import Cluster
    from hpc_kit.spec.resolve import Resolved


class Exclusion(Struct, frozen=True, kw_only=True):
    """One excluded node. Times are in seconds since 1970."""

    node: str
    reason: str
    since: float
    until: float


def exclusions_file(cluster: str) -> Path:
    """Return the path of the file of a cluster."""
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(state, "hpc_kit", "exclusions", f"{cluster}.json")


def read_exclusions(cluster: str, *, now: float | None = None) -> list[Exclusion]:
    """Return the exclusions of a cluster that have not expired, by node."""
    path = exclusions_file(cluster)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[Exclusion])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        remedy = f"repair the file, or rm {path}"
        if isinstance(error, NotADirectoryError | PermissionError):
            remedy = f"make {path.parent} a folder that you can read, or name another one with XDG_STATE_HOME"
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecordError("the excluded nodes cannot be read", found=f"{path}: {reason}", remedy=remedy) from error
    now = time.time() if now is None else now
    return sorted((each for each in found if each.until > now), key=lambda each: each.node)


@contextmanager
def changed_exclusions(cluster: str) -> Iterator[list[Exclusion]]:
    """Yield the exclusions of a cluster to change, then write them. A lock excludes other processes meanwhile."""
    path = exclusions_file(cluster)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            exclusions = read_exclusions(cluster)
            yield exclusions
            write_whole(path, msgspec.json.format(msgspec.json.encode(exclusions), indent=1) + b"\n")
    except OSError as error:
        raise RecordError(
            "the excluded nodes cannot be written",
            found=f"{path}: {error.strerror or error}",
            remedy="set XDG_STATE_HOME to a folder that you may write",
        ) from error


def cluster_key(cluster: Cluster, client: SlurmClient, option: str | None = None) -> str:
    """Return the name under which the exclusions of a cluster are kept: Slurm's own, or that of the cluster file."""
    name = None if client.embedded else submit_cluster(client.environ, option)
    return name if name is not None and is_one(name) else cluster.name


def known_nodes(client: SlurmClient) -> set[str]:
    """Return the nodes that sinfo lists; nothing if it does not answer."""
    with suppress(SlurmUnavailable):
        return set(client.run(["sinfo", "--all", "--noheader", "--Node", "--format=%N"]).stdout.split())
    return set()


def exclude_option(resolved: Resolved, client: SlurmClient) -> tuple[list[str], list[str]]:
    """Return sbatch's option with the exclusions of the job and of the user, and a note about each of the user's.

    Nodes that the job itself excludes or demands are left out, and those that Slurm does not know: it would refuse the
    job. sbatch cannot exclude nodes from all components of a heterogeneous job at once.
    """
    exclusions = read_exclusions(cluster_key(resolved.cluster, client, resolved.job.resources.clusters))
    if not exclusions:
        return [], []
    if resolved.components:
        return [], ["the user's exclusions are not applied to a heterogeneous job: hpc-kit cluster exclusions"]
    resources = resolved.job.resources
    own, *demanded = (
        expand_option(each) for each in (resources.exclude, resources.nodelist, _in_file(resources.nodefile))
    )
    rest = [each for each in exclusions if each.node not in {*own, *chain(*demanded)}]
    # Without an answer of sinfo, all names count as known.
    known = known_nodes(client) if rest else set()
    used = [each for each in rest if not known or each.node in known]
    notes = [
        f"excluding {each.node} until {time.strftime('%Y-%m-%d %H:%M', time.localtime(each.until))}: {each.reason}"
        if each in used
        else f"excluded node {each.node} is not in this cluster: hpc-kit cluster include {each.node}"
        for each in rest
    ]
    if not used:
        return [], notes
    # The option replaces the line of the script, so it repeats the nodes that the job excludes.
    return [f"--exclude={','.join([*own, *(each.node for each in used)])}"], notes


def _in_file(path: str | None) -> str | None:
    """Return the path of a file with a slash, because `expand_option` reads other words as node lists."""
    return path if path is None or "/" in path else f"./{path}"


def expand_option(option: str | None) -> list[str]:
    """Return the nodes of an option: a list, or the path of a file, which contains a slash.

    A list that only Slurm can read stays as it is.
    """
    if not option:
        return []
    from hpc_kit.slurm import nodelist

    try:
        text = ",".join(Path(option).read_text(encoding="utf-8").split()) if "/" in option else option
        return nodelist.expand(text)
    except (OSError, HostlistError):
        return [option]
