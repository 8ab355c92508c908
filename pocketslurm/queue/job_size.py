"""Computes the size of a job from its options, as sbatch and srun do before they ask the controller."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm import nodelist, option_values
from hpc_kit.slurm.errors import HpcKitError, UnitError
from hpc_kit.slurm.option_table import EXCLUSIVE_OPTIONS, MEMORY_OPTIONS
from hpc_kit.slurm.option_values import parse_gpus, parse_gres
from hpc_kit.slurm.sizes import (
    GPU_COUNT_OPTIONS,
    gpu_types,
    is_gpu_item,
    parse_count,
    read_gpu_counts,
    split_tres_per_task,
)
from hpc_kit.slurm.units import parse_memory
from pocketslurm.errors import INVALID_GRES, INVALID_NODE_NAME, CommandError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


WHOLE_NODE = -1
"""`--mem=0`: all the memory that the node has."""


class JobRequest(NamedTuple):
    """The size of a job.

    Attributes:
        min_nodes: Fewest nodes; `max_nodes` 0 means as few as possible.
        ntasks: All tasks; 0 if not given.
        tasks_per_node: Most tasks on a node, or the exact number without `ntasks`; 0 for any number.
        cpus_per_task: CPUs of a task; `min_cpus` of a node.
        mem_per_node: MiB, `WHOLE_NODE`, or 0 if not given; also per CPU and per GPU.
        gpus: All GPUs, or GPUs per node or task; `gpu_types` are their types.
        nodelist: Nodes that the job must get; `exclude` must not.
        exclusive: Whole nodes.
        overcommit: One CPU per node for any number of tasks.
        fewest: As few nodes of a range as possible, not all free ones.
        fits: An idle node counts as large enough.
        notes: Warnings that sbatch prints.
    """

    min_nodes: int = 1
    max_nodes: int = 0
    ntasks: int = 0
    tasks_per_node: int = 0
    cpus_per_task: int = 1
    min_cpus: int = 0
    mem_per_node: int = 0
    mem_per_cpu: int = 0
    mem_per_gpu: int = 0
    gpus: int = 0
    gpus_per_node: int = 0
    gpus_per_task: int = 0
    gpu_types: tuple[str, ...] = ()
    cpus_per_gpu: int = 0
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exclusive: bool = False
    overcommit: bool = False
    fewest: bool = False
    fits: bool = False
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> int:
        """Tasks that surely run."""
        return self.ntasks or self.min_nodes * max(1, self.tasks_per_node)


def decode_size(stored: Mapping[str, object]) -> JobRequest:
    """Return the size in a job's record."""
    # Another release may have stored fields that this one does not know.
    known = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in stored.items()
        if name in JobRequest._fields
    }
    return JobRequest(**known)  # type: ignore[arg-type]  # written by `encode_size`


def encode_size(request: JobRequest) -> dict[str, object]:
    """Return the fields that differ from the defaults, for a job's record."""
    fields = request._asdict()
    del fields["notes"]
    return {name: value for name, value in fields.items() if value != JobRequest._field_defaults[name]}


def read_request(options: Mapping[str, str]) -> JobRequest:
    """Compute the size from options by long name.

    Raises:
        CommandError: The options contradict one another.
    """
    check_exclusions(options)
    check_gpu_options(options)
    nodelist = tuple(dict.fromkeys(expand_hosts(options.get("nodelist", ""))))
    least, most = _node_range(options, len(nodelist))
    gpus = read_gpu_counts(options)
    request = JobRequest(
        min_nodes=least,
        max_nodes=most,
        ntasks=_count(options, "ntasks"),
        tasks_per_node=_count(options, "ntasks-per-node"),
        cpus_per_task=_count(options, "cpus-per-task") or 1,
        # All CPUs of a task are on one node.
        min_cpus=max(_count(options, "mincpus"), _count(options, "cpus-per-task")),
        mem_per_node=_memory(options, "mem"),
        mem_per_cpu=_memory(options, "mem-per-cpu"),
        mem_per_gpu=_memory(options, "mem-per-gpu"),
        cpus_per_gpu=_count(options, "cpus-per-gpu"),
        nodelist=nodelist,
        exclude=tuple(expand_hosts(options.get("exclude", ""))),
        # --exclusive=user and =mcs only keep other users away, and there are none.
        exclusive=options.get("exclusive") == "",
        overcommit="overcommit" in options,
        fewest="use-min-nodes" in options,
        gpus=gpus.total or 0,
        gpus_per_node=gpus.per_node or 0,
        gpus_per_task=gpus.per_task or 0,
        gpu_types=gpu_types(options),
    )
    _check_memory_of_gpus(request)
    request = _tasks_of_gpus(request, _count(options, "ntasks-per-gpu") or _count(options, "ntasks-per-tres"))
    return settle(_fit_tasks(request), per_task="gpus-per-task" in options, counted_nodes=bool(options.get("nodes")))


