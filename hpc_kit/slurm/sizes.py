"""Nodes, tasks, CPUs and GPUs that a job or a step asks for, computed from its options.

The functions take options by their long names, such as `{"nodes": "2", "gres": "gpu:a100:4"}`. None always means that
a number is unknown or was not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpc_kit.errors import HpcKitError, UnitError
from hpc_kit.slurm.option_values import parse_gpus, parse_gres, parse_nodes

GPU_COUNT_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
"""Options that ask for a number of GPUs. `--gres=gpu:4` is another way to ask."""

GPU_OPTIONS = (*GPU_COUNT_OPTIONS, "cpus-per-gpu", "gpu-bind", "gpu-freq", "mem-per-gpu", "ntasks-per-gpu")
"""Options that only make sense for a job with GPUs."""


class GpuCounts(NamedTuple):
    """Numbers of GPUs that options ask for: of the whole job or step, of each node, of each task."""

    total: int | None = None
    per_node: int | None = None
    per_task: int | None = None

    @property
    def is_positive(self) -> bool:
        """The options ask for at least one GPU."""
        return any(self)

    @property
    def is_unset(self) -> bool:
        """No option asks for GPUs, not even for 0 of them."""
        return all(count is None for count in self)

    def in_job(self, nodes: int, ntasks: int | None) -> int | None:
        """Return the GPUs of a whole job."""
        if self.total is not None:
            return self.total
        if self.per_node is not None:
            return self.per_node * nodes
        return None if self.per_task is None or ntasks is None else self.per_task * ntasks

    def on_node(self, nodes: int | None, tasks_per_node: int | None) -> int | None:
        """Return the GPUs of each node, if all nodes have the same number."""
        if self.per_node is not None:
            return self.per_node
        if self.per_task is not None and tasks_per_node:
            return self.per_task * tasks_per_node
        return self.total // nodes if self.total and nodes and self.total % nodes == 0 else None


class JobSize(NamedTuple):
    """Size of a job or a step.

    Attributes:
        nodes: Nodes, if their number is exact.
        ntasks: Tasks.
        tasks_per_node: Tasks on each node, if all nodes have the same number.
        cpus_per_task: CPUs of each task.
        gpus_per_node: GPUs of each node.
        has_gpus: The options ask for GPUs, even if their number is unknown.
        is_stated: The options themselves give the number of nodes or tasks.
        min_nodes: The smallest possible number of nodes.
    """

    nodes: int | None
    ntasks: int | None
    tasks_per_node: int | None
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    has_gpus: bool = False
    is_stated: bool = True
    min_nodes: int = 1

    def once_per_node(self) -> JobSize:
        """Return the size of something that starts once on each node."""
        return self._replace(ntasks=self.nodes, tasks_per_node=1)

    @property
    def has_several_nodes(self) -> bool:
        """The job certainly has more than one node."""
        return self.min_nodes > 1

    @property
    def has_several_tasks(self) -> bool:
        """The job certainly has more than one task."""
        return (self.ntasks or 1) > 1 or (self.tasks_per_node or 1) > 1 or self.has_several_nodes

    def variables(self) -> dict[str, str]:
        """Return the known variables that Slurm sets in the batch shell."""
        counts = {
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_NTASKS": self.ntasks,
            "SLURM_NPROCS": self.ntasks,
            "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
            "SLURM_CPUS_PER_TASK": self.cpus_per_task,
            "SLURM_GPUS_PER_NODE": self.gpus_per_node,
            "SLURM_GPUS_ON_NODE": self.gpus_per_node,
        }
        return {name: str(count) for name, count in counts.items() if count is not None and self.is_stated}


UNKNOWN = JobSize(None, None, None, is_stated=False)


def size_of_job(options: Mapping[str, str]) -> JobSize:
    """Return the size that the options of a job ask for."""
    nodes, min_nodes = count_nodes(options.get("nodes"), options.get("nodelist"))
    ntasks, per_node = parse_count(options.get("ntasks")), parse_count(options.get("ntasks-per-node"))
    cpus = parse_count(options.get("cpus-per-task"))
    has_gpus = asks_for_gpus(options)
    stated = any(name in options for name in ("nodes", "nodelist", "ntasks", "ntasks-per-node"))
    if "ntasks-per-gpu" in options or "ntasks-per-socket" in options or "ntasks-per-core" in options:
        return JobSize(nodes, None, None, cpus, None, has_gpus, stated, min_nodes)
    # Slurm gives one node to one task. It may spread several tasks over as many nodes as it likes.
    nodes = nodes if nodes is not None or "nodes" in options or (ntasks or 1) > 1 else 1
    ntasks, per_node = spread_tasks(nodes, ntasks, per_node)
    # The GPUs of --gpus are only spread evenly if --nodes is exact.
    gpus = read_gpu_counts(options).on_node(nodes if "nodes" in options else None, per_node)
    return JobSize(nodes, ntasks, per_node, cpus, gpus, has_gpus, stated, min_nodes)


def size_of_step(job: JobSize, options: Mapping[str, str]) -> JobSize:
    """Return the size of a step that srun starts with these options inside a job."""
    # Only the shell knows the value of a variable.
    if any("$" in options.get(name, "") for name in ("nodes", "ntasks", "ntasks-per-node")):
        return UNKNOWN
    has_gpu_options = bool(options.keys() & {*GPU_COUNT_OPTIONS, "gres", "tres-per-task"})
    if not options.keys() & {"nodes", "nodelist", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "exclude", "relative"}:
        if has_gpu_options:
            job = job._replace(gpus_per_node=read_gpu_counts(options).on_node(job.nodes, job.tasks_per_node))
        return job
    nodes, min_nodes = job.nodes, job.min_nodes
    if "nodes" in options:
        nodes, min_nodes = count_nodes(options["nodes"], None)
    elif options.keys() & {"nodelist", "exclude", "relative"}:
        nodes, min_nodes = None, 1
    ntasks, per_node = parse_count(options.get("ntasks")), parse_count(options.get("ntasks-per-node"))
    if ntasks is None and per_node is None:
        # srun inherits the job's --ntasks, even if -N asks for fewer nodes.
        ntasks, per_node = (job.ntasks, None) if nodes == job.nodes else (None, job.tasks_per_node)
    # srun starts one task on one node, even with -N2.
    if ntasks == 1:
        nodes, min_nodes = 1, 1
    ntasks, per_node = spread_tasks(nodes, ntasks, per_node)
    gpus = read_gpu_counts(options).on_node(nodes, per_node) if has_gpu_options else job.gpus_per_node
    return job._replace(nodes=nodes, ntasks=ntasks, tasks_per_node=per_node, gpus_per_node=gpus, min_nodes=min_nodes)


def sum_sizes(components: Sequence[JobSize]) -> JobSize:
    """Return the size of several components of a heterogeneous job together."""
    if len(components) == 1:
        return components[0]
    nodes, ntasks = [each.nodes for each in components], [each.ntasks for each in components]
    per_node, gpus = {each.tasks_per_node for each in components}, {each.gpus_per_node for each in components}
    return JobSize(
        None if None in nodes else sum(filter(None, nodes)),
        None if None in ntasks else sum(filter(None, ntasks)),
        per_node.pop() if len(per_node) == 1 else None,
        None,
        gpus.pop() if len(gpus) == 1 else None,
        any(each.has_gpus for each in components),
        is_stated=bool(components) and all(each.is_stated for each in components),
        min_nodes=sum(each.min_nodes for each in components),
    )


def spread_tasks(nodes: int | None, ntasks: int | None, tasks_per_node: int | None) -> tuple[int | None, int | None]:
    """Complete the numbers of tasks in all and on each node; with neither of them it is one task a node."""
    if nodes is None:
        return ntasks, tasks_per_node
    # With both numbers, Slurm takes --ntasks-per-node as an upper limit, so --ntasks decides.
    if ntasks is None:
        tasks_per_node = 1 if tasks_per_node is None else tasks_per_node
        return nodes * tasks_per_node, tasks_per_node
    return ntasks, ntasks // nodes if ntasks % nodes == 0 else None


def count_nodes(nodes: str | None, hosts: str | None) -> tuple[int | None, int]:
    """Return the exact number of nodes and the smallest possible one.

    `hosts` is the value of `--nodelist`, used if `--nodes` is not given.
    """
    try:
        if nodes is not None:
            count = parse_nodes(nodes)
            return (count.minimum if count.minimum == count.maximum else None), count.minimum
        # With a slash the value names a file that contains the list.
        if hosts is not None and "/" not in hosts:
            # Most jobs name no hosts, and the command line must start fast.
            from hpc_kit.slurm import nodelist

            named = len(set(nodelist.expand(hosts)))
            return named, named
    except HpcKitError:
        return None, 1
    return None, 1


def parse_count(text: str | None) -> int | None:
    """Return the number that an option such as `--ntasks` contains; None for any other text."""
    return int(text) if text and re.fullmatch(r"[1-9][0-9]{0,8}", text) else None


def read_gpu_counts(options: Mapping[str, str]) -> GpuCounts:
    """Return the numbers of GPUs that options ask for; `--gres` counts if `--gpus-per-node` is not given."""
    per_node = count_gpus(options.get("gpus-per-node"))
    return GpuCounts(
        count_gpus(options.get("gpus")),
        count_gres_gpus(options.get("gres")) if per_node is None else per_node,
        count_gpus(options.get("gpus-per-task")),
    )


def count_gpus(text: str | None) -> int | None:
    """Return the GPUs of all types together: 3 for `a100:2,h100`."""
    try:
        return sum(count for _, count in parse_gpus(text)) if text else None
    except UnitError:
        return None


def count_gres_gpus(text: str | None) -> int | None:
    """Return the GPUs among generic resources: 4 for `gpu:a100:4,nvme:1`; None if there are none."""
    # Other items may have forms that parse_gres does not know.
    items = [item for item in (text or "").split(",") if is_gpu_item(item)]
    try:
        return sum(item.number for item in parse_gres(",".join(items))) if items else None
    except UnitError:
        return None


def gpu_types(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the types of GPUs that options ask for, such as `("a100",)`."""
    found = [kind for name in GPU_COUNT_OPTIONS if options.get(name) for kind, _ in parse_gpus(options[name])]
    items = [item for item in options.get("gres", "").split(",") if is_gpu_item(item)]
    found += [each.type for item in items for each in parse_gres(item)]
    return tuple(dict.fromkeys(filter(None, found)))


