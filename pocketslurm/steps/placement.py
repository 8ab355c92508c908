"""Places a step on the nodes of its job, with CPUs, memory and GPUs. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.sizes import GPU_COUNT_OPTIONS
from pocketslurm.distribution import distribute_tasks
from pocketslurm.errors import INVALID_GRES, NOT_AVAILABLE, CommandError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pocketslurm.queue.records import Job, Step
    from pocketslurm.steps.request import StepRequest


class StepPlacement(NamedTuple):
    """A step's nodes; `tasks` (task numbers), `cpus`, `mem` and `gpus` (device numbers) go along with them."""

    nodes: list[str]
    tasks: list[list[int]]
    cpus: list[int]
    mem: list[int]
    gpus: list[list[int]]


def place_step(job: Job, steps: Iterable[Step], request: StepRequest, memory: int) -> StepPlacement:
    """Find a step's place among the running steps of its job; `memory` is what a node has, for a job that named none.

    Raises:
        NoRoomNow: Other steps use the resources.
        CommandError: The step can never fit.
    """
    # A job that asks for whole nodes has their GPUs, but its steps get none unless they ask for some.
    if request.gpus.is_unset and not {*GPU_COUNT_OPTIONS, "gres"} & job.options.keys():
        request = request._replace(gpus=request.gpus._replace(per_node=0))
    # An older record has no memory at all, and 0 means all memory of the node.
    job = job._replace(mem=[mine or memory for mine in job.mem] or [memory] * len(job.nodes))
    nodes = [_node(job, index, list(steps), request) for index in range(len(job.nodes))]
    _check_names(request, nodes)
    usable = {node.name: node for node in nodes if _is_usable(request, node)}
    chosen = choose(request, nodes, usable)
    tasks = distribute_tasks(request.ntasks, _slots(request, chosen, nodes), request.distribution)
    per_task = _cpus_per_task(request, nodes)
    cpus = [
        node.cpus if request.whole else len(on_node) * max(1, per_task)
        for node, on_node in zip(chosen, tasks, strict=True)
    ]
    _check_cpus(request, chosen, cpus)
    mem = [
        min(node.mem, request.mem_per_node or request.mem_per_cpu * count)
        for node, count in zip(chosen, cpus, strict=True)
    ]
    gpus = _deal_gpus(request, chosen, tasks)
    return StepPlacement([node.name for node in chosen], tasks, cpus, mem, gpus)