def expand_hosts(text: str) -> list[str]:
    """Return the nodes of a node list.

    Raises:
        CommandError: The list is malformed, or names a file.
    """
    if "/" in text:
        raise CommandError(f"error: a file of nodes is not supported by the embedded Slurm: name the nodes of {text}")
    try:
        return nodelist.expand(text)
    except HpcKitError:
        raise CommandError(denied=INVALID_NODE_NAME) from None


def check_exclusions(options: Collection[str]) -> None:
    """Check that the options may be given together.

    Raises:
        CommandError: Slurm accepts only one of two options.
    """
    for group in EXCLUSIVE_OPTIONS:
        if group is MEMORY_OPTIONS and len(group & set(options)) > 1:
            raise CommandError("fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.")
        if group <= set(options) and "ntasks-per-gpu" in group:
            (other,) = group - {"ntasks-per-gpu"}
            raise CommandError(f"fatal: --{other} is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU")
    if "quiet" in options and "verbose" in options:
        raise CommandError("error: don't specify both --verbose (-v) and --quiet (-Q)")


def check_gpu_options(options: Mapping[str, str]) -> None:
    """Check that `--gres` asks for GPUs only, and that all or none of an option's GPUs have a type.

    Raises:
        CommandError: Slurm refuses the options.
    """
    for item in options.get("gres", "").split(","):
        if item and item.lower() != "none":
            try:
                is_gpu = parse_gres(item)[0].name == "gpu"
            except UnitError:
                is_gpu = False
            if not is_gpu:
                raise CommandError(f"error: {INVALID_GRES}")
    for name in GPU_COUNT_OPTIONS:
        if len({kind is None for kind, _ in parse_gpus(options.get(name) or "0")}) > 1:
            raise CommandError("error: Invalid GRES specification (with and without type identification)")


def _count(options: Mapping[str, str], name: str) -> int:
    return parse_count(options.get(name)) or 0


def _check_memory_of_gpus(request: JobRequest) -> None:
    if request.mem_per_gpu and not (request.gpus or request.gpus_per_node or request.gpus_per_task):
        size = max(0, request.mem_per_gpu)
        note = f"error: Requested mem_per_tres=gres:gpu:{size} but did not request any GPU."
        raise CommandError(note, f"error: {INVALID_GRES}")


def _node_range(options: Mapping[str, str], required: int) -> tuple[int, int]:
    """Return the fewest and the most nodes if `required` nodes are required; 0 for as few as possible."""
    if "nodes" not in options:
        return max(1, required), 0
    if not options["nodes"].strip("0"):
        raise CommandError(denied="Node count specification invalid")
    nodes = option_values.parse_nodes(options["nodes"])
    least = max(nodes.minimum, required)
    if least > nodes.maximum:
        raise CommandError(f"error: invalid number of nodes (-N {least}-{nodes.maximum})")
    return least, nodes.maximum


def _tasks_of_gpus(request: JobRequest, per_gpu: int) -> JobRequest:
    """Compute the number of tasks from GPUs and tasks per GPU."""
    if per_gpu and request.gpus and not request.ntasks:
        return request._replace(ntasks=per_gpu * request.gpus)
    if per_gpu and request.gpus_per_node and not request.tasks_per_node:
        return request._replace(tasks_per_node=per_gpu * request.gpus_per_node)
    return request


def _fit_tasks(request: JobRequest) -> JobRequest:
    """Compute tasks from nodes and nodes from tasks, as sbatch does before it sends them."""
    least, most = request.min_nodes, request.max_nodes or len(request.nodelist)
    if request.tasks_per_node and not request.ntasks and (not most or least == most):
        return request._replace(ntasks=least * request.tasks_per_node)
    if request.ntasks and most:
        # Slurm runs at least one task on each node, so fewer tasks mean fewer nodes.
        if request.ntasks < least:
            note = f"Warning: can't run {request.ntasks} processes on {least} nodes, setting nnodes to {request.ntasks}"
            keep = request.nodelist[: request.ntasks]
            return request._replace(
                min_nodes=request.ntasks, max_nodes=request.ntasks, nodelist=keep, notes=(*request.notes, note)
            )
        return request._replace(max_nodes=min(request.max_nodes, request.ntasks))
    return request