def is_gpu_item(item: str) -> bool:
    """Return whether one item of `--gres` or `--tres-per-task` asks for GPUs, such as `gpu:4` or `gres/gpu=1`."""
    return re.split("[:=]", item.removeprefix("gres/").removeprefix("gres:"))[0] == "gpu"


def split_tres_per_task(text: str) -> tuple[dict[str, str], str]:
    """Return the older options that mean the CPUs and GPUs of `--tres-per-task`, and its remaining resources.

    >>> split_tres_per_task("cpu=4,gres/gpu:a100:1,license/x:1")
    ({'cpus-per-task': '4', 'gpus-per-task': 'a100:1'}, 'license/x:1')
    """
    older: dict[str, str] = {}
    others: list[str] = []
    for item in text.split(","):
        kind, _, amount = item.replace("=", ":").removeprefix("gres/").partition(":")
        name = {"cpu": "cpus-per-task", "gpu": "gpus-per-task"}.get(kind)
        if name is None:
            others.append(item)
        else:
            older[name] = ",".join([*([older[name]] if name in older else []), amount or "1"])
    return older, ",".join(others)


def asks_for_gpus(options: Mapping[str, str]) -> bool:
    """Return whether any option asks for GPUs."""
    items = ",".join(options.get(name, "") for name in ("gres", "tres-per-task")).split(",")
    return any(name in options for name in GPU_COUNT_OPTIONS) or any(map(is_gpu_item, items))
