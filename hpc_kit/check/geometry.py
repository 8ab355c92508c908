"""How many nodes and tasks a job asks for, and how many a step of it gets: what is known of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpc_kit.check.stages import Stage
from hpc_kit.errors import HpcKitError
from hpc_kit.slurm import nodelist
from hpc_kit.slurm.option_values import parse_nodes


class Geometry(NamedTuple):
    """Counts of a job or step; None: not known. `said`: the script itself tells how large the job is."""

    nodes: int | None
    ntasks: int | None
    per_node: int | None
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    gpus: bool = False
    said: bool = True
    least_nodes: int = 1

    def once_a_node(self) -> Geometry:
        """What is started on each node, once."""
        return self._replace(ntasks=self.nodes, per_node=1)

    @property
    def several_nodes(self) -> bool:
        """It has more than one node, for sure."""
        return self.least_nodes > 1

    @property
    def several_tasks(self) -> bool:
        """It has more than one task, for sure."""
        return (self.ntasks or 1) > 1 or (self.per_node or 1) > 1 or self.several_nodes

    def variables(self) -> dict[str, str]:
        """Slurm's variables in the batch shell, as far as they are known."""
        counts = {
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_NTASKS": self.ntasks,
            "SLURM_NPROCS": self.ntasks,
            "SLURM_NTASKS_PER_NODE": self.per_node,
            "SLURM_CPUS_PER_TASK": self.cpus_per_task,
            "SLURM_GPUS_PER_NODE": self.gpus_per_node,
            "SLURM_GPUS_ON_NODE": self.gpus_per_node,
        }
        return {name: str(count) for name, count in counts.items() if count is not None and self.said}


GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")

UNKNOWN = Geometry(None, None, None, said=False)


def job_geometry(options: Mapping[str, str]) -> Geometry:
    """The counts that a job's options ask for."""
    nodes, least = node_counts(options.get("nodes"), options.get("nodelist"))
    ntasks, per_node = _count(options, "ntasks"), _count(options, "ntasks-per-node")
    gpus = any(name in options for name in GPU_OPTIONS) or gpus_of(options.get("gres", "")) is not None
    gpus = gpus or "gres/gpu" in options.get("tres-per-task", "")
    said = any(name in options for name in ("nodes", "nodelist", "ntasks", "ntasks-per-node"))
    if "ntasks-per-gpu" in options or "ntasks-per-socket" in options or "ntasks-per-core" in options:
        return Geometry(nodes, None, None, _count(options, "cpus-per-task"), None, gpus, said, least)
    nodes = nodes if nodes is not None or "nodes" in options or (ntasks or 1) > 1 else 1
    ntasks, per_node = _tasks(nodes, ntasks, per_node)
    on_node = _gpus_per_node(options, per_node, nodes if "nodes" in options else None)
    return Geometry(nodes, ntasks, per_node, _count(options, "cpus-per-task"), on_node, gpus, said, least)


def step_geometry(job: Geometry, step: Stage | None) -> Geometry:
    """The counts of the step that an srun or mpirun starts; without one: a single process."""
    if step is None:
        return Geometry(1, 1, 1, job.cpus_per_task, job.gpus_per_node, job.gpus)
    if step.kind == "mpirun":
        return _mpirun(job, step)
    texts = {name: text.text for name, text in step.options.items()}
    if step.opaque or step.fault or any("$" in texts.get(name, "") for name in ("nodes", "ntasks", "ntasks-per-node")):
        return UNKNOWN
    if not texts.keys() & {"nodes", "nodelist", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "exclude", "relative"}:
        return job._replace(gpus_per_node=_gpus_of_step(job, texts, job.nodes, job.per_node))
    nodes, least = (job.nodes, job.least_nodes) if "nodes" not in texts else node_counts(texts["nodes"], None)
    if "nodes" not in texts and texts.keys() & {"nodelist", "exclude", "relative"}:
        nodes, least = None, 1
    ntasks, per_node = _count(texts, "ntasks"), _count(texts, "ntasks-per-node")
    if ntasks is None and per_node is None:
        # srun takes the job's --ntasks along, whatever -N says.
        ntasks, per_node = (job.ntasks, None) if nodes == job.nodes else (None, job.per_node)
    if ntasks == 1:
        nodes, least = 1, 1
    ntasks, per_node = _tasks(nodes, ntasks, per_node)
    on_node = _gpus_of_step(job, texts, nodes, per_node)
    return Geometry(nodes, ntasks, per_node, job.cpus_per_task, on_node, job.gpus, job.said, least)


