"""A job laid over hosts: how many ranks each takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from hpc_kit.check.preflight_program import folder_of
from hpc_kit.errors import SpecError
from hpc_kit.spec.resources import GPU_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpc_kit.spec.job import Job
    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.ssh.hosts import Host


def on_hosts(job: Job, hosts: Sequence[Host]) -> Job:
    """The job with a node for each host and a task for each rank, whatever its file says of nodes.

    Args:
        job: As its file says.
        hosts: All with slots, or none; without any host, the nodes are the job's own.

    Raises:
        SpecError: It is one that only Slurm can start.
    """
    _check(job)
    launch, resources = job.launch, job.resources
    own, cpus = _ranks_each(job, len(hosts)), resources.cpus_per_task
    if launch.starts_agents:
        own, cpus = launch.nproc_per_node, cpus and max(1, cpus // launch.nproc_per_node)
    ranks = [host.slots or own for host in hosts] or [own] * _nodes(job)
    even = len(set(ranks)) == 1
    return structs.replace(
        job,
        launch=structs.replace(launch, launcher="srun", nproc_per_node=1),
        resources=structs.replace(
            resources,
            **dict.fromkeys(GPU_FIELDS),  # nobody hands them out: the ranks of a host share what is there
            nodes=len(ranks),
            ntasks=None if even else sum(ranks),
            ntasks_per_node=ranks[0] if even else None,
            cpus_per_task=cpus,
        ),
    )


def ranks_on(resolved: Resolved, hosts: Sequence[Host]) -> tuple[int, ...]:
    """The ranks on each host; without any, on each node."""
    each = resolved.world_size // resolved.nodes
    return tuple(host.slots or each for host in hosts) or (each,) * resolved.nodes


def _nodes(job: Job) -> int:
    """The nodes that a job asks for."""
    nodes = job.resources.nodes or 1
    if isinstance(nodes, str):
        raise SpecError("how many hosts there are is not told", found=f"nodes = {nodes!r}", remedy="--hosts a,b,c")
    return nodes


def _ranks_each(job: Job, hosts: int) -> int:
    """The ranks of a host that says nothing of them."""
    resources = job.resources
    if resources.ntasks_per_node or not resources.ntasks:
        return resources.ntasks_per_node or 1
    each, rest = divmod(resources.ntasks, hosts or _nodes(job))
    if rest or not each:
        raise SpecError(
            f"{resources.ntasks} ranks do not fill {hosts or _nodes(job)} hosts evenly",
            found=f"ntasks = {resources.ntasks} in job {job.name}",
            remedy="slots for each host: --hosts a:3,b:2",
        )
    return each


def _check(job: Job) -> None:
    if job.component or job.resources.array is not None:
        kind = "an array" if job.resources.array is not None else "a heterogeneous job"
        raise SpecError(f"{kind} is Slurm's own", found=f"job {job.name}", remedy="hpc-kit submit, with a Slurm")
    if job.launch.launcher == "ray":
        raise SpecError("Ray starts its ranks itself", found=f"job {job.name}", remedy="hpc-kit submit, with a Slurm")
    if job.launch.backend == "mpi":
        raise SpecError(
            "backend = 'mpi' needs ranks that mpirun or srun has started",
            found=f"job {job.name}",
            remedy="--set launch.backend=gloo",
        )


def check_cluster(resolved: Resolved) -> None:
    """Refuse what no torchrun agent can do.

    Raises:
        SpecError: The cluster's ranks run in containers.
    """
    if resolved.cluster.environment.is_container:
        raise SpecError(
            "ranks in containers are started by srun",
            found=f"[environment] of cluster {resolved.cluster.name} names an image",
            remedy="--cluster of one without it; or hpc-kit submit",
        )


def interpreter(resolved: Resolved, root: Path) -> str:
    """The Python that runs a host's agent: the job's, or any where the job's environment is yet to be activated."""
    python = resolved.python
    return str(folder_of(resolved, root) / python) if "/" in python else "python3"


def exported(resolved: Resolved, environ: Mapping[str, str]) -> dict[str, str]:
    """What `--export` names, of this environment: it goes to the hosts with the order, and stands in no file.

    Raises:
        SpecError: A variable is not set here.
    """
    found = {}
    for word in filter(None, (resolved.job.resources.export or "").split(",")):
        name, equals, value = word.partition("=")
        if name in {"ALL", "NONE", "NIL"}:
            continue
        if not equals and name not in environ:
            raise SpecError(f"{name} is not set here", found=f"--export={word}", remedy=f"export {name}=... before")
        found[name] = value if equals else environ[name]
    return found
