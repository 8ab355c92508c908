"""Refuses a job that its partition can never start, although sbatch accepts it.

With `EnforcePartLimits=NO`, Slurm's default, sbatch queues a job that is larger or longer than its partition allows.
The job then waits for ever, with a reason such as PartitionTimeLimit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hpc_kit.errors import SlurmUnavailable, SpecError, UnitError
from hpc_kit.slurm import units
from hpc_kit.slurm.partitions import (
    SINFO_ARGV,
    JobPart,
    ListedPartition,
    NodeKind,
    find_partition_obstacle,
    parse_limit,
    parse_partitions,
)

if TYPE_CHECKING:
    from hpc_kit.slurm.client import SlurmClient
    from hpc_kit.spec.cluster import Cluster
    from hpc_kit.spec.resolve import Resolved

_SINFO_SECONDS = 10.0

_MANY = 10**9
"""CPUs of a node whose number is unknown."""


def check_with_file(resolved: Resolved) -> None:
    """Refuse a job that no partition of its own list can ever start, as the cluster file describes them.

    Raises:
        SpecError: More nodes, more CPUs of a node, or more time than the partition has.
    """
    _check_limits(resolved, partitions_of(resolved.cluster), {})


def check_with_sinfo(resolved: Resolved, client: SlurmClient) -> None:
    """Like `check_with_file`, with the partitions that sinfo prints. Without its answer nothing is refused."""
    try:
        answer = client.run(SINFO_ARGV, timeout=_SINFO_SECONDS)
    except SlurmUnavailable:
        return
    if answer.returncode == 0:
        _check_limits(resolved, parse_partitions(answer.stdout), client.environ)


def partitions_of(cluster: Cluster) -> list[ListedPartition]:
    """Return the partitions that a cluster file describes."""
    found = []
    for name, each in cluster.partition.items():
        cpus = each.cpus or cluster.node.cpus or _MANY
        gpus = cluster.node.gpus if each.gpus is None else each.gpus
        kinds = (NodeKind(each.nodes, cpus, gpus=gpus),) if each.nodes else ()
        limit = parse_limit("" if each.max_time is None else str(each.max_time))
        found.append(ListedPartition(name, each.default, kinds, limit, each.max_nodes))
    return found


def _check_limits(resolved: Resolved, known: Sequence[ListedPartition], environ: Mapping[str, str]) -> None:
    """Compare the job with the known partitions; an unknown partition refuses nothing.

    SBATCH variables of `environ` count where the job sets no option.
    """
    resources = resolved.job.resources
    # Another cluster has other partitions; a reservation may have its own limits.
    if resources.clusters or resources.reservation:
        return
    # A QOS may lift the limits of its partition, but it adds no nodes.
    has_qos = bool(resources.qos or environ.get("SBATCH_QOS"))
    for part in _parts(resolved, environ):
        obstacle = find_partition_obstacle(part, known, has_qos=has_qos)
        if obstacle is not None:
            where, found, remedy = obstacle
            raise SpecError(
                f"job {resolved.job.name} would wait for ever in {where}",
                found=found,
                remedy=f"{remedy}; or submit it all the same with --no-check",
            )


def _parts(resolved: Resolved, environ: Mapping[str, str]) -> Iterator[JobPart]:
    job = resolved.job.resources
    spares = resolved.all_nodes - resolved.nodes
    parts = [(each.resources, each.nodes, each.ntasks) for each in resolved.components]
    for resources, nodes, ntasks in parts or [(job, resolved.nodes, resolved.ntasks)]:
        # --overcommit starts several tasks on one CPU.
        cpus = 1 if resolved.cpus_by_slurm or resources.overcommit else resources.cpus_per_task or 1
        tasks = 1 if resources.overcommit else -(-ntasks // nodes)
        time = resources.time if resources.time is not None else environ.get("SBATCH_TIMELIMIT")
        partition = resources.partition or environ.get("SBATCH_PARTITION")
        yield JobPart(partition, nodes + spares, tasks * cpus, _parse_duration(time))


def _parse_duration(time: str | int | None) -> int | None:
    try:
        return None if time is None else units.parse_time(str(time))
    except UnitError:
        return None
