"""Refuses a job that its partition can never start, although sbatch accepts it.

With `EnforcePartLimits=NO`, Slurm's default, sbatch queues a job that is larger or longer than its partition allows.
The job then waits for ever, with a reason such as PartitionTimeLimit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SlurmUnavailable, SpecError, UnitError
from hpc_kit.slurm import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpc_kit.slurm.client import SlurmClient
    from hpc_kit.spec.resolve import Resolved

_SECONDS = 10.0
_FORMAT = "--format=%P|%D|%c|%l|%s"
"""Partition (a `*` marks the default), nodes, CPUs of a node, longest time, and nodes of a job as `1-4`."""

_UNLIMITED = {"infinite", "n/a", "unlimited", ""}


class Partition(NamedTuple):
    """The limits of a partition. `cpus` are the CPUs of each of its nodes; `time` is in seconds, None for no limit."""

    name: str
    is_default: bool
    cpus: tuple[int, ...]
    time: int | None
    most_nodes: int | None


class Part(NamedTuple):
    """The size of a job, or of one component of a heterogeneous job."""

    partition: str | None
    nodes: int
    cpus_per_node: int
    time: int | None


def check_partition(resolved: Resolved, client: SlurmClient) -> None:
    """Refuse a job that no partition of its own list can ever start. Nothing is refused if sinfo does not answer.

    Args:
        resolved: The job, fitted to its cluster.
        client: Its Slurm.

    Raises:
        SpecError: More nodes, more CPUs of a node, or more time than the partition has.
    """
    resources = resolved.job.resources
    # Another cluster has other partitions; a reservation may have its own limits.
    if resources.clusters or resources.reservation:
        return
    try:
        answer = client.run(["sinfo", "--noheader", "--exact", _FORMAT], timeout=_SECONDS)
    except SlurmUnavailable:
        return
    known = parse_partitions(answer.stdout) if answer.returncode == 0 else []
    # A QOS may lift the limits of its partition, but it adds no nodes.
    has_qos = bool(resources.qos or client.environ.get("SBATCH_QOS"))
    for part in _parts(resolved, client):
        names = part.partition.split(",") if part.partition else []
        usable = [each for each in known if (each.name in names if names else each.is_default)]
        reasons = [_reason(part, each, has_qos=has_qos) for each in usable]
        if not reasons or not all(reasons):
            continue
        found, remedy = reasons[0] or ("", "")
        where = f"partition {usable[0].name}" + ("" if names else ", the default one")
        raise SpecError(
            f"job {resolved.job.name} would wait for ever in {where}",
            found=found,
            remedy=f"{remedy}; or submit it all the same with --no-check",
        )


def parse_partitions(text: str) -> list[Partition]:
    """Parse the lines of sinfo: one for each kind of node of a partition."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 5 or not fields[1].isdigit() or not fields[2].isdigit():
            continue
        name, nodes, cpus, time, sizes = fields
        most = sizes.rpartition("-")[2]
        partition = Partition(
            name.rstrip("*"),
            name.endswith("*"),
            (int(cpus),) * int(nodes),
            None if time in _UNLIMITED else units.parse_time(time),
            int(most) if most.isdigit() else None,
        )
        before = found.get(partition.name)
        found[partition.name] = partition._replace(cpus=before.cpus + partition.cpus) if before else partition
    return list(found.values())


def _parts(resolved: Resolved, client: SlurmClient) -> Iterator[Part]:
    job = resolved.job.resources
    parts = [(each.resources, each.nodes, each.ntasks) for each in resolved.components]
    for resources, nodes, ntasks in parts or [(job, resolved.nodes, resolved.ntasks)]:
        # --overcommit starts several tasks on one CPU.
        cpus = 1 if resolved.cpus_by_slurm or resources.overcommit else resources.cpus_per_task or 1
        tasks = 1 if resources.overcommit else -(-ntasks // nodes)
        time = resources.time if resources.time is not None else client.environ.get("SBATCH_TIMELIMIT")
        try:
            seconds = units.parse_time(str(time)) if time is not None else None
        except UnitError:
            seconds = None
        partition = resources.partition or client.environ.get("SBATCH_PARTITION")
        yield Part(partition, nodes, tasks * cpus, seconds)


def _reason(part: Part, partition: Partition, *, has_qos: bool) -> tuple[str, str] | None:
    """Return the reason why a partition can never start a job, and the remedy."""
    if part.nodes > len(partition.cpus):
        there = len(partition.cpus)
        return f"{part.nodes} nodes; the partition has {there}", f"ask for {there} nodes at most"
    if part.nodes > sum(cpus >= part.cpus_per_node for cpus in partition.cpus):
        most = max(partition.cpus)
        found = f"{part.cpus_per_node} CPUs on each of {part.nodes} nodes; the largest nodes have {most}"
        if most >= part.cpus_per_node:
            found += ", but fewer nodes have as many"
        return found, "ask for fewer tasks or CPUs on each node"
    if has_qos:
        return None
    if partition.most_nodes is not None and part.nodes > partition.most_nodes:
        return f"{part.nodes} nodes; a job may have {partition.most_nodes}", f"ask for {partition.most_nodes} nodes"
    if part.time is not None and partition.time is not None and (part.time < 0 or part.time > partition.time):
        limit = units.format_time(partition.time)
        return f"--time={units.format_time(part.time)}; the partition allows {limit}", f"ask for --time={limit} or less"
    return None
