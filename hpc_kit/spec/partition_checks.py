"""Refuses a job that its partition can never start, although sbatch accepts it.

With `EnforcePartLimits=NO`, Slurm's default, sbatch queues a job that is larger or longer than its partition allows.
The job then waits for ever, with a reason such as PartitionTimeLimit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import HpcKitError, SpecError, UnitError
from hpc_kit.slurm import option_values, units
from hpc_kit.slurm.partitions import JobPart, NodeKind, Partition, find_obstacle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpc_kit.spec.cluster import Cluster
    from hpc_kit.spec.job import Job
    from hpc_kit.spec.job_checks import Origins
    from hpc_kit.spec.resolve import Resolved

_MANY = 10**9
"""CPUs of a node whose number is unknown."""


def partitions_of(cluster: Cluster) -> list[Partition]:
    """Return the partitions that a cluster file describes."""
    found = []
    for name, each in cluster.partition.items():
        cpus = each.cpus or cluster.node.cpus or _MANY
        kinds = (NodeKind(each.nodes, cpus),) if each.nodes else ()
        found.append(Partition(name, each.default, kinds, _seconds(each.max_time), each.max_nodes))
    return found


def check_partitions(resolved: Resolved, known: Sequence[Partition], environ: Mapping[str, str]) -> None:
    """Refuse a job that no partition of its own list can ever start.

    Args:
        resolved: The job, fitted to its cluster.
        known: The partitions of the cluster. An unknown partition refuses nothing.
        environ: Environment of sbatch, whose SBATCH variables count if the job sets no option.

    Raises:
        SpecError: More nodes, more CPUs of a node, or more time than the partition has.
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


def find_partition_obstacle(part: JobPart, known: Sequence[Partition], *, has_qos: bool) -> tuple[str, str, str] | None:
    """Return the first partition of a job, the reason why none of its partitions can start it, and the remedy.

    None: one of them can start the job, or none of them is known.
    """
    names = part.partition.split(",") if part.partition else []
    usable = [each for each in known if (each.name in names if names else each.is_default)]
    obstacles = [find_obstacle(part, each, has_qos=has_qos) for each in usable]
    if not obstacles or not all(obstacles):
        return None
    where = f"partition {usable[0].name}" + ("" if names else ", the default one")
    return (where, *(obstacles[0] or ("", "")))


def check_array(job: Job, cluster: Cluster, origins: Origins) -> None:
    """Check the indices of an array against the cluster's MaxArraySize.

    Raises:
        SpecError: An index is too large.
    """
    if job.resources.array is None or cluster.max_array_size is None:
        return
    try:
        option_values.parse_array(str(job.resources.array), cluster.max_array_size)
    except HpcKitError as error:
        raise SpecError(
            f"cluster {cluster.name} has no such array",
            found=f"array = {job.resources.array!r} in {origins.of('resources.array')}; {error.found or error.what}",
            remedy=error.remedy,
        ) from error


def list_doubts(job: Job, cluster: Cluster) -> Iterator[str]:
    """Yield notes about accounts, QOS and containers that the cluster file does not list.

    They are no errors: the lists are those of one user and one login node.
    """
    resources = job.resources
    partition = cluster.partition.get(resources.partition or "")
    for name, value, lists in (
        ("account", resources.account, [cluster.accounts, *([partition.accounts] if partition else [])]),
        ("qos", resources.qos, [cluster.qos, *([partition.qos] if partition else [])]),
    ):
        short = next((known for known in lists if value is not None and known and value not in known), None)
        if short:
            yield f"--{name}={value} is not among those of cluster '{cluster.name}': {', '.join(short)}"
    environment = cluster.environment
    tools = {"apptainer": {"apptainer", "singularity"}, "pyxis": {"pyxis"}}
    for name, tool in tools.items():
        if getattr(environment, name) and cluster.containers and not tool & set(cluster.containers):
            yield f"cluster '{cluster.name}' has no {name}; its containers: {', '.join(cluster.containers)}"


def _parts(resolved: Resolved, environ: Mapping[str, str]) -> Iterator[JobPart]:
    job = resolved.job.resources
    parts = [(each.resources, each.nodes, each.ntasks) for each in resolved.components]
    for resources, nodes, ntasks in parts or [(job, resolved.nodes, resolved.ntasks)]:
        # --overcommit starts several tasks on one CPU.
        cpus = 1 if resolved.cpus_by_slurm or resources.overcommit else resources.cpus_per_task or 1
        tasks = 1 if resources.overcommit else -(-ntasks // nodes)
        time = resources.time if resources.time is not None else environ.get("SBATCH_TIMELIMIT")
        yield JobPart(resources.partition or environ.get("SBATCH_PARTITION"), nodes, tasks * cpus, _seconds(time))


def _seconds(time: str | int | None) -> int | None:
    try:
        return None if time is None else units.parse_time(str(time))
    except UnitError:
        return None
