"""Assigns the ranks of a job to hosts, and renders the shell script of each host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from hpc_kit.errors import SpecError
from hpc_kit.script.context import template_values, working_folder
from hpc_kit.script.render import fill_template
from hpc_kit.script.shell_files import read_shell_files
from hpc_kit.spec import search_path
from hpc_kit.spec.resources import GPU_FIELDS

if TYPE_CHECKING:
    from pathlib import Path

    from hpc_kit.spec.job import Job
    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.ssh.hosts import LaunchHost


def place_job(job: Job, hosts: Sequence[LaunchHost]) -> Job:
    """Return the job with one node for each host and one task for each rank. The nodes of the job file do not count.

    Raises:
        SpecError: Only Slurm can start this job.
    """
    _refuse_what_needs_slurm(job)
    launch, resources = job.launch, job.resources
    default, cpus = _ranks_per_host(job, len(hosts)), resources.cpus_per_task
    if launch.starts_agents:
        default, cpus = launch.nproc_per_node, cpus and max(1, cpus // launch.nproc_per_node)
    ranks = [host.slots or default for host in hosts] or [default] * _fixed_node_count(job)
    even = len(set(ranks)) == 1
    return structs.replace(
        job,
        launch=structs.replace(launch, launcher="srun", nproc_per_node=1),
        resources=structs.replace(
            resources,
            **dict.fromkeys(GPU_FIELDS),  # No scheduler assigns GPUs: the ranks of a host share its GPUs.
            nodes=len(ranks),
            ntasks=None if even else sum(ranks),
            ntasks_per_node=ranks[0] if even else None,
            cpus_per_task=cpus,
        ),
    )


def count_ranks(resolved: Resolved, hosts: Sequence[LaunchHost]) -> tuple[int, ...]:
    """Return the number of ranks of each host or, without hosts, of each node."""
    default = resolved.world_size // resolved.nodes
    return tuple(host.slots or default for host in hosts) or (default,) * resolved.nodes


def _fixed_node_count(job: Job) -> int:
    nodes = job.resources.nodes or 1
    if isinstance(nodes, str):
        raise SpecError("the number of hosts is not fixed", found=f"nodes = {nodes!r}", remedy="add --hosts a,b,c")
    return nodes


def _ranks_per_host(job: Job, hosts: int) -> int:
    """Return the ranks of a host without slots."""
    resources = job.resources
    if resources.ntasks_per_node or not resources.ntasks:
        return resources.ntasks_per_node or 1
    ranks, rest = divmod(resources.ntasks, hosts or _fixed_node_count(job))
    if rest or not ranks:
        raise SpecError(
            f"{resources.ntasks} ranks do not fill {hosts or _fixed_node_count(job)} hosts evenly",
            found=f"ntasks = {resources.ntasks} in job {job.name}",
            remedy="give the number of ranks of each host: --hosts a:3,b:2",
        )
    return ranks


def _refuse_what_needs_slurm(job: Job) -> None:
    submit = "use hpc-kit submit on a cluster"
    mpi = "backend = 'mpi' needs ranks that mpirun or srun has started"
    options = f"torchrun has options of its own: {' '.join(job.launch.options)}"
    for is_refused, what, remedy in (
        (job.resources.array is not None, "only Slurm can run an array", submit),
        (bool(job.component), "only Slurm can run a heterogeneous job", submit),
        (job.launch.launcher == "ray", "Ray starts its ranks itself", submit),
        (bool(job.launch.options), options, f"remove them, or {submit}"),
        (job.launch.backend == "mpi", mpi, "add --set launch.backend=gloo"),
    ):
        if is_refused:
            raise SpecError(what, found=f"job {job.name}", remedy=remedy)


def check_cluster(resolved: Resolved) -> None:
    """Check that torchrun can start the ranks of this cluster.

    Raises:
        SpecError: The ranks run in containers.
    """
    if resolved.cluster.environment.is_container:
        raise SpecError(
            "only srun can start ranks in containers",
            found=f"[environment] of cluster {resolved.cluster.name} names an image",
            remedy="name a cluster without an image by --cluster, or use hpc-kit submit",
        )


def agent_python(resolved: Resolved, root: Path) -> str:
    """Return the interpreter for the agent: the job's, or any python3 if the job's is found only after its `setup`."""
    python = resolved.python
    return str(working_folder(resolved, root) / python) if "/" in python else "python3"


def exported_variables(resolved: Resolved, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `--export` names. They go to the hosts with the order to start, and into no file.

    Raises:
        SpecError: A variable is not set here.
    """
    variables = {}
    for word in filter(None, (resolved.job.resources.export or "").split(",")):
        name, equals, value = word.partition("=")
        if name in {"ALL", "NONE", "NIL"}:
            continue
        if not equals and name not in environ:
            raise SpecError(f"{name} is not set here", found=f"--export={word}", remedy=f"export {name}=... before")
        variables[name] = value if equals else environ[name]
    return variables


def render_host_scripts(resolved: Resolved, ranks: Sequence[int], root: Path) -> tuple[str, ...]:
    """Return the script of each host. The agent passes it to bash on stdin."""
    scripts = {
        count: _fill_host_script("agent", resolved, root, standalone=False, uneven=False, ranks=count)
        for count in set(ranks)
    }
    return tuple(scripts[count] for count in ranks)


def render_shell_script(
    resolved: Resolved, *, hosts: Sequence[str] = (), ranks: Sequence[int], root: Path, standalone: bool = False
) -> str:
    """Return the launch as a plain shell script. It runs a job of one node on the machine where it is started.

    Without names of hosts, these become arguments of the script. `ranks` are the numbers of ranks of the nodes.
    """
    uneven = len(set(ranks)) > 1
    return _fill_host_script(
        "launch",
        resolved,
        root,
        standalone=standalone,
        hosts=hosts,
        host_arguments=" HOST" * resolved.nodes if resolved.nodes > 1 and not hosts else "",
        uneven=uneven,
        ranks=ranks[0],
        ranks_on=ranks,
    )


def _fill_host_script(template: str, resolved: Resolved, root: Path, *, standalone: bool, **values: object) -> str:
    path = search_path.find_file("templates", template, root, suffix=".sh.j2")
    shell, shown = read_shell_files(resolved, root), search_path.display_path(path, root)
    common = template_values(resolved, template=shown, standalone=standalone, shell=shell)
    common |= {"restart": None, "folder": working_folder(resolved, root)}  # without a scheduler, nothing is requeued
    return fill_template(path, {**common, **values}, root)