def together(parts: Sequence[Geometry]) -> Geometry:
    """The counts of several components of a heterogeneous job."""
    if len(parts) == 1:
        return parts[0]
    nodes, ntasks = [part.nodes for part in parts], [part.ntasks for part in parts]
    per_node, gpus = {part.per_node for part in parts}, {part.gpus_per_node for part in parts}
    return Geometry(
        None if None in nodes else sum(filter(None, nodes)),
        None if None in ntasks else sum(filter(None, ntasks)),
        per_node.pop() if len(per_node) == 1 else None,
        None,
        gpus.pop() if len(gpus) == 1 else None,
        any(part.gpus for part in parts),
        said=bool(parts) and all(part.said for part in parts),
        least_nodes=sum(part.least_nodes for part in parts),
    )


def het_groups(srun: Stage | None) -> set[int] | None:
    """The components that an srun names with --het-group; the first where it names none; None: not known."""
    text = srun.option("het-group") if srun is not None else None
    if text is None:
        return {0}
    groups: set[int] = set()
    for part in text.text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None:
            return None
        groups |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return groups


def _mpirun(job: Geometry, step: Stage) -> Geometry:
    """That of an MPI's starter: it takes the job's tasks, as many on each node, unless it is told where to put them."""
    named = step.option("n", "np", "c")
    ntasks = _number(named.text) if named else job.ntasks
    placed = step.option("npernode", "N", "ppn", "tasks_per_node")
    ppr = re.match(r"ppr:(\d+):node", step.options["map-by"].text) if "map-by" in step.options else None
    per_node = _number(ppr[1]) if ppr else _number(placed.text) if placed else None
    told = step.options.keys() & {"map-by", "H", "host", "hosts", "hostfile", "machinefile", "f", "rf", "rankfile"}
    if per_node is None and not placed and not told and ntasks is not None and ntasks == job.ntasks:
        return job
    return Geometry(None, ntasks, per_node, None, None, job.gpus, said=named is not None)


def _gpus_of_step(job: Geometry, texts: Mapping[str, str], nodes: int | None, per_node: int | None) -> int | None:
    if texts.keys() & {*GPU_OPTIONS, "gres", "tres-per-task"}:
        return _gpus_per_node(texts, per_node, nodes)
    return job.gpus_per_node


def _tasks(nodes: int | None, ntasks: int | None, per_node: int | None) -> tuple[int | None, int | None]:
    if nodes is None:
        return ntasks, per_node
    if ntasks is None:
        per_node = per_node if per_node is not None else 1
        return nodes * per_node, per_node
    if ntasks % nodes == 0:
        return ntasks, ntasks // nodes
    return ntasks, None


def node_counts(text: str | None, hosts: str | None) -> tuple[int | None, int]:
    """The number of nodes where it is exact, and the least there may be."""
    try:
        if text is not None:
            count = parse_nodes(text)
            return (count.minimum if count.minimum == count.maximum else None), count.minimum
        if hosts is not None and "/" not in hosts:
            count_of_hosts = len(set(nodelist.expand(hosts)))
            return count_of_hosts, count_of_hosts
    except HpcKitError:
        return None, 1
    return None, 1


def _count(options: Mapping[str, str], name: str) -> int | None:
    return _number(options.get(name, ""))


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text) else None


def _gpus_per_node(options: Mapping[str, str], per_node: int | None, nodes: int | None) -> int | None:
    """GPUs on each node; `nodes` divide those of the whole job."""
    for name in ("gpus-per-node", "gres"):
        found = gpus_of(options.get(name, ""), bare=name != "gres")
        if found:
            return found
    each = _number(options.get("gpus-per-task", "").rpartition(":")[2])
    if each and per_node:
        return each * per_node
    total = _number(options.get("gpus", "").rpartition(":")[2])
    return total // nodes if total and nodes and total % nodes == 0 else None


def gpus_of(text: str, *, bare: bool = False) -> int | None:
    """The GPUs of `gpu:a100:4,nvme:1` (`bare`: `a100:4`); None without any."""
    found: list[int] = []
    for part in text.split(","):
        words = re.sub(r"\(.*?\)", "", part).removeprefix("gres/").split(":")
        words = ["gpu", *words] if bare and part else words
        if words[0] == "gpu":
            found.append(int(words[-1]) if words[-1].isdigit() else 1)
    return sum(found) if found else None
