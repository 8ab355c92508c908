"""Selects nodes for a job, or for all its components. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.errors import INVALID_NODE_NAME, NOT_AVAILABLE, CommandError
from pocketslurm.queue.job_size import WHOLE_NODE, JobRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pocketslurm.queue.records import Job
    from pocketslurm.settings import Settings


class NodeResources(NamedTuple):
    """Free or total resources of a node."""

    name: str
    cpus: int
    mem: int
    gpus: tuple[int, ...] = ()
    whole: bool = True


class NodeShare(NamedTuple):
    """Resources of a node that a job gets."""

    node: str
    tasks: int
    cpus: int
    mem: int
    gpus: tuple[int, ...] = ()


class _NodeCapacity(NamedTuple):
    """Number of tasks that fit on a node."""

    node: NodeResources
    tasks: int


def all_nodes(settings: Settings, names: Sequence[str]) -> list[NodeResources]:
    """Return the nodes with all their resources."""
    gpus = tuple(range(settings.gpus))
    return [NodeResources(name, settings.cpus, settings.memory_of_node, gpus) for name in names]


def free_nodes(nodes: Iterable[NodeResources], jobs: Iterable[Job]) -> list[NodeResources]:
    """Return the resources of the nodes that no job has allocated."""
    left = {node.name: node for node in nodes}
    for job in jobs:
        for index, name in enumerate(job.nodes):
            if node := left.get(name):
                left[name] = NodeResources(
                    name,
                    node.cpus - job.cpus[index],
                    node.mem - job.mem[index],
                    tuple(gpu for gpu in node.gpus if gpu not in job.gpus[index]),
                    whole=False,
                )
    return list(left.values())


def select_nodes(
    request: JobRequest, nodes: Sequence[NodeResources], totals: Sequence[NodeResources]
) -> list[NodeShare] | None:
    """Return the job's share of each selected node, or None while the job does not fit.

    Args:
        request: The request of the job.
        nodes: Free resources of the nodes.
        totals: All resources of the same nodes, for `--exclusive` and `--mem=0`.
    """
    if request.fits and _choose_resources(request, totals, totals) is None:
        nodes, totals = enlarge_nodes(request, nodes), enlarge_nodes(request, totals)
    return _choose_resources(request, nodes, totals)


def enlarge_nodes(request: JobRequest, nodes: Sequence[NodeResources]) -> list[NodeResources]:
    """Return the nodes; idle ones are at least as large as the request needs."""
    count = request.max_nodes or request.min_nodes
    tasks = request.tasks_per_node or -(-request.ntasks // count) or 1
    gpus = max(request.gpus_per_node, -(-request.gpus // count), request.gpus_per_task * tasks)
    cpus = max(request.min_cpus, request.cpus_per_gpu * gpus, request.cpus_per_task)
    cpus = cpus if request.overcommit else max(cpus, request.cpus_per_task * tasks)
    mem = max(request.mem_per_node, request.mem_per_cpu * cpus, request.mem_per_gpu * gpus)
    # Only idle nodes: two jobs that are larger than a node must not share it.
    return [
        node._replace(cpus=max(node.cpus, cpus), mem=max(node.mem, mem), gpus=tuple(range(max(len(node.gpus), gpus))))
        if node.whole
        else node
        for node in nodes
    ]


def _choose_resources(
    request: JobRequest, nodes: Sequence[NodeResources], totals: Sequence[NodeResources]
) -> list[NodeShare] | None:
    whole = {node.name: node for node in totals}
    usable = [capacity for node in nodes if (capacity := _capacity_of(request, node, whole[node.name])).tasks]
    for count in _counts(request, len(usable)):
        chosen = _choose(request, usable, count, list(whole))
        if chosen:
            return _deal(request, chosen, whole)
    return None


def impossible(request: JobRequest, totals: Sequence[NodeResources]) -> str | None:
    """Return the pending reason of a job that can never run on these nodes, or None.

    Raises:
        CommandError: Slurm refuses such a job.
    """
    names = {node.name for node in totals}
    if not set(request.nodelist) <= names or set(request.nodelist) & set(request.exclude):
        raise CommandError(denied=INVALID_NODE_NAME)
    if not set(request.exclude) <= names:
        raise CommandError(denied=INVALID_NODE_NAME)
    totals = enlarge_nodes(request, totals) if request.fits else totals
    if not request.overcommit and request.tasks * request.cpus_per_task > sum(node.cpus for node in totals):
        return "PartitionConfig"
    if request.min_nodes > len(totals):
        return "PartitionNodeLimit"
    most = max((node.cpus for node in totals), default=0)
    per_node = request.cpus_per_task * max(1, request.tasks_per_node)
    if not request.overcommit and max(per_node, request.min_cpus) > most:
        raise CommandError("error: CPU count per node can not be satisfied", denied=NOT_AVAILABLE)
    if max(request.mem_per_node, request.mem_per_cpu) > max((node.mem for node in totals), default=0):
        raise CommandError("error: Memory specification can not be satisfied", denied=NOT_AVAILABLE)
    if select_nodes(request, totals, totals) is None:
        raise CommandError(denied=NOT_AVAILABLE)
    return None


def _counts(request: JobRequest, available: int) -> Iterable[int]:
    """Return numbers of nodes to try: few first, or many first for a range."""
    least = max(request.min_nodes, len(request.nodelist))
    if request.tasks_per_node and request.ntasks and not request.overcommit:
        least = max(least, -(-request.ntasks // request.tasks_per_node))
    if request.max_nodes:
        counts = range(least, min(request.max_nodes, available) + 1)
        return counts if request.fewest else reversed(counts)
    return range(least, available + 1)


def _capacity_of(request: JobRequest, node: NodeResources, total: NodeResources) -> _NodeCapacity:
    """Return the tasks that fit on a node; none if a requirement of every node is missing."""
    lacking = (
        node.name in request.exclude
        or (request.exclusive and not node.whole)
        or node.cpus < max(1, request.min_cpus)
        or len(node.gpus) < request.gpus_per_node
        or (bool(request.gpus or request.gpus_per_task) and not node.gpus)
        or node.mem < _fixed_memory(request, total)
    )
    if lacking:
        return _NodeCapacity(node, 0)
    limits = [max(1, request.ntasks) if request.overcommit else node.cpus // request.cpus_per_task]
    if per_node := _tasks_per_node(request):
        # --ntasks-per-node is no upper limit for selecting nodes: a node with fewer CPUs is not used at all.
        limits.append(per_node if limits[0] >= per_node else 0)
    if request.mem_per_cpu > 0:
        limits.append(node.mem // (request.mem_per_cpu * request.cpus_per_task))
    if request.gpus_per_task:
        limits.append(len(node.gpus) // request.gpus_per_task)
    if request.cpus_per_gpu * max(request.gpus_per_node, request.gpus_per_task, 1) > node.cpus:
        limits.append(0)
    return _NodeCapacity(node, max(0, min(limits)))


def _tasks_per_node(request: JobRequest) -> int:
    """Return the tasks that must fit on every node, even if the last node gets fewer."""
    return min(request.tasks_per_node, request.ntasks) if request.ntasks else request.tasks_per_node


def _fixed_memory(request: JobRequest, total: NodeResources) -> int:
    if WHOLE_NODE in {request.mem_per_node, request.mem_per_cpu}:
        return total.mem
    return max(request.mem_per_node, request.mem_per_gpu * request.gpus_per_node)


def _choose(
    request: JobRequest, usable: Sequence[_NodeCapacity], count: int, names: list[str]
) -> list[_NodeCapacity] | None:
    """Return the first `count` nodes in order that are enough for all tasks and GPUs."""
    required = set(request.nodelist)
    if not required <= {capacity.node.name for capacity in usable}:
        return None
    chosen = [capacity for capacity in usable if capacity.node.name in required]
    others = [capacity for capacity in usable if capacity.node.name not in required]
    if count - len(chosen) > len(others) or count < len(chosen):
        return None
    largest = sorted(others, key=lambda capacity: (capacity.tasks, len(capacity.node.gpus)), reverse=True)
    if not _enough(request, [*chosen, *largest[: count - len(chosen)]]):
        return None
    # Earlier nodes are preferred, but a small one may leave too little.
    # Take a node only if it and the largest remaining ones are enough.
    for capacity in others:
        if len(chosen) == count:
            break
        rest = [other for other in largest if other not in chosen and other is not capacity]
        if _enough(request, [*chosen, capacity, *rest[: count - len(chosen) - 1]]):
            chosen.append(capacity)
    return sorted(chosen, key=lambda capacity: names.index(capacity.node.name)) if len(chosen) == count else None


def _enough(request: JobRequest, usable: Sequence[_NodeCapacity]) -> bool:
    needed = request.ntasks or len(usable) * max(1, request.tasks_per_node)
    return (
        sum(capacity.tasks for capacity in usable) >= needed and sum(len(r.node.gpus) for r in usable) >= request.gpus
    )


def _deal(request: JobRequest, usable: Sequence[_NodeCapacity], totals: dict[str, NodeResources]) -> list[NodeShare]:
    """Distribute tasks, CPUs, memory and GPUs to nodes in order, and leave a task for each later node."""
    ntasks = request.ntasks or len(usable) * max(1, request.tasks_per_node)
    gpus_left = request.gpus
    shares = []
    for index, capacity in enumerate(usable):
        later = len(usable) - index - 1
        tasks = min(capacity.tasks, ntasks - later)
        if request.overcommit:
            tasks = -(-ntasks // (later + 1))
        ntasks -= tasks
        # Each later node also gets one of the GPUs at least.
        gpus = _gpu_share(request, capacity, tasks, gpus_left - later)
        gpus_left -= gpus
        shares.append(_share(request, capacity.node, totals[capacity.node.name], tasks, gpus))
    return shares


def _gpu_share(request: JobRequest, capacity: _NodeCapacity, tasks: int, left: int) -> int:
    if request.gpus:
        return max(0, min(len(capacity.node.gpus), left))
    return request.gpus_per_node or request.gpus_per_task * tasks


def _share(request: JobRequest, node: NodeResources, total: NodeResources, tasks: int, gpus: int) -> NodeShare:
    cpus = 1 if request.overcommit else max(tasks, _tasks_per_node(request)) * request.cpus_per_task
    cpus = max(cpus, request.min_cpus, request.cpus_per_gpu * gpus)
    if request.exclusive:
        cpus, gpus = total.cpus, len(total.gpus)
    # CPUs without tasks, such as those of --mincpus, also count for --mem-per-cpu.
    mem = _fixed_memory(request, total)
    if request.mem_per_cpu > 0:
        mem = request.mem_per_cpu * cpus
    elif request.mem_per_gpu > 0:
        mem = request.mem_per_gpu * gpus
    if not request.ntasks:
        tasks = cpus // request.cpus_per_task
    return NodeShare(
        node.name, request.tasks_per_node or tasks, min(cpus, node.cpus), min(mem, node.mem), node.gpus[:gpus]
    )


class ComponentRequest(NamedTuple):
    """The request of a component, the free resources of the nodes of its partition, and all their resources."""

    request: JobRequest
    free: Sequence[NodeResources]
    totals: Sequence[NodeResources]


def select_for_components(parts: Sequence[ComponentRequest]) -> list[list[NodeShare]] | None:
    """Return the shares of each component; None while they do not fit together.

    Try the components in order, then the ones with the fewest possible nodes first, then with as few nodes as
    possible.
    """
    in_order = range(len(parts))
    limited_first = sorted(in_order, key=lambda index: len(candidates(parts[index].request, parts[index].totals)))
    fewest = [part._replace(request=part.request._replace(fewest=True)) for part in parts]
    return _one_by_one(parts, in_order) or _one_by_one(parts, limited_first) or _one_by_one(fewest, limited_first)


def candidates(request: JobRequest, totals: Iterable[NodeResources]) -> set[str]:
    """Return the nodes that can be used for a request."""
    names = {node.name for node in totals} - set(request.exclude)
    # With further nodes to find, any node may be one of them.
    named_all = len(request.nodelist) >= (request.max_nodes or request.min_nodes)
    return names & set(request.nodelist) if named_all else names


def _one_by_one(parts: Sequence[ComponentRequest], order: Iterable[int]) -> list[list[NodeShare]] | None:
    found: dict[int, list[NodeShare]] = {}
    used: set[str] = set()
    for index in order:
        request, free, totals = parts[index]
        # Nodes that another component names are left for it.
        named = {name for other in parts if other is not parts[index] for name in other.request.nodelist}
        left = [node for node in totals if node.name not in used | named]
        names = {node.name for node in left}
        shares = select_nodes(request, [node for node in free if node.name in names], left)
        if shares is None:
            return None
        found[index] = shares
        used |= {share.node for share in shares}
    return [found[index] for index in range(len(parts))]