def _memory(options: Mapping[str, str], name: str) -> int:
    if not options.get(name):
        return 0
    # --mem=0
    return parse_memory(options[name]) or WHOLE_NODE


def settle(request: JobRequest, *, per_task: bool, counted_nodes: bool) -> JobRequest:
    """Compute tasks and nodes from GPUs, and check that all numbers agree.

    Args:
        request: The request with its tasks computed.
        per_task: --gpus-per-task was given.
        counted_nodes: --nodes was given.

    Raises:
        CommandError: They do not agree.
    """
    _check_order(request, counted_nodes=counted_nodes)
    if request.gpus and request.gpus_per_node:
        request = _settle_nodes(request, request.gpus // request.gpus_per_node, counted_nodes=counted_nodes)
    if not per_task or not request.gpus_per_task:
        return request
    exact = counted_nodes and request.min_nodes == request.max_nodes
    ntasks = request.ntasks or (request.min_nodes if exact else 0)
    tasks = request.gpus // request.gpus_per_task or ntasks
    if not tasks:
        raise _invalid(". --gpus-per-task used without either --gpus or -n/--ntasks is not allowed.")
    if ntasks and ntasks != tasks:
        raise _invalid(". Based on --gpus and --gpus-per-task number of requested tasks differ from -n/--ntasks.")
    return request._replace(ntasks=tasks)


def _check_order(request: JobRequest, *, counted_nodes: bool) -> None:
    total = request.gpus
    if not total:
        return
    if total < max(request.gpus_per_node, request.gpus_per_task):
        raise CommandError(
            "error: Failed to ensure --gpus >= --gres=gpu/--gpus-per-node >= --gpus-per-socket",
            f"error: {INVALID_GRES}",
        )
    if request.gpus_per_node and total % request.gpus_per_node:
        raise _invalid(", --gpus is not multiple of --gres=gpu/--gpus-per-node")
    if request.gpus_per_task and total % request.gpus_per_task:
        raise _invalid(", --gpus not multiple of --gpus-per-task")
    if counted_nodes and total < request.min_nodes:
        raise _invalid(", --gpus < -N")


def _settle_nodes(request: JobRequest, nodes: int, *, counted_nodes: bool) -> JobRequest:
    least, most = request.min_nodes, request.max_nodes
    if counted_nodes and not least <= nodes <= most:
        raise _invalid(
            f". Based on --gpu and --gres=gpu/--gpus-per-node required nodes ({nodes}) "
            f"doesn't fall between min_nodes ({least}) and max_nodes ({most}) boundaries."
        )
    return request._replace(min_nodes=nodes, max_nodes=nodes)


def _invalid(text: str) -> CommandError:
    return CommandError(f"error: Failed to validate job spec{text}", f"error: {INVALID_GRES}")


def portable_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that count for the size of a job or a step.

    Drop generic resources other than GPUs, and replace `--tres-per-task` by the older options.
    """
    portable = dict(options)
    if "gres" in portable:
        items = portable["gres"].split(",")
        portable["gres"] = ",".join(item for item in items if is_gpu_item(item) or item.lower() == "none")
        if not portable["gres"]:
            del portable["gres"]
    older, _ = split_tres_per_task(portable.pop("tres-per-task", ""))
    return older | portable


def relax(request: JobRequest, names: set[str]) -> JobRequest:
    """Return the size for nodes that count as large enough, without unknown excluded nodes."""
    return request._replace(fits=True, exclude=tuple(name for name in request.exclude if name in names), gpu_types=())


def note_missing_nodes(command: str, request: JobRequest, count: int) -> None:
    """Print a note on a terminal if a job can never start because it needs more nodes."""
    if request.min_nodes > count and sys.stderr.isatty():
        more = "[embedded] nodes in the cluster file makes more of them"
        print(f"{command}: note: {request.min_nodes} nodes, and there are {count}: {more}", file=sys.stderr)
