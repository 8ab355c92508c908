"""On whose nodes a name lies: variables that name a node of another job were left behind by it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.runtime.variables import hosts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_JOB_NODES = re.compile(r"SLURM_(JOB_)?NODELIST(_(HET|PACK)_GROUP_\d+)?")


def names_another_job(environ: Mapping[str, str], host: str) -> bool:
    """Whether `host` is certainly none of this Slurm job's nodes.

    Certain only where it is named as those are, but for the numbers: names for another network (`n1-ib0`, `n1i`),
    addresses, and host names that differ from Slurm's node names tell nothing. So does a shell outside of the nodes.
    """
    nodes = _nodes(environ)
    name = host.partition(".")[0]
    if not name or name.isdigit() or ":" in host or environ.get("SLURMD_NODENAME", "").partition(".")[0] not in nodes:
        return False
    return name not in nodes and _scheme(name) in {_scheme(node) for node in nodes}


def are_not_all_here(environ: Mapping[str, str], hosts: Sequence[str]) -> bool:
    """Whether some of these nodes, named by Slurm, are none of the job's."""
    nodes = _nodes(environ)
    return bool(nodes) and not {host.partition(".")[0] for host in hosts} <= nodes


def _nodes(environ: Mapping[str, str]) -> set[str]:
    """Every node of the job; the components of a heterogeneous one have lists of their own."""
    lists = [name for name in environ if _JOB_NODES.fullmatch(name)]
    return {host.partition(".")[0] for name in lists for host in hosts_of(environ, name)}


def _scheme(name: str) -> str:
    return re.sub(r"\d+", "#", name)
