"""How many nodes and tasks a job asks for, and how many a step of it gets: what is known of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from hpc_kit.errors import HpcKitError
from hpc_kit.script.stages import Stage
from hpc_kit.slurm import nodelist
from hpc_kit.slurm.values import parse_nodes


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


UNKNOWN = Geometry(None, None, None, said=False)


def job_geometry(options: Mapping[str, str]) -> Geometry:
    """The counts that a job's options ask for."""
    nodes, least = _nodes(options.get("nodes"), options.get("nodelist"))
    ntasks, per_node = _count(options, "ntasks"), _count(options, "ntasks-per-node")
    gpus = any(name in options for name in ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"))
    gpus = gpus or options.get("gres", "").startswith("gpu") or "gres/gpu" in options.get("tres-per-task", "")
    said = any(name in options for name in ("nodes", "nodelist", "ntasks", "ntasks-per-node"))
    if "ntasks-per-gpu" in options or "ntasks-per-socket" in options or "ntasks-per-core" in options:
        return Geometry(nodes, None, None, _count(options, "cpus-per-task"), None, gpus, said, least)
    nodes = nodes if nodes is not None or "nodes" in options or (ntasks or 1) > 1 else 1
    ntasks, per_node = _tasks(nodes, ntasks, per_node)
    on_node = _gpus_per_node(options, per_node)
    return Geometry(nodes, ntasks, per_node, _count(options, "cpus-per-task"), on_node, gpus, said, least)


def step_geometry(job: Geometry, step: Stage | None) -> Geometry:
    """The counts of the step that an srun or mpirun starts; without one: a single process."""
    if step is None:
        return Geometry(1, 1, 1, job.cpus_per_task, job.gpus_per_node, job.gpus)
    if step.kind == "mpirun":
        named = step.option("n", "np", "c")
        return Geometry(None, _number(named.text) if named else None, None, gpus=job.gpus, said=named is not None)
    texts = {name: text.text for name, text in step.options.items()}
    if step.opaque or step.fault or any("$" in texts.get(name, "") for name in ("nodes", "ntasks", "ntasks-per-node")):
        return UNKNOWN
    if not texts.keys() & {"nodes", "nodelist", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "exclude", "relative"}:
        return job
    nodes, least = (job.nodes, job.least_nodes) if "nodes" not in texts else _nodes(texts["nodes"], None)
    if "nodes" not in texts and texts.keys() & {"nodelist", "exclude", "relative"}:
        nodes, least = None, 1
    ntasks, per_node = _count(texts, "ntasks"), _count(texts, "ntasks-per-node")
    if ntasks is None and per_node is None:
        # srun takes the job's --ntasks along, whatever -N says.
        ntasks, per_node = (job.ntasks, None) if nodes == job.nodes else (None, job.per_node)
    if ntasks == 1:
        nodes, least = 1, 1
    ntasks, per_node = _tasks(nodes, ntasks, per_node)
    return Geometry(nodes, ntasks, per_node, job.cpus_per_task, job.gpus_per_node, job.gpus, job.said, least)


def _tasks(nodes: int | None, ntasks: int | None, per_node: int | None) -> tuple[int | None, int | None]:
    if nodes is None:
        return ntasks, per_node
    if ntasks is None:
        per_node = per_node if per_node is not None else 1
        return nodes * per_node, per_node
    if ntasks % nodes == 0:
        return ntasks, ntasks // nodes
    return ntasks, None


def _nodes(text: str | None, hosts: str | None) -> tuple[int | None, int]:
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


def _gpus_per_node(options: Mapping[str, str], per_node: int | None) -> int | None:
    for name in ("gpus-per-node", "gres"):
        parts = options.get(name, "").split(":")
        if name == "gres":
            if parts[0] != "gpu" or "," in options[name]:
                continue
            parts = parts[1:]
        if count := _number(parts[-1] if parts else ""):
            return count
    each = _number(options.get("gpus-per-task", "").rpartition(":")[2])
    return each * per_node if each and per_node else None
