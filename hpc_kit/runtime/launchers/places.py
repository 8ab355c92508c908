"""On whose nodes a name lies: variables that name a node of another job were left behind by it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.runtime.variables import read_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_JOB_NODES = re.compile(r"SLURM_(JOB_)?NODELIST(_(HET|PACK)_GROUP_\d+)?")


def names_another_job(environ: Mapping[str, str], host: str) -> bool:
    """Whether `host` is certainly none of this Slurm job's nodes.

    Certain only where it is named as those are, but for the numbers: names for another network (`n1-ib0`, `n1i`),
    addresses, and host names that differ from Slurm's node names tell nothing. So does a shell outside of the nodes,
    and a job that was submitted elsewhere than on a node: nothing has come along from a rank.
    """
    nodes = _job_nodes(environ)
    if environ.get("SLURM_SUBMIT_HOST") and not was_submitted_on_a_node(environ):
        return False
    name = host.partition(".")[0]
    if not name or name.isdigit() or ":" in host or environ.get("SLURMD_NODENAME", "").partition(".")[0] not in nodes:
        return False
    return _short_host_name(name) not in map(_short_host_name, nodes) and _host_name_pattern(name) in map(
        _host_name_pattern, nodes
    )


def is_outside_job(environ: Mapping[str, str], hosts: Sequence[str]) -> bool:
    """Whether some of these nodes, named by Slurm, are none of the job's."""
    nodes = _job_nodes(environ)
    return bool(nodes) and not {host.partition(".")[0] for host in hosts} <= nodes


def _job_nodes(environ: Mapping[str, str]) -> set[str]:
    """Every node of the job; the components of a heterogeneous one have lists of their own."""
    lists = [name for name in environ if _JOB_NODES.fullmatch(name)]
    return {host.partition(".")[0] for name in lists for host in read_hosts(environ, name)}


def was_submitted_here(environ: Mapping[str, str]) -> bool:
    """Whether sbatch was called on one of the job's own nodes."""
    return environ.get("SLURM_SUBMIT_HOST", "").partition(".")[0] in _job_nodes(environ)


def was_submitted_on_a_node(environ: Mapping[str, str]) -> bool:
    """Whether sbatch was called where, by its name, a node is: of this job or of another."""
    submitter = environ.get("SLURM_SUBMIT_HOST", "").partition(".")[0]
    return bool(submitter) and _host_name_pattern(submitter) in map(_host_name_pattern, _job_nodes(environ))


def _short_host_name(name: str) -> str:
    """Without leading zeros: the host of node n1 may call itself n01."""
    return re.sub(r"\d+", lambda digits: str(int(digits[0])), name)


def _host_name_pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)
