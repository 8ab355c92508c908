"""Computes the size of a job from its options, as sbatch and srun do before they ask the controller."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm import nodelist, option_values
from hpc_kit.slurm.errors import HpcKitError, UnitError
from hpc_kit.slurm.option_values import parse_gpus, parse_gres
from hpc_kit.slurm.sizes import GPU_COUNT_OPTIONS
from hpc_kit.slurm.units import parse_memory
from pocketslurm.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping


WHOLE_NODE = -1
"""`--mem=0`: all the memory that the node has."""

NO_SUCH_NAME = "Invalid node name specified"


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
        contiguous: Adjacent nodes only.
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
    contiguous: bool = False
    fewest: bool = False
    fits: bool = False
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> int:
        """Tasks that surely run."""
        return self.ntasks or self.min_nodes * max(1, self.tasks_per_node)


def decode_size(stored: Mapping[str, object]) -> JobRequest:
    """Return the size in a job's record."""
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
    return JobRequest(**known)  # type: ignore[arg-type]  # written by `encode`


def encode_size(request: JobRequest) -> dict[str, object]:
    """Return the fields that differ from the defaults, for a job's record."""
    given = request._asdict()
    del given["notes"]
    return {name: value for name, value in given.items() if value != JobRequest._field_defaults[name]}


def read_request(options: Mapping[str, str], environ: Mapping[str, str]) -> JobRequest:
    """Compute the size from options by long name.

    Raises:
        CommandError: The options contradict one another.
    """
    _check_exclusions(options)
    hosts = _hosts(options, environ)
    least, most = _node_range(options, len(dict.fromkeys(hosts)))
    request = JobRequest(
        min_nodes=least,
        max_nodes=most,
        ntasks=_number(options, "ntasks"),
        tasks_per_node=_number(options, "ntasks-per-node"),
        cpus_per_task=_number(options, "cpus-per-task") or 1,
        min_cpus=max(_number(options, "mincpus"), _number(options, "cpus-per-task")),
        mem_per_node=_memory(options, "mem"),
        mem_per_cpu=_memory(options, "mem-per-cpu"),
        mem_per_gpu=_memory(options, "mem-per-gpu"),
        cpus_per_gpu=_number(options, "cpus-per-gpu"),
        nodelist=tuple(dict.fromkeys(hosts)),
        exclude=tuple(_expand(options["exclude"])) if options.get("exclude") else (),
        exclusive=options.get("exclusive") == "",
        overcommit="overcommit" in options,
        contiguous="contiguous" in options,
        fewest="use-min-nodes" in options,
        gpus=count(options, "gpus"),
        gpus_per_node=count(options, "gpus-per-node", "gres"),
        gpus_per_task=count(options, "gpus-per-task"),
        gpu_types=types(options),
    )
    _check_memory_of_gpus(request)
    request = _tasks_of_gpus(request, _number(options, "ntasks-per-gpu") or _number(options, "ntasks-per-tres"))
    request = _fit_tasks(request, arbitrary=_is_arbitrary(options, environ), hosts=hosts)
    return settle(request, per_task="gpus-per-task" in options, counted_nodes=bool(options.get("nodes")))


def _check_memory_of_gpus(request: JobRequest) -> None:
    if request.mem_per_gpu and not (request.gpus or request.gpus_per_node or request.gpus_per_task):
        size = max(0, request.mem_per_gpu)
        note = f"error: Requested mem_per_tres=gres:gpu:{size} but did not request any GPU."
        raise CommandError(note, INVALID)


def _node_range(options: Mapping[str, str], named: int) -> tuple[int, int]:
    """Return the fewest and the most nodes if `named` nodes are required; 0 for as few as possible."""
    if "nodes" not in options:
        return max(1, named), 0
    if not options["nodes"].strip("0"):
        raise CommandError(denied="Node count specification invalid")
    wanted = option_values.parse_nodes(options["nodes"])
    least = max(wanted.minimum, named)
    if least > wanted.maximum:
        raise CommandError(f"error: invalid number of nodes (-N {least}-{wanted.maximum})")
    return least, wanted.maximum


def _tasks_of_gpus(request: JobRequest, per_gpu: int) -> JobRequest:
    """Compute the number of tasks from GPUs and tasks per GPU."""
    if per_gpu and request.gpus and not request.ntasks:
        return request._replace(ntasks=per_gpu * request.gpus)
    if per_gpu and request.gpus_per_node and not request.tasks_per_node:
        return request._replace(tasks_per_node=per_gpu * request.gpus_per_node)
    return request


def _fit_tasks(request: JobRequest, *, arbitrary: bool, hosts: list[str]) -> JobRequest:
    """Compute tasks from nodes and nodes from tasks, as sbatch does before it sends them."""
    least, most = request.min_nodes, request.max_nodes or len(request.nodelist)
    if arbitrary and hosts and not request.ntasks:
        return request._replace(ntasks=len(hosts))
    if request.tasks_per_node and not request.ntasks and (not most or least == most):
        return request._replace(ntasks=least * request.tasks_per_node)
    if request.ntasks and most:
        if request.ntasks < least:
            note = f"Warning: can't run {request.ntasks} processes on {least} nodes, setting nnodes to {request.ntasks}"
            keep = request.nodelist[: request.ntasks]
            return request._replace(
                min_nodes=request.ntasks, max_nodes=request.ntasks, nodelist=keep, notes=(*request.notes, note)
            )
        return request._replace(max_nodes=min(request.max_nodes, request.ntasks))
    return request


