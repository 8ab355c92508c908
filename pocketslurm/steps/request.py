"""What srun asks the controller for: a step's size and the way its tasks go to nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.slurm.option_values import Distribution
from hpc_kit.slurm.sizes import GpuCounts
from hpc_kit.slurm.units import parse_memory
from pocketslurm import distribution
from pocketslurm.errors import CommandError
from pocketslurm.steps.gpus import asked_gpus
from pocketslurm.steps.size import Size

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pocketslurm.queue.records import Job
    from pocketslurm.steps.messages import Talk
    from pocketslurm.steps.options import Asked


class StepRequest(NamedTuple):
    """The size of a step.

    Attributes:
        min_nodes: At least so many nodes, `max_nodes` at most.
        ntasks: Tasks in all; `cpu_count` CPUs for all of them, 0 where they do not count.
        tasks_per_node: At most so many on each node where there is room, 0 for any number.
        hosts: Nodes that it must have; with arbitrary distribution the node of each task.
        exclude: Nodes that it must not have.
        relative: Index of its first node among the job's, None for any.
        whole: It takes all CPUs that the job has of its nodes, and not just those for its tasks.
        overlap: It shares everything with other steps.
        mem_per_node: MiB, likewise `mem_per_cpu`; 0 for what the job has.
        distribution: How tasks go to nodes; `shown` is SLURM_DISTRIBUTION.
        notes: What srun says about it and goes on.
    """

    min_nodes: int
    max_nodes: int
    ntasks: int
    cpu_count: int
    tasks_per_node: int = 0
    hosts: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    relative: int | None = None
    whole: bool = True
    overlap: bool = False
    mem_per_node: int = 0
    mem_per_cpu: int = 0
    gpus: GpuCounts = GpuCounts()
    distribution: Distribution = Distribution("block")
    shown: str = ""
    notes: tuple[str, ...] = ()


def step_request(asked: Asked, environ: Mapping[str, str], job: Job, *, allocated: bool = False) -> StepRequest:
    """The step that an srun asks for inside a job; `allocated` says that this srun has made the job for it.

    Raises:
        Refused: srun would refuse it before it asks the controller.
    """
    size = Size(asked, environ)
    nodes = size.fit_into(job)
    gpus = _gpus(asked, size)
    per_gpu = asked.number("ntasks-per-tres") or asked.number("ntasks-per-gpu")
    if per_gpu and not size.ntasks_set:
        size.ntasks = per_gpu * sum(map(len, job.gpus[:nodes])) or size.ntasks
    memory = {name: parse_memory(asked.get(name)) for name in ("mem", "mem-per-cpu") if asked.get(name)}
    silent = 0 in memory.values() or (allocated and not memory)
    chosen, shown = _shown(size, silent=silent)
    return StepRequest(
        min_nodes=min(size.min_nodes, nodes),
        max_nodes=min(size.max_nodes or nodes, nodes),
        ntasks=size.ntasks,
        cpu_count=_cpu_count(size, asked, job, gpus, allocated=allocated),
        tasks_per_node=size.per_node,
        hosts=tuple(size.hosts),
        exclude=tuple(size.exclude),
        relative=asked.number("relative"),
        whole=_is_whole(size, asked),
        overlap=asked.has("overlap"),
        mem_per_node=memory.get("mem", 0),
        mem_per_cpu=memory.get("mem-per-cpu", 0),
        gpus=gpus,
        distribution=chosen,
        shown=shown,
        notes=tuple(size.notes),
    )


def part_requests(
    parts: Sequence[Asked], environ: Mapping[str, str], jobs: Sequence[Job], talk: Talk, *, allocated: bool
) -> list[StepRequest]:
    """The size of each part of a step; in an ordinary job those before it leave fewer nodes to a part.

    Raises:
        Refused: srun would refuse one of them.
    """
    found: list[StepRequest] = []
    for asked, job in zip(parts, jobs, strict=True):
        taken = sum(request.max_nodes for request in found) if job.het_job_id is None else 0
        if taken and taken >= len(job.nodes):
            raise CommandError(
                f"error: Allocation failure of {asked.get('nodes') or 1} nodes: job size of {len(job.nodes)}, "
                f"already allocated {taken} nodes to previous components."
            )
        request = step_request(asked, environ, without(job, job.nodes[:taken]), allocated=allocated)
        talk.notes(request.notes)
        found.append(request)
    return found


def without(job: Job, taken: Collection[str]) -> Job:
    """A job as if it had not these nodes."""
    left = [index for index, node in enumerate(job.nodes) if node not in taken]
    columns: dict[str, Any] = {name: getattr(job, name) for name in ("nodes", "cpus", "mem", "gpus", "tasks")}
    left_of: dict[str, Any] = {name: [column[index] for index in left] for name, column in columns.items() if column}
    return job._replace(**left_of)


def _gpus(asked: Asked, size: Size) -> GpuCounts:
    try:
        return asked_gpus(asked)
    except CommandError as refused:
        raise CommandError(*size.notes, *refused.lines) from None


def _shown(size: Size, *, silent: bool) -> tuple[Distribution, str]:
    """The distribution, and what tasks are told of it; `silent` leaves the default to the controller, as srun does."""
    chosen = size.distribution
    if chosen.nodes is not None:
        return chosen, distribution.spelling(chosen)
    if silent:
        return chosen._replace(nodes="block"), ""
    chosen = chosen._replace(nodes="cyclic" if size.ntasks <= size.min_nodes else "block")
    return chosen, distribution.spelling(chosen)


def _is_whole(size: Size, asked: Asked) -> bool:
    if asked.has("exact") or asked.values.get("exclusive") in {"", "exclusive"}:
        return False
    return not size.cpus_per_task or asked.has("overcommit")


def _cpu_count(size: Size, asked: Asked, job: Job, gpus: GpuCounts, *, allocated: bool) -> int:
    per_gpu = asked.number("cpus-per-gpu")
    if asked.has("overcommit"):
        return 0
    if size.cpus_per_task:
        return size.ntasks * size.cpus_per_task
    if per_gpu and gpus.per_task:
        return size.ntasks * gpus.per_task * per_gpu
    if allocated and not size.ntasks_set:
        return sum(job.cpus)
    return size.ntasks
