"""Partitions of a cluster as sinfo and scontrol list them, and jobs that a partition can never start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpc_kit.errors import UnitError
from hpc_kit.slurm import units

SINFO_ARGV = ("sinfo", "--noheader", "--exact", "--format=%P|%D|%c|%l|%s|%L|%m|%G")
"""Partition (a `*` marks the default), nodes, CPUs of a node, longest time, nodes of a job as `1-4`, default time,
MiB and generic resources of a node. All releases of Slurm print these fields; their JSON differs."""

_UNLIMITED = {"infinite", "n/a", "unlimited", "none", "(null)", ""}


class NodeKind(NamedTuple):
    """Nodes with the same hardware. `mem` is in MiB; None: not listed."""

    nodes: int
    cpus: int
    mem: int | None = None
    gpus: int | None = None
    gpu: str | None = None


class ListedPartition(NamedTuple):
    """A partition with its limits; times are in seconds, None for no limit."""

    name: str
    is_default: bool
    kinds: tuple[NodeKind, ...]
    time: int | None
    most_nodes: int | None
    default_time: int | None = None

    @property
    def nodes(self) -> int:
        """All nodes of the partition."""
        return sum(kind.nodes for kind in self.kinds)


class JobPart(NamedTuple):
    """The size of a job, or of one component of a heterogeneous job. `time` is in seconds."""

    partition: str | None
    nodes: int
    cpus_per_node: int
    time: int | None
    gpus_per_node: int = 0


def parse_partitions(text: str) -> list[ListedPartition]:
    """Parse the lines of `SINFO_ARGV`: one for each kind of node of a partition."""
    found: dict[str, ListedPartition] = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) < 5 or not fields[1].isdigit() or not fields[2].rstrip("+").isdigit():
            continue
        name, nodes, cpus, time, sizes, default_time, mem, gres, *_ = (*fields, "", "", "")
        cpus, mem = cpus.rstrip("+"), mem.rstrip("+")  # of nodes that differ
        most = sizes.rpartition("-")[2]
        kind = NodeKind(int(nodes), int(cpus), int(mem) if mem.isdigit() else None, *_parse_gpus(gres))
        partition = ListedPartition(
            name.rstrip("*"),
            name.endswith("*"),
            (kind,),
            parse_limit(time),
            int(most) if most.isdigit() else None,
            parse_limit(default_time),
        )
        before = found.get(partition.name)
        found[partition.name] = partition._replace(kinds=before.kinds + partition.kinds) if before else partition
    return list(found.values())


def scontrol_records(text: str) -> Iterator[Mapping[str, str]]:
    """Yield the fields of each line of `scontrol --oneliner show ...`. A missing field is the empty string."""
    from collections import defaultdict

    for line in text.splitlines():
        fields = re.findall(r"(?:^|\s)([A-Za-z]\w*)=(\S*)", line)
        if fields and fields[0][0] in {"PartitionName", "NodeName"}:
            yield defaultdict(str, fields)


def parse_limit(text: str) -> int | None:
    """Return the seconds of a limit; None for no limit, or for a text that is no duration."""
    if text.lower() in _UNLIMITED:
        return None
    try:
        seconds = units.parse_time(text)
    except UnitError:
        return None
    return None if seconds == units.UNLIMITED else seconds


def find_obstacle(part: JobPart, partition: ListedPartition, *, has_qos: bool) -> tuple[str, str] | None:
    """Return the reason why a partition can never start a job, and the remedy; None if there is no reason.

    Without kinds of nodes, only the limits of the partition are compared. A QOS may lift these limits; it adds no
    nodes.
    """
    there = partition.nodes
    if there and part.nodes > there:
        return f"{part.nodes} nodes; the partition has {there}", f"ask for --nodes={there} or less"
    if there and part.nodes > sum(kind.nodes for kind in partition.kinds if kind.cpus >= part.cpus_per_node):
        most = max(kind.cpus for kind in partition.kinds)
        nodes = units.format_count(part.nodes, "node")
        found = f"{part.cpus_per_node} CPUs on each of {nodes}; the largest nodes have {most}"
        if most >= part.cpus_per_node:
            found += ", but fewer nodes have as many"
        return found, "ask for fewer tasks or CPUs on each node: --ntasks-per-node, --cpus-per-task"
    gpus = [kind.gpus for kind in partition.kinds if kind.gpus is not None]
    if len(gpus) == len(partition.kinds) and part.gpus_per_node > max(gpus, default=part.gpus_per_node):
        found = f"{part.gpus_per_node} GPUs on each node; the largest nodes have {max(gpus)}"
        return found, f"ask for --gpus-per-node={max(gpus)} or less" if max(gpus) else "ask for no GPUs"
    if has_qos:
        return None
    if partition.most_nodes is not None and part.nodes > partition.most_nodes:
        return (
            f"{part.nodes} nodes; a job may have {partition.most_nodes}",
            f"ask for --nodes={partition.most_nodes} or less",
        )
    if part.time is not None and partition.time is not None and (part.time < 0 or part.time > partition.time):
        limit = units.format_time(partition.time)
        return f"--time={units.format_time(part.time)}; the partition allows {limit}", f"ask for --time={limit} or less"
    return None


def find_partition_obstacle(
    part: JobPart, known: Sequence[ListedPartition], *, has_qos: bool
) -> tuple[str, str, str] | None:
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


def _parse_gpus(gres: str) -> tuple[int | None, str | None]:
    """Return number and type of the GPUs in a node's generic resources, such as `gpu:a100:4(S:0-1),nvme:1`."""
    if not gres:
        return None, None
    # The sockets and indices in parentheses may contain commas.
    items = [item.split(":") for item in re.sub(r"\([^)]*\)", "", gres).split(",")]
    gpus = [(item[1] if len(item) > 2 else "", item[-1]) for item in items if item[0] == "gpu"]
    counts = [int(count) if count.isdigit() else 1 for _, count in gpus]
    types = {kind or (count if not count.isdigit() else "") for kind, count in gpus} - {"", "gpu"}
    return sum(counts), types.pop() if len(types) == 1 else None
