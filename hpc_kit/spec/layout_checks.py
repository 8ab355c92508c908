"""Checks the degrees of parallelism against model, batch, memory and nodes."""

from __future__ import annotations

import os
from collections.abc import Callable

from hpc_kit.errors import SpecError
from hpc_kit.slurm import option_values, units
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job import Axis, Job, idle_share
from hpc_kit.spec.job_checks import Origins

RankToNode = Callable[[int], int]
"""Returns the index of the node of a rank."""


def check_layout(
    job: Job, cluster: Cluster, origins: Origins, world_size: int, per_node: int | None, servers: int = 0
) -> tuple[str, ...]:
    """Refuse layouts that cannot work, and return notes about slow ones.

    `per_node` is None if nodes have different numbers of ranks. `servers` ranks, such as parameter servers, get no part
    of the batch.

    Raises:
        SpecError: A degree does not divide its number, there are fewer micro-batches than stages, or the memory is too
            small.
    """
    _check_model(job, origins)
    _check_batch(job, origins, max(1, job.layout.replicas(world_size) - servers))
    _check_shards(job, origins, world_size)
    if per_node is None:
        return ()
    _check_node(job, cluster, origins, world_size, per_node)
    # On this machine too little memory is only a note, since the script may be for another one.
    small = find_memory_shortage(job, cluster, world_size)
    notes = () if small is None else (f"{small.what}: {small.found}",)
    return (*notes, *(note for axis in ("tp", "cp") for note in _crossing(job, axis, world_size, per_node)))


def node_of_rank(job: Job, nodes: int, per_node: int) -> RankToNode | None:
    """Return the function from rank to node that --distribution defines; None for a host file."""
    value = job.resources.distribution
    if value is None or job.launch.starts_agents:  # an agent starts consecutive ranks
        return lambda rank: rank // per_node
    found = option_values.parse_distribution(str(value))
    if found.nodes == "cyclic":
        return lambda rank: rank % nodes
    if found.nodes == "plane" and found.plane_size:
        plane = found.plane_size
        return lambda rank: rank // plane % nodes
    return None if found.nodes == "arbitrary" else lambda rank: rank // per_node


def _check_model(job: Job, origins: Origins) -> None:
    layout, model = job.layout, job.model
    for degree, name in (("tp", "heads"), ("tp", "width"), ("cp", "sequence")):
        number, size = getattr(model, name), getattr(layout, degree)
        if number is not None and number % size:
            fitting = [each for each in range(1, min(number, 2 * size) + 1) if number % each == 0]
            raise SpecError(
                f"{degree} does not divide the model's {name}",
                found=f"{degree} = {size} in {origins.of(f'layout.{degree}')};"
                f" {name} = {number} in {origins.of(f'model.{name}')}",
                remedy=f"set {degree} = {' or '.join(map(str, fitting[-2:]))}",
            )
    if model.layers is not None and model.layers < layout.pp:
        raise SpecError(
            "there are more stages than layers",
            found=f"pp = {layout.pp} in {origins.of('layout.pp')};"
            f" layers = {model.layers} in {origins.of('model.layers')}",
            remedy=f"set pp = {model.layers} or less",
        )


