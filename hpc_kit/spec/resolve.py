"""A job fitted to a cluster: every value that a script needs, checked and ready; templates hold no arithmetic."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct, structs

from hpc_kit.slurm import values
from hpc_kit.spec import checks, places, shape
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.files import Loaded
from hpc_kit.spec.job import Job
from hpc_kit.spec.resources import ALTERNATIVES, GPU_COUNTS, Resources

GPU_OPTIONS = (
    "cpus_per_gpu",
    "gpu_bind",
    "gpu_freq",
    "gpus",
    "gpus_per_node",
    "gpus_per_socket",
    "gpus_per_task",
    "mem_per_gpu",
    "ntasks_per_gpu",
)


class Resolved(Struct, frozen=True, kw_only=True):
    """A job on a cluster: complete, consistent, ready to be rendered; `asked` is the job before it met the cluster."""

    job: Job
    asked: Job
    cluster: Cluster
    nodes: int
    ntasks: int
    world_size: int
    python: str
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    again: tuple[str, ...] = ()

    @property
    def uneven(self) -> bool:
        """The nodes hold different numbers of tasks."""
        return self.job.resources.ntasks_per_node is None

    @property
    def cpus(self) -> int:
        """CPUs of one task, as far as they are known; at least 1."""
        resources = self.job.resources
        gpus = shape.gpus_of(resources, self.nodes, self.ntasks) or 0
        return resources.cpus_per_task or max(1, (resources.cpus_per_gpu or 1) * gpus // self.ntasks)

    @property
    def log_folder(self) -> str:
        """Folder of this job's runs; it must exist before sbatch runs."""
        return f"{self.cluster.runs}/{self.job.name}"

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments, with the cluster's interpreter for `python`."""
        first, *rest = self.job.command
        return (self.python if first in {"python", "python3"} else first, *rest)


def resolve(loaded: Loaded, *, root: Path | None = None, again: tuple[str, ...] = ()) -> Resolved:
    """Fit a job to a cluster: fill in defaults, leave out what the cluster lacks, check the rest.

    Args:
        loaded: What the files say.
        root: The user's project; a path to the interpreter is written relative to it.
        again: The command line that makes the same script.

    Raises:
        SpecError: Something cannot be: a time Slurm cannot read, a layout that does not fill the job, a node too small.
    """
    job, cluster, root = loaded.job, loaded.cluster, root or Path.cwd()
    where = checks.Where(loaded.job_origins, loaded.cluster_origins)
    asked = _with_defaults(job.resources, cluster.defaults)
    name = job.name if asked.job_name is None else asked.job_name
    job = structs.replace(job, name=name, resources=asked, env={**cluster.env, **job.env})
    checks.check_words(job, cluster, root, where)
    places.find("templates", job.template, root, suffix=places.TEMPLATE, place=where.of("template"))
    # Counted before GPU options are left out: tasks may be told by them.
    nodes, ntasks = shape.counts(job, cluster.node, where)
    resources, notes = _without_gpus(asked, cluster)
    resources, more = _seen_by_all(_with_counts(resources, nodes, ntasks))
    job = structs.replace(job, resources=resources, setup=(*cluster.setup, *job.setup))
    world_size = nodes * job.launch.nproc_per_node if job.launch.launcher == "torchrun" else ntasks
    shape.check_layout(job, nodes, ntasks, world_size, where)
    shape.check_node(job, cluster, where, nodes)
    return Resolved(
        job=job,
        asked=loaded.job,
        cluster=cluster,
        nodes=nodes,
        ntasks=ntasks,
        world_size=world_size,
        python=cluster.python or interpreter(root),
        notes=(*notes, *more),
        sources=loaded.sources,
        again=again,
    )


def interpreter(root: Path) -> str:
    """This interpreter as a script names it: relative where it lies in the project, else absolute."""
    path = Path(sys.executable)
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _with_defaults(own: Resources, defaults: Resources) -> Resources:
    """What a job says, a plain `false` too, puts a cluster's default aside, and those that it would exclude."""
    given, others = own.given(), defaults.given()
    shut = {name for group in ALTERNATIVES if group & given.keys() for name in group}
    if GPU_COUNTS & given.keys() or shape.gres_gpus(own.gres) is not None:
        shut |= GPU_COUNTS | ({"gres"} if shape.gres_gpus(defaults.gres) is not None else set())
    said = {name for name in own.__struct_fields__ if getattr(own, name) is not None}
    return structs.replace(own, **{name: value for name, value in others.items() if name not in said | shut})


def _without_gpus(resources: Resources, cluster: Cluster) -> tuple[Resources, tuple[str, ...]]:
    """Leave GPU options out where the cluster is known to have none."""
    given = resources.given()
    if cluster.node.gpus != 0:
        return resources, ()
    dropped: dict[str, str | None] = {name: None for name in GPU_OPTIONS if name in given}
    entries = str(given.get("gres", "")).split(",")
    if any(shape.is_gpu(entry) for entry in entries):
        dropped["gres"] = ",".join(entry for entry in entries if not shape.is_gpu(entry)) or None
    notes = tuple(f"left out --{name.replace('_', '-')}={given[name]}: {cluster.name} has no GPU" for name in dropped)
    return structs.replace(resources, **dropped), notes


def _seen_by_all(resources: Resources) -> tuple[Resources, tuple[str, ...]]:
    """Ask for a task's GPUs by node, where that is the same.

    --gpus-per-task hides a node's other GPUs from each rank, which costs NCCL its direct paths; and --gpu-bind=none,
    which should undo that, makes Slurm 22.05 unset CUDA_VISIBLE_DEVICES.
    """
    each, per_node = resources.gpus_per_task, resources.ntasks_per_node
    others = {"gpus", "gpus_per_node", "gpus_per_socket", "gpu_bind", "tres_bind"} & resources.given().keys()
    if each is None or per_node is None or others or shape.gres_gpus(resources.gres) is not None:
        return resources, ()
    counted = [(kind, number * per_node) for kind, number in values.parse_gpus(str(each))]
    text = ",".join(f"{kind}:{number}" if kind else str(number) for kind, number in counted)
    note = f"--gpus-per-task={each} is asked for as --gpus-per-node={text}: every rank sees its node's GPUs"
    return structs.replace(resources, gpus_per_task=None, gpus_per_node=text), (note,)


def _with_counts(resources: Resources, nodes: int, ntasks: int) -> Resources:
    """Say every count: 23.02.0 to 23.02.4 leave SLURM_NTASKS unset where only --ntasks-per-node is given."""
    per_node, cpus = resources.ntasks_per_node, resources.cpus_per_task
    if per_node is None and ntasks % nodes == 0 and resources.ntasks_per_gpu is None:
        per_node = ntasks // nodes
    if cpus is None and resources.cpus_per_gpu is None:
        cpus = 1
    return structs.replace(
        resources, job_name=None, nodes=nodes, ntasks=ntasks, ntasks_per_node=per_node, cpus_per_task=cpus
    )
