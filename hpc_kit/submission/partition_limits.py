"""Compares a job with the limits of its partition that sinfo prints, before sbatch queues it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm.partitions import SINFO_ARGV, parse_partitions
from hpc_kit.spec.partition_checks import check_partitions

if TYPE_CHECKING:
    from hpc_kit.slurm.client import SlurmClient
    from hpc_kit.spec.resolve import Resolved

_SECONDS = 10.0


def check_partition(resolved: Resolved, client: SlurmClient) -> None:
    """Refuse a job that no partition of its own list can ever start. Nothing is refused if sinfo does not answer.

    Args:
        resolved: The job, fitted to its cluster.
        client: Its Slurm.

    Raises:
        SpecError: More nodes, more CPUs of a node, or more time than the partition has.
    """
    if resolved.job.resources.clusters or resolved.job.resources.reservation:
        return
    try:
        answer = client.run(SINFO_ARGV, timeout=_SECONDS)
    except SlurmUnavailable:
        return
    if answer.returncode == 0:
        check_partitions(resolved, parse_partitions(answer.stdout), client.environ)
