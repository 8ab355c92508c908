"""How much a job asks for: the numbers behind its options, worked out as sbatch and srun do before they ask Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import HpcKitError
from hpc_kit.slurm import nodelist, option_values
from hpc_kit.slurm.units import parse_memory
from pocketslurm.errors import Refused
from pocketslurm.queue import job_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE_NODE = -1
"""`--mem=0`: all the memory that the node has."""

NO_SUCH_NAME = "Invalid node name specified"


class Request(NamedTuple):
    """The size of a job.

    Attributes:
        min_nodes: At least so many; `max_nodes` 0 stands for as few as will do.
        ntasks: Tasks in all, 0 where nobody said.
        tasks_per_node: At most, or with no `ntasks` exactly, so many on each node; 0 for any number.
        cpus_per_task: CPUs of a task; `min_cpus` of a node.
        mem_per_node: MiB, `WHOLE_NODE`, or 0 where nothing was said; likewise per CPU and per GPU.
        gpus: In all; or per node, per task; `gpu_types` that they must be of.
        nodelist: Nodes that must be among them; `exclude` must not.
        exclusive: Whole nodes.
        overcommit: One CPU a node, whatever the tasks.
        contiguous: Nodes side by side.
        fewest: Of a range, as few nodes as will do, not as many as are free.
        fits: Where no node is large enough, one on which nothing runs is.
        notes: What sbatch says about it and goes on.
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


def decode(stored: Mapping[str, object]) -> Request:
    """The request in a job's record."""
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
    return Request(**known)  # type: ignore[arg-type]  # written by `encode`


def encode(request: Request) -> dict[str, object]:
    """The fields that say something, for a job's record."""
    given = request._asdict()
    del given["notes"]
    return {name: value for name, value in given.items() if value != Request._field_defaults[name]}


def read_request(options: Mapping[str, str], environ: Mapping[str, str]) -> Request:
    """Work out the size from options by long name.

    Raises:
        Refused: The options contradict one another.
    """
    _check_exclusions(options)
    hosts = _hosts(options, environ)
    least, most = _node_range(options, len(dict.fromkeys(hosts)))
    request = Request(
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
        gpus=job_gpus.count(options, "gpus"),
        gpus_per_node=job_gpus.count(options, "gpus-per-node", "gres"),
        gpus_per_task=job_gpus.count(options, "gpus-per-task"),
        gpu_types=job_gpus.types(options),
    )
    _check_memory_of_gpus(request)
    request = _tasks_of_gpus(request, _number(options, "ntasks-per-gpu") or _number(options, "ntasks-per-tres"))
    request = _fit_tasks(request, arbitrary=_is_arbitrary(options, environ), hosts=hosts)
    return job_gpus.settle(request, per_task="gpus-per-task" in options, counted_nodes=bool(options.get("nodes")))


def _check_memory_of_gpus(request: Request) -> None:
    if request.mem_per_gpu and not (request.gpus or request.gpus_per_node or request.gpus_per_task):
        size = max(0, request.mem_per_gpu)
        note = f"error: Requested mem_per_tres=gres:gpu:{size} but did not request any GPU."
        raise Refused(note, job_gpus.INVALID)


def _node_range(options: Mapping[str, str], named: int) -> tuple[int, int]:
    """The fewest and the most nodes, with so many asked for by name; 0 for as few as will do."""
    if "nodes" not in options:
        return max(1, named), 0
    if not options["nodes"].strip("0"):
        raise Refused(denied="Node count specification invalid")
    wanted = option_values.parse_nodes(options["nodes"])
    least = max(wanted.minimum, named)
    if least > wanted.maximum:
        raise Refused(f"error: invalid number of nodes (-N {least}-{wanted.maximum})")
    return least, wanted.maximum


def _tasks_of_gpus(request: Request, per_gpu: int) -> Request:
    """Tasks from GPUs, with so many for each."""
    if per_gpu and request.gpus and not request.ntasks:
        return request._replace(ntasks=per_gpu * request.gpus)
    if per_gpu and request.gpus_per_node and not request.tasks_per_node:
        return request._replace(tasks_per_node=per_gpu * request.gpus_per_node)
    return request


def _fit_tasks(request: Request, *, arbitrary: bool, hosts: list[str]) -> Request:
    """Tasks from nodes, nodes from tasks: what sbatch does to the numbers before it sends them."""
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
        raise Refused("fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.")
    if options.keys() & {"ntasks-per-gpu", "ntasks-per-tres"}:
        for other in ("gpus-per-task", "gpus-per-socket", "ntasks-per-node"):
            if other in options:
                raise Refused(f"fatal: --{other} is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU")
    if "quiet" in options and "verbose" in options:
        raise Refused("error: don't specify both --verbose (-v) and --quiet (-Q)")


def _hosts(options: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """The nodes asked for by name, in a file or in the option; with repeats, which arbitrary distribution counts."""
    named = options.get("nodefile") or options.get("nodelist") or ""
    if not named and (named := environ.get("SLURM_HOSTFILE", "")) and "/" not in named:
        named = f"./{named}"
    if "nodefile" in options or "/" in named:
        try:
            with open(named) as file:  # noqa: PTH123
                text = ",".join(line.split("#")[0].strip() for line in file)
        except OSError:
            raise Refused("error: Invalid --nodefile node file") from None
        named = ",".join(part for part in text.split(",") if part)
    return _expand(named)


def _expand(text: str) -> list[str]:
    try:
        return nodelist.expand(text)
    except HpcKitError:
        raise Refused(denied=NO_SUCH_NAME) from None


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