def _check_batch(job: Job, origins: Origins, replicas: int) -> None:
    layout = job.layout
    micro = layout.micro_batches or 1
    if layout.global_batch is not None and layout.global_batch % (replicas * micro):
        each = replicas * micro
        sizes = [size for size in (layout.global_batch // each * each, -(-layout.global_batch // each) * each) if size]
        raise SpecError(
            "the global batch does not divide",
            found=f"global_batch = {layout.global_batch} in {origins.of('layout.global_batch')};"
            f" dp {replicas} x micro_batches {micro} = {each}",
            remedy="set " + " or ".join(f"global_batch = {size}" for size in sizes),
        )
    if layout.micro_batches is not None and layout.micro_batches < layout.pp:
        better = 4 * layout.pp
        raise SpecError(
            "there are fewer micro-batches than stages",
            found=f"micro_batches = {layout.micro_batches} in {origins.of('layout.micro_batches')}; pp = {layout.pp}:"
            f" idle for {idle_share(layout.pp, layout.micro_batches):.0%} of a step, (p - 1) / (m + p - 1)",
            remedy=f"set micro_batches = {better}: {idle_share(layout.pp, better):.0%}",
        )


def _check_shards(job: Job, origins: Origins, world_size: int) -> None:
    layout, replicas = job.layout, job.layout.replicas(world_size)
    if layout.dp_shard is None:
        return
    if not layout.zero:
        raise SpecError(
            "dp_shard needs zero = 1, 2 or 3",
            found=f"dp_shard = {layout.dp_shard} in {origins.of('layout.dp_shard')}; zero = 0",
            remedy="set zero, or leave dp_shard out",
        )
    if replicas % layout.dp_shard:
        raise SpecError(
            "dp_shard does not divide dp",
            found=f"dp_shard = {layout.dp_shard} in {origins.of('layout.dp_shard')}; dp = {replicas}",
            remedy=f"set dp_shard = {max(each for each in range(1, layout.dp_shard) if replicas % each == 0)}",
        )


def rank_bytes(job: Job, world_size: int) -> int | None:
    """Return the bytes of one rank for parameters, gradients and AdamW's moments in float32, without activations.

    The result is None if the job file does not give the size of the model.
    """
    layout, parameters = job.layout, job.model.count_parameters()
    if parameters is None:
        return None
    shards = layout.dp_shard or layout.replicas(world_size)
    # float32: 4 bytes each for parameters (ZeRO 3) and gradients (ZeRO 2), 8 for two moments (ZeRO 1).
    each = sum(size / (shards if layout.zero >= stage else 1) for size, stage in ((4, 3), (4, 2), (8, 1)))
    return round(parameters / (layout.pp * layout.tp) * each)


def _memory_of_node(job: Job, cluster: Cluster) -> int | None:
    """Return the MiB of a node for this job; None if neither job nor cluster gives them."""
    sizes = (units.parse_memory(str(size)) for size in (job.resources.mem, cluster.node.mem) if size is not None)
    # --mem=0 asks for the whole memory of a node.
    return next(filter(None, sizes), None)


def _check_node(job: Job, cluster: Cluster, origins: Origins, world_size: int, per_node: int) -> None:
    """Check the memory of a node without GPUs. The memory of a GPU is unknown here."""
    each, memory = rank_bytes(job, world_size), _memory_of_node(job, cluster)
    if each is None or memory is None or cluster.node.gpus != 0:
        return
    available = memory * 2**20
    if each * per_node > available:
        place = f" ({origins.of('model.parameters')})"
        raise _too_small("a node", job, each, per_node, available, place)


def find_memory_shortage(job: Job, cluster: Cluster, world_size: int) -> SpecError | None:
    """Return an error if this machine, which has all nodes of the embedded Slurm, has too little memory for all ranks.

    The error is only raised for a submission. `render` shows it as a note.
    """
    each = rank_bytes(job, world_size)
    if each is None or cluster.slurm != "embedded" or cluster.node.gpus != 0 or _memory_of_node(job, cluster):
        return None
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _too_small("this machine", job, each, world_size, available) if each * world_size > available else None


def _too_small(what: str, job: Job, each: int, ranks: int, available: int, place: str = "") -> SpecError:
    return SpecError(
        f"the model does not fit {what}",
        found=f"{job.model.count_parameters():,} parameters{place}: with {job.layout},"
        f" zero {job.layout.zero}, {each / 2**30:.1f} GiB of parameters, gradients and moments a rank;"
        f" {ranks} ranks: {each * ranks / 2**30:.1f} GiB of its {available / 2**30:.1f}",
        remedy="increase pp or tp, set zero = 3, or put fewer ranks on a node",
    )


def _crossing(job: Job, axis: Axis, world_size: int, per_node: int) -> list[str]:
    """Return a note if groups that communicate in every layer span nodes, with the amount of data."""
    nodes, degree = world_size // per_node, job.layout.degrees(world_size)[axis]
    place = node_of_rank(job, nodes, per_node)
    if place is None or degree == 1:
        return []
    spans = max(len({place(rank) for rank in group}) for group in job.layout.groups(axis, world_size))
    if spans == 1:
        return []
    stride = 1 if axis == "tp" else job.layout.tp  # of the ranks of a group, in their order
    inside = max((each for each in range(2, degree) if per_node % (each * stride) == 0), default=None)
    fix = f"{axis} = {inside} stays inside" if inside else f"{degree * stride} ranks on a node keep it inside"
    if per_node % (degree * stride) == 0:
        fix = "--distribution=block keeps it inside"
    return [f"{axis} {degree} spans {spans} nodes: {_cost(job, degree, world_size)}; {fix}"]


def _cost(job: Job, degree: int, world_size: int) -> str:
    layout, model = job.layout, job.model
    if not (model.layers and model.width and model.sequence and layout.global_batch):
        return "every layer's sums go over the network, several times slower than a node's own links"
    samples = layout.global_batch / layout.replicas(world_size)
    sums = 4 * model.layers / layout.pp  # two forward, two backward
    sent = sums * samples * model.sequence * model.width * 4 * 2 * (degree - 1) / degree
    return f"{sums:.0f} sums a step and rank go over the network, {sent / 2**20:.0f} MiB in float32"
