"""GPUs of a job: read from its options, and checked against its tasks and nodes as slurmctld checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import UnitError
from hpc_kit.slurm.option_values import parse_gpus, parse_gres
from hpc_kit.slurm.sizes import GPU_COUNT_OPTIONS
from pocketslurm.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.job_size import Request

INVALID = "error: Invalid generic resource (gres) specification"


def read_gres(text: str) -> list[tuple[str | None, int]]:
    """Read `--gres`: (type or None, count) of each item; `none` is nothing.

    Raises:
        Refused: An item is no GPU.
    """
    items = [item for item in text.split(",") if item and item.lower() != "none"]
    if not all(map(is_gpu, items)):
        raise Refused(INVALID)
    return [(each.type, each.number) for item in items for each in parse_gres(item)]


def is_gpu(item: str) -> bool:
    """Return whether an item of `--gres` asks for GPUs; Slurm 22.05 refuses the newer form `gres/gpu`."""
    try:
        return not item.startswith("gres/") and parse_gres(item)[0].name == "gpu"
    except UnitError:
        return False


def count(options: Mapping[str, str], *names: str) -> int:
    """How many GPUs these options ask for, of all types together; of one type, the last number counts."""
    found: dict[str | None, int] = {}
    for name in names:
        if options.get(name):
            found.update((read_gres if name == "gres" else parse_gpus)(options[name]))
    return sum(found.values())


def types(options: Mapping[str, str]) -> tuple[str, ...]:
    """The types of GPUs asked for.

    Raises:
        Refused: Some of an option's GPUs have a type, and some have none.
    """
    found: list[str] = []
    for name in GPU_COUNT_OPTIONS:
        kinds = [kind for kind, _ in parse_gpus(options[name])] if options.get(name) else []
        if None in kinds and any(kinds):
            raise Refused("error: Invalid GRES specification (with and without type identification)")
        found += filter(None, kinds)
    found += [kind for kind, _ in read_gres(options.get("gres", "")) if kind]
    return tuple(dict.fromkeys(found))


def settle(request: Request, *, per_task: bool, counted_nodes: bool) -> Request:
    """Tasks and nodes that follow from GPUs, and whether all these numbers agree.

    Args:
        request: What was asked for, its tasks worked out.
        per_task: --gpus-per-task was given.
        counted_nodes: --nodes was given.

    Raises:
        Refused: They do not agree.
    """
    _check_order(request, counted_nodes=counted_nodes)
    if request.gpus and request.gpus_per_node:
        request = _settle_nodes(request, request.gpus // request.gpus_per_node, counted_nodes=counted_nodes)
    if not per_task or not request.gpus_per_task:
        return request
    exact = counted_nodes and request.min_nodes == request.max_nodes
    ntasks = request.ntasks or (request.min_nodes if exact else 0)
    wanted = request.gpus // request.gpus_per_task or ntasks
    if not wanted:
        raise _invalid(". --gpus-per-task used without either --gpus or -n/--ntasks is not allowed.")
    if ntasks and ntasks != wanted:
        raise _invalid(". Based on --gpus and --gpus-per-task number of requested tasks differ from -n/--ntasks.")
    return request._replace(ntasks=wanted)


def _check_order(request: Request, *, counted_nodes: bool) -> None:
    total = request.gpus
    if not total:
        return
    if total < max(request.gpus_per_node, request.gpus_per_task):
        raise Refused("error: Failed to ensure --gpus >= --gres=gpu/--gpus-per-node >= --gpus-per-socket", INVALID)
    if request.gpus_per_node and total % request.gpus_per_node:
        raise _invalid(", --gpus is not multiple of --gres=gpu/--gpus-per-node")
    if request.gpus_per_task and total % request.gpus_per_task:
        raise _invalid(", --gpus not multiple of --gpus-per-task")
    if counted_nodes and total < request.min_nodes:
        raise _invalid(", --gpus < -N")


def _settle_nodes(request: Request, nodes: int, *, counted_nodes: bool) -> Request:
    least, most = request.min_nodes, request.max_nodes
    if counted_nodes and not least <= nodes <= most:
        raise _invalid(
            f". Based on --gpu and --gres=gpu/--gpus-per-node required nodes ({nodes}) "
            f"doesn't fall between min_nodes ({least}) and max_nodes ({most}) boundaries."
        )
    return request._replace(min_nodes=nodes, max_nodes=nodes)


def _invalid(what: str) -> Refused:
    return Refused(f"error: Failed to validate job spec{what}", INVALID)