def _node(job: Job, index: int, steps: Sequence[Step], request: StepRequest) -> StepNode:
    """Return the free resources of a node of the job for a new step; with --overlap, all of them."""
    name, gpus = job.nodes[index], tuple(job.gpus[index]) if job.gpus else ()
    here = [(step, step.nodes.index(name)) for step in steps if name in step.nodes]
    counted = [] if request.overlap else [(step, at) for step, at in here if not step.overlap]
    taken = {gpu for step, at in counted if step.gpus for gpu in step.gpus[at]}
    free_mem = job.mem[index] - sum(step.mem[at] for step, at in counted if step.mem)
    free_cpus = job.cpus[index] - sum(step.cpus[at] for step, at in counted)
    # A CPU without its memory is of no use to the step.
    if request.mem_per_cpu:
        free_cpus = min(free_cpus, free_mem // request.mem_per_cpu)
    return StepNode(
        name=name,
        cpus=job.cpus[index],
        mem=job.mem[index],
        gpus=gpus,
        free_cpus=free_cpus,
        free_mem=free_mem,
        free_gpus=tuple(gpu for gpu in gpus if gpu not in taken),
        steps=len(here),
        blocked=sum(step.cpus[at] for step, at in counted),
    )


def _check_names(request: StepRequest, nodes: Sequence[StepNode]) -> None:
    names = {node.name for node in nodes}
    if not set(request.hosts) <= names:
        raise CommandError(denied=NOT_AVAILABLE)
    if request.gpus.is_positive and not any(node.gpus for node in nodes):
        raise CommandError("error: Step requested GRES but job doesn't have GRES", denied=INVALID_GRES)
    if max(request.mem_per_node, request.mem_per_cpu) > max(node.mem for node in nodes):
        raise CommandError(denied=NO_MEMORY)
    if (request.gpus.per_node or 0) > max(len(node.gpus) for node in nodes):
        raise CommandError(denied=INVALID_GRES)


def _is_usable(request: StepRequest, node: StepNode) -> bool:
    if node.name in request.exclude or node.free_cpus <= 0 or (request.whole and node.blocked):
        return False
    return node.free_mem >= request.mem_per_node and len(node.free_gpus) >= _least_gpus(request, node)


def _least_gpus(request: StepRequest, node: StepNode) -> int:
    """Return the GPUs that must be free on a node of the step."""
    gpus = request.gpus
    if gpus.is_unset:
        return len(node.gpus)
    if gpus.per_node is not None:
        return gpus.per_node
    return gpus.per_task or int(bool(gpus.total))


def _cpus_per_task(request: StepRequest, nodes: Sequence[StepNode]) -> int:
    """Return the CPUs of each task; 0 if they differ between tasks or do not fit."""
    each, rest = divmod(request.cpu_count, request.ntasks)
    if rest or not each or each > min(node.cpus for node in nodes):
        return 0
    return each if sum(node.cpus // each for node in nodes) >= request.ntasks else 0


def _slots(request: StepRequest, chosen: Sequence[StepNode], nodes: Sequence[StepNode]) -> list[int]:
    """Return the number of tasks that fit on each node."""
    per_task = max(1, _cpus_per_task(request, nodes))
    slots = [max(1, node.free_cpus // per_task) for node in chosen]
    if request.gpus.per_task:
        slots = [
            min(room, len(node.free_gpus) // request.gpus.per_task) for room, node in zip(slots, chosen, strict=True)
        ]
    return [min(room, request.tasks_per_node) for room in slots] if request.tasks_per_node else slots


def _check_cpus(request: StepRequest, chosen: Sequence[StepNode], cpus: Sequence[int]) -> None:
    """Check the CPUs of each node: a sufficient sum is not always enough if tasks need several CPUs."""
    for node, count in zip(chosen, cpus, strict=True):
        if count > node.cpus:
            raise CommandError(denied=TOO_MANY_CPUS)
        if count > node.free_cpus and request.cpu_count:
            raise NoRoomNow


def _deal_gpus(request: StepRequest, chosen: Sequence[StepNode], tasks: Sequence[Sequence[int]]) -> list[list[int]]:
    gpus, dealt = request.gpus, []
    left = gpus.total or 0
    for index, (node, on_node) in enumerate(zip(chosen, tasks, strict=True)):
        count = len(node.gpus) if gpus.is_unset else gpus.per_node or (gpus.per_task or 0) * len(on_node)
        if gpus.total:
            # Each later node gets one GPU at least.
            count = min(len(node.free_gpus), left - (len(chosen) - index - 1))
            left -= count
        if count > len(node.gpus):
            raise CommandError(denied=INVALID_GRES)
        if count > len(node.free_gpus):
            raise NoRoomNow
        dealt.append(list(node.free_gpus[:count]))
    if left:
        taken = sum(len(node.gpus) - len(node.free_gpus) for node in chosen)
        raise NoRoomNow if left <= taken else CommandError(denied=INVALID_GRES)
    return dealt


TOO_MANY_CPUS = "More processors requested than permitted"
NO_MEMORY = "Memory required by task is not available"


class NoRoomNow(Exception):
    """The step fits, but other steps use the resources now."""


class StepNode(NamedTuple):
    """A node of the job: what the job has of it, what others leave; `steps` run there, `blocked` CPUs are theirs."""

    name: str
    cpus: int
    mem: int
    gpus: tuple[int, ...]
    free_cpus: int
    free_mem: int
    free_gpus: tuple[int, ...]
    steps: int
    blocked: int


def choose(request: StepRequest, nodes: Sequence[StepNode], usable: dict[str, StepNode]) -> list[StepNode]:
    """Choose nodes as slurmctld does: nodes without steps first."""
    blocked = sum(node.blocked for node in nodes if node.name not in request.exclude)
    picked = _named_nodes(request, usable, blocked)
    skipped = {node.name for node in nodes[: request.relative or 0]}
    left = [node for name, node in usable.items() if node not in picked and name not in skipped]
    if len(picked) > max(request.min_nodes, 1):  # more are named than needed: these alone are looked at
        picked, left = [], picked
    least = _least_nodes(request, nodes)
    if len(picked) + len(left) < least:
        raise NoRoomNow if blocked else CommandError(denied=NOT_AVAILABLE)
    # --relative names the first node, also if a step runs there.
    idle = [node for node in left if not node.steps] if request.relative is None else []
    more = least - len(picked)
    if more > 0:
        cpus = max(0, request.cpu_count - sum(node.free_cpus for node in picked))
        found = _pick(idle, _node_count(request, more, idle, picked), cpus) if len(idle) >= more else None
        found = found or _pick(left, _node_count(request, more, left, picked), cpus)
        if found is None:
            raise _shortage(request, [*picked, *left], blocked)
        picked += found
    return _fill(request, picked, left, nodes, blocked)


def _named_nodes(request: StepRequest, usable: dict[str, StepNode], blocked: int) -> list[StepNode]:
    names = [name for name in dict.fromkeys(request.hosts) if name in usable]
    if len(names) < len(set(request.hosts)):
        raise NoRoomNow if blocked else CommandError(denied=NO_MEMORY)
    if len(names) > request.max_nodes:
        raise CommandError(denied=NOT_AVAILABLE)
    return [usable[name] for name in names]


def _least_nodes(request: StepRequest, nodes: Sequence[StepNode]) -> int:
    """Return the fewest nodes that have enough CPUs if nodes are equal."""
    sizes = {node.cpus for node in nodes}
    least = request.min_nodes
    if request.cpu_count and len(sizes) == 1:
        least = max(least, -(-request.cpu_count // sizes.pop()))
    if least > request.max_nodes:
        raise CommandError(denied=TOO_MANY_CPUS)
    return least


def _node_count(request: StepRequest, more: int, nodes: Sequence[StepNode], picked: Sequence[StepNode]) -> int:
    return min(len(nodes), max(more, request.max_nodes - len(picked)))


def _pick(nodes: Sequence[StepNode], count: int, cpus: int) -> list[StepNode] | None:
    """Return the first `count` nodes with enough free CPUs: nodes with an equal share, then the next largest."""
    if count > len(nodes) or not count:
        return None
    share = -(-cpus // count)
    large = [node for node in nodes if node.free_cpus >= share][:count]
    small = sorted((node for node in nodes if node not in large), key=lambda node: -node.free_cpus)
    found = [*large, *small[: count - len(large)]]
    return [node for node in nodes if node in found] if sum(node.free_cpus for node in found) >= cpus else None


def _fill(
    request: StepRequest, picked: list[StepNode], left: list[StepNode], nodes: Sequence[StepNode], blocked: int
) -> list[StepNode]:
    """Add nodes until there are enough CPUs, and return them in the job's order."""
    for node in left:
        if sum(each.free_cpus for each in picked) >= request.cpu_count or len(picked) >= request.max_nodes:
            break
        if node not in picked:
            picked.append(node)
    if request.cpu_count > sum(node.free_cpus for node in picked):
        raise _shortage(request, picked, blocked, NOT_AVAILABLE)
    return [node for node in nodes if node in picked]


def _shortage(request: StepRequest, nodes: Sequence[StepNode], blocked: int, words: str = TOO_MANY_CPUS) -> Exception:
    """Return the error for missing CPUs: not now if other steps use them, else never."""
    most = sum(node.free_cpus for node in nodes) + blocked
    return NoRoomNow() if blocked and request.cpu_count <= most else CommandError(denied=words)
