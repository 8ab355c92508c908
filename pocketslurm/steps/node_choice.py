"""Which of its job's nodes a step gets: those first on which no step runs, as slurmctld goes about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pocketslurm.steps.request import StepRequest

TOO_MANY_CPUS = "More processors requested than permitted"
NO_SUCH_NODES = "Requested node configuration is not available"
NO_MEMORY = "Memory required by task is not available"


class Busy(Exception):
    """It would fit, but other steps are there."""


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
    """The nodes, those first on which no step runs; as slurmctld goes about it."""
    blocked = sum(node.blocked for node in nodes if node.name not in request.exclude)
    picked = _named(request, usable, blocked)
    skipped = {node.name for node in nodes[: request.relative or 0]}
    left = [node for name, node in usable.items() if node not in picked and name not in skipped]
    if len(picked) > max(request.min_nodes, 1):  # more are named than needed: these alone are looked at
        picked, left = [], picked
    least = _least_nodes(request, nodes)
    if len(picked) + len(left) < least:
        raise Busy if blocked else CommandError(denied=NO_SUCH_NODES)
    idle = [node for node in left if not node.steps] if request.relative is None else []
    more = least - len(picked)
    if more > 0:
        cpus = max(0, request.cpu_count - sum(node.free_cpus for node in picked))
        found = _pick(idle, _wanted(request, more, idle, picked), cpus) if len(idle) >= more else None
        found = found or _pick(left, _wanted(request, more, left, picked), cpus)
        if found is None:
            raise _shortage(request, [*picked, *left], blocked)
        picked += found
    return _fill(request, picked, left, nodes, blocked)


def _named(request: StepRequest, usable: dict[str, StepNode], blocked: int) -> list[StepNode]:
    names = [name for name in dict.fromkeys(request.hosts) if name in usable]
    if len(names) < len(set(request.hosts)):
        raise Busy if blocked else CommandError(denied=NO_MEMORY)
    if len(names) > request.max_nodes:
        raise CommandError(denied=NO_SUCH_NODES)
    return [usable[name] for name in names]


def _least_nodes(request: StepRequest, nodes: Sequence[StepNode]) -> int:
    """With equal nodes, the CPUs asked for need so many of them at least."""
    sizes = {node.cpus for node in nodes}
    least = request.min_nodes
    if request.cpu_count and len(sizes) == 1:
        least = max(least, -(-request.cpu_count // sizes.pop()))
    if least > request.max_nodes:
        raise CommandError(denied=TOO_MANY_CPUS)
    return least


def _wanted(request: StepRequest, more: int, nodes: Sequence[StepNode], picked: Sequence[StepNode]) -> int:
    return min(len(nodes), max(more, request.max_nodes - len(picked)))


def _pick(nodes: Sequence[StepNode], count: int, cpus: int) -> list[StepNode] | None:
    """The first `count` nodes with `cpus` free CPUs in all: such with an equal share of them, then the next largest."""
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
    """More nodes while the CPUs do not suffice; in the job's order in the end."""
    for node in left:
        if sum(each.free_cpus for each in picked) >= request.cpu_count or len(picked) >= request.max_nodes:
            break
        if node not in picked:
            picked.append(node)
    if request.cpu_count > sum(node.free_cpus for node in picked):
        raise _shortage(request, picked, blocked, NO_SUCH_NODES)
    return [node for node in nodes if node in picked]


def _shortage(request: StepRequest, nodes: Sequence[StepNode], blocked: int, words: str = TOO_MANY_CPUS) -> Exception:
    """Not now where other steps are to blame, else never."""
    most = sum(node.free_cpus for node in nodes) + blocked
    return Busy() if blocked and request.cpu_count <= most else CommandError(denied=words)
