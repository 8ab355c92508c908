"""A job fitted to a cluster: every value that a script needs, checked and ready; templates hold no arithmetic."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct, structs

from hpc_kit.spec import checks
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.files import Loaded
from hpc_kit.spec.job import Job
from hpc_kit.spec.resources import ALTERNATIVES, Resources

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
    job, cluster = loaded.job, loaded.cluster
    where = checks.Where(loaded.job_origins, loaded.cluster_origins)
    resources = _with_defaults(job.resources, cluster.defaults)
    resources, notes = _without_gpus(resources, cluster)
    job = structs.replace(job, resources=resources, env={**cluster.env, **job.env}, setup=(*cluster.setup, *job.setup))
    checks.check_names(job, cluster, where)
    checks.check_options(resources, where)
    nodes, ntasks = checks.counts(job, where)
    job = structs.replace(job, resources=_with_counts(job.resources, nodes, ntasks))
    world_size = nodes * job.launch.nproc_per_node if job.launch.launcher == "torchrun" else ntasks
    checks.check_layout(job, nodes, world_size, where)
    checks.check_node(job, cluster, where)
    return Resolved(
        job=job,
        asked=loaded.job,
        cluster=cluster,
        nodes=nodes,
        ntasks=ntasks,
        world_size=world_size,
        python=cluster.python or interpreter(root or Path.cwd()),
        notes=notes,
        sources=loaded.sources,
        again=again,
    )


def interpreter(root: Path) -> str:
    """This interpreter as a script names it: relative where it lies in the project, else absolute."""
    path = Path(sys.executable)
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _with_defaults(own: Resources, defaults: Resources) -> Resources:
    given = own.given()
    shut = {name for group in ALTERNATIVES if group & given.keys() for name in group}
    taken = {name: value for name, value in defaults.given().items() if name not in given and name not in shut}
    return structs.replace(own, **taken)


def _without_gpus(resources: Resources, cluster: Cluster) -> tuple[Resources, tuple[str, ...]]:
    """Leave GPU options out where the cluster is known to have none; else let every rank see its node's GPUs."""
    given = resources.given()
    if cluster.node.gpus != 0:
        bound = {"gpu_bind", "tres_bind"} & given.keys()
        # Alone, --gpus-per-task hides a node's other GPUs from each rank, which costs NCCL its direct paths.
        return (
            structs.replace(resources, gpu_bind="none") if "gpus_per_task" in given and not bound else resources
        ), ()
    dropped: dict[str, None] = {name: None for name in GPU_OPTIONS if name in given}
    if str(given.get("gres", "")).split(":")[0] == "gpu":
        dropped["gres"] = None
    notes = tuple(f"--{name.replace('_', '-')}={given[name]}: {cluster.name} has no GPU" for name in dropped)
    return structs.replace(resources, **dropped), notes


def _with_counts(resources: Resources, nodes: int, ntasks: int) -> Resources:
    """Say every count: 23.02.0 to 23.02.4 leave SLURM_NTASKS unset where only --ntasks-per-node is given."""
    per_node = resources.ntasks_per_node
    if per_node is None and ntasks % nodes == 0:
        per_node = ntasks // nodes
    return structs.replace(
        resources, nodes=nodes, ntasks=ntasks, ntasks_per_node=per_node, cpus_per_task=resources.cpus_per_task or 1
    )