def _check_exclusions(options: Mapping[str, str]) -> None:
    if len(options.keys() & {"mem", "mem-per-cpu", "mem-per-gpu"}) > 1:
        raise CommandError("fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.")
    if options.keys() & {"ntasks-per-gpu", "ntasks-per-tres"}:
        for other in ("gpus-per-task", "gpus-per-socket", "ntasks-per-node"):
            if other in options:
                raise CommandError(
                    f"fatal: --{other} is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU"
                )
    if "quiet" in options and "verbose" in options:
        raise CommandError("error: don't specify both --verbose (-v) and --quiet (-Q)")


def _hosts(options: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Return the required nodes from a file or the option; arbitrary distribution counts repeated names."""
    named = options.get("nodefile") or options.get("nodelist") or ""
    if not named and (named := environ.get("SLURM_HOSTFILE", "")) and "/" not in named:
        named = f"./{named}"
    if "nodefile" in options or "/" in named:
        try:
            with open(named) as file:  # noqa: PTH123
                text = ",".join(line.split("#")[0].strip() for line in file)
        except OSError:
            raise CommandError("error: Invalid --nodefile node file") from None
        named = ",".join(part for part in text.split(",") if part)
    return _expand(named)


def _expand(text: str) -> list[str]:
    try:
        return nodelist.expand(text)
    except HpcKitError:
        raise CommandError(denied=NO_SUCH_NAME) from None


def _is_arbitrary(options: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    named = "nodelist" in options or "nodefile" in options
    chosen = options.get("distribution", "").lower()
    return chosen.startswith(("arb", "hostfile")) or (not named and bool(environ.get("SLURM_HOSTFILE")))


def _number(options: Mapping[str, str], name: str) -> int:
    return int(options.get(name) or 0)


def _memory(options: Mapping[str, str], name: str) -> int:
    if not options.get(name):
        return 0
    return parse_memory(options[name]) or WHOLE_NODE


INVALID = "error: Invalid generic resource (gres) specification"


def read_gres(text: str) -> list[tuple[str | None, int]]:
    """Read `--gres`: (type or None, count) of each item; `none` is nothing.

    Raises:
        CommandError: An item is no GPU.
    """
    items = [item for item in text.split(",") if item and item.lower() != "none"]
    if not all(map(is_gpu, items)):
        raise CommandError(INVALID)
    return [(each.type, each.number) for item in items for each in parse_gres(item)]


def is_gpu(item: str) -> bool:
    """Return whether an item of `--gres` asks for GPUs; Slurm 22.05 refuses the newer form `gres/gpu`."""
    try:
        return not item.startswith("gres/") and parse_gres(item)[0].name == "gpu"
    except UnitError:
        return False


def count(options: Mapping[str, str], *names: str) -> int:
    """Return the number of GPUs in these options, over all types; the last number counts for a type."""
    found: dict[str | None, int] = {}
    for name in names:
        if options.get(name):
            found.update((read_gres if name == "gres" else parse_gpus)(options[name]))
    return sum(found.values())


def types(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the requested types of GPUs.

    Raises:
        CommandError: Some of an option's GPUs have a type, and some have none.
    """
    found: list[str] = []
    for name in GPU_COUNT_OPTIONS:
        kinds = [kind for kind, _ in parse_gpus(options[name])] if options.get(name) else []
        if None in kinds and any(kinds):
            raise CommandError("error: Invalid GRES specification (with and without type identification)")
        found += filter(None, kinds)
    found += [kind for kind, _ in read_gres(options.get("gres", "")) if kind]
    return tuple(dict.fromkeys(found))


def settle(request: JobRequest, *, per_task: bool, counted_nodes: bool) -> JobRequest:
    """Compute tasks and nodes from GPUs, and check that all numbers agree.

    Args:
        request: What was asked for, its tasks worked out.
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
    wanted = request.gpus // request.gpus_per_task or ntasks
    if not wanted:
        raise _invalid(". --gpus-per-task used without either --gpus or -n/--ntasks is not allowed.")
    if ntasks and ntasks != wanted:
        raise _invalid(". Based on --gpus and --gpus-per-task number of requested tasks differ from -n/--ntasks.")
    return request._replace(ntasks=wanted)


def _check_order(request: JobRequest, *, counted_nodes: bool) -> None:
    total = request.gpus
    if not total:
        return
    if total < max(request.gpus_per_node, request.gpus_per_task):
        raise CommandError("error: Failed to ensure --gpus >= --gres=gpu/--gpus-per-node >= --gpus-per-socket", INVALID)
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


def _invalid(what: str) -> CommandError:
    return CommandError(f"error: Failed to validate job spec{what}", INVALID)


def portable_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that count for the size of a job or a step.

    Drop generic resources other than GPUs, and replace `--tres-per-task` by the older options.
    """
    found = dict(options)
    if "gres" in found:
        items = found["gres"].split(",")
        found["gres"] = ",".join(item for item in items if is_gpu(item) or item.lower() == "none")
        if not found["gres"]:
            del found["gres"]
    for item in found.pop("tres-per-task", "").split(","):
        kind, _, amount = item.replace("=", ":").removeprefix("gres/").partition(":")
        if kind == "cpu":
            found.setdefault("cpus-per-task", amount)
        elif kind == "gpu":
            found.setdefault("gpus-per-task", amount or "1")
    return found


def relax(request: JobRequest, names: set[str]) -> JobRequest:
    """Return the size for nodes that count as large enough, without unknown excluded nodes."""
    return request._replace(fits=True, exclude=tuple(name for name in request.exclude if name in names), gpu_types=())


def note_missing_nodes(command: str, request: JobRequest, count: int) -> None:
    """Print a note on a terminal if a job can never start because it needs more nodes."""
    if request.min_nodes > count and sys.stderr.isatty():
        more = "[embedded] nodes in the cluster file makes more of them"
        print(f"{command}: note: {request.min_nodes} nodes, and there are {count}: {more}", file=sys.stderr)
