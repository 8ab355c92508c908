"""Computes the values that templates see; docs/templates.md lists them."""

from __future__ import annotations

import math
import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from hpc_kit import __version__
from hpc_kit.script.quoting import copyable_words
from hpc_kit.slurm.versions import CPUS_NOT_HANDED_ON
from hpc_kit.spec.job import Axis, Job
from hpc_kit.spec.layout_checks import node_of_rank
from hpc_kit.spec.resolve import Resolved

if TYPE_CHECKING:
    from hpc_kit.script.shell_files import ShellFiles

Directive = tuple[str, str | int | None]
"""Long option and value; None: a flag."""

JOB_OPTIONS = frozenset({
    "array", "begin", "chdir", "comment", "dependency", "error", "export", "export-file", "hold", "input", "job-name",
    "kill-on-invalid-dep", "mail-type", "mail-user", "no-requeue", "open-mode", "output", "requeue", "signal",
})  # fmt: skip
"""Options of the whole job: in a heterogeneous job, only the directives of the first component contain them."""

GROUPS_SHOWN = 4
"""Number of groups of an axis that the script lists; the other groups follow the same pattern."""

AXIS_TITLES: dict[Axis, str] = {
    "pp": "stages of the layers, in a row",
    "dp": "replicas, each with its part of the batch",
    "cp": "parts of each sample",
    "tp": "parts of each matrix",
}

_OMP_THREADS = "OMP_NUM_THREADS"

PREFLIGHT_SECONDS = 150
"""Time limit of the step that measures the nodes. Its processes end some seconds earlier by themselves."""


def template_values(
    resolved: Resolved, *, template: str, standalone: bool, simple: bool = False, shell: ShellFiles
) -> dict[str, object]:
    """Return all values that a template may use."""
    job, resources = resolved.job, resolved.job.resources
    job_sets_threads = _OMP_THREADS in job.env
    return {
        "name": job.name,
        "description": job.description,
        "version": __version__,
        "sources": ", ".join((*resolved.sources, template)),
        "again": copyable_words(resolved.command_line(standalone=standalone, simple=simple)),
        "submit": submit_command(resolved),
        "notes": resolved.notes,
        "directives": directives(resolved, standalone=standalone),
        "environment": resolved.cluster.environment,
        "setup": job.setup,
        "exports": script_exports(resolved, standalone=standalone),
        "log_folder": resolved.log_folder,
        "own_log": resources.output is None,
        "log_folder_is_absolute": PurePath(resolved.cluster.runs).is_absolute(),
        "components": components(resolved, standalone=standalone),
        "array": resources.array is not None,
        "nodes": resolved.nodes,
        "ntasks": resolved.ntasks,
        "ntasks_per_node": resources.ntasks_per_node,
        "nproc_per_node": job.launch.nproc_per_node,
        "agent_options": job.launch.options,
        "cpus_per_task": resources.cpus_per_task,
        "cpus_per_gpu": resources.cpus_per_gpu,
        "cpus_by_slurm": resolved.cpus_by_slurm and (job.launch.launcher != "mpirun" or not job_sets_threads),
        "threads_by_slurm": resolved.cpus_by_slurm and not job_sets_threads,
        "world_size": resolved.world_size,
        "ranks_per_node": resolved.ranks_per_node,
        "nodes_are_fixed": nodes_are_fixed(resolved),
        "layout_ranks": math.prod(inner_degrees(resolved).values()),
        "layout_degrees": " x ".join(f"{name} {degree}" for name, degree in inner_degrees(resolved).items()),
        "launcher": job.launch.launcher,
        "launch_file": f"launchers/{'hetjob' if resolved.components else job.launch.launcher}.j2",
        "mpi": job.launch.mpi,
        "task_output": job.launch.output,
        "task_error": job.launch.error,
        "restart": job.restart,
        "spares": resolved.all_nodes - resolved.nodes,
        "all_nodes": resolved.all_nodes,
        "preflight": job.preflight if job.preflight.enabled else None,
        "preflight_requeues": preflight_requeues(job),
        "preflight_seconds": PREFLIGHT_SECONDS,
        "python_words": (*container_command(resolved), resolved.python),
        "standalone": standalone,
        "simple": simple,
        "layout": job.layout,
        "axes": mesh_axes(resolved),
        "nodes_of_a_layer": nodes_spanned(resolved, "tp", "cp"),
        "nodes_of_a_pipeline": nodes_spanned(resolved, "pp"),
        "python": resolved.python,
        "command": task_command(resolved, standalone=standalone),
        "program": runtime_arguments(resolved),
        "cpus_not_handed_on": CPUS_NOT_HANDED_ON.releases,
        # srun replaces patterns in file names: a '%' in the path of the project must stay as it is.
        "run_pattern": "${HPC_KIT_RUN//%/%%}",
        "shell_folder": "" if standalone or simple else shell.folder,
        "shell_code": shell.code,
    }


# The commands of the header


def submit_command(resolved: Resolved) -> list[str]:
    """Return the words of the commands that submit the script by hand."""
    name = f"{resolved.job.name}.sbatch"
    sbatch = copyable_words(("sbatch", f"./{name}" if name.startswith("-") else name))
    folders = log_folders_to_make(resolved)
    return [*copyable_words(("mkdir", "-p", *folders)), "&&", *sbatch] if folders else sbatch


def log_folders_to_make(resolved: Resolved) -> tuple[str, ...]:
    """Return the log folders to make before sbatch runs. Folders named after the job id are not known yet."""
    job = resolved.job
    given = dict(directives(resolved))
    files = (given["output"], given.get("error"), job.launch.output, job.launch.error)
    parents = [PurePath(str(file)).parent for file in files if file is not None]
    known = {"%%": "%", "%x": job.name}
    parents = [
        PurePath(job.resources.chdir or "", re.sub("%[%x]", lambda match: known[match[0]], str(parent)))
        for parent in parents
        if "%" not in re.sub("%[%x]", "", str(parent))
    ]
    return tuple(dict.fromkeys(str(parent) for parent in parents if str(parent) not in {".", "/dev"}))


def working_folder(resolved: Resolved, root: Path) -> Path:
    """Return the folder that the script runs in; relative names of logs and runs start there."""
    return root.absolute() / (resolved.job.resources.chdir or "")


# Directives and variables


def nodes_are_fixed(resolved: Resolved) -> bool:
    """Return whether the job only works on its number of nodes. Otherwise `sbatch --nodes` may change the number."""
    return bool(resolved.components) or resolved.ranks_per_node is None or resolved.job.layout.dp is not None


def inner_degrees(resolved: Resolved) -> dict[str, int]:
    """Return the degrees above 1 of all axes but dp. Their product divides the number of ranks; dp is the quotient."""
    layout = resolved.job.layout
    degrees = {"pp": layout.pp, "dp_shard": layout.dp_shard or 1, "cp": layout.cp, "tp": layout.tp}
    return {name: degree for name, degree in degrees.items() if degree > 1}


def directives(resolved: Resolved, *, standalone: bool = False) -> list[Directive]:
    """Return the #SBATCH options in the order of the man page.

    A standalone script works on any number of nodes, so it has no number of tasks, which would contradict them.
    """
    job, array = resolved.job, resolved.job.resources.array is not None
    given = {"job_name": job.name, "open_mode": "append"} | resolved.job.resources.given()
    given.setdefault("output", literal_pattern(resolved.log_folder) + ("/%A_%a.log" if array else "/%j.log"))
    if standalone and not nodes_are_fixed(resolved):
        given.pop("ntasks", None)
    if preflight_requeues(job):
        given["requeue"] = True
    if restart := job.restart:
        given |= {"signal": f"B:{restart.signal_name}@{restart.lead_seconds}", "requeue": True}
        if restart.spares and job.resources.ntasks_per_node is not None:
            ntasks = resolved.all_nodes * job.resources.ntasks_per_node
            given |= {"nodes": resolved.all_nodes, "ntasks": ntasks, "no_kill": True}
    ordered = [(name, given[name]) for name in job.resources.__struct_fields__ if name in given]
    return [(name.replace("_", "-"), None if value is True else value) for name, value in ordered]


def components(resolved: Resolved, *, standalone: bool) -> list[dict[str, object]]:
    """Return directives, size and task command of each component of a heterogeneous job."""
    found: list[dict[str, object]] = []
    for part in resolved.components:
        component = structs.replace(
            resolved,
            job=structs.replace(resolved.job, resources=part.resources, command=part.command),
            nodes=part.nodes,
            ntasks=part.ntasks,
        )
        found.append({
            "directives": [each for each in directives(component) if not found or each[0] not in JOB_OPTIONS],
            "nodes": part.nodes,
            "ntasks": part.ntasks,
            "ntasks_per_node": part.resources.ntasks_per_node,
            "cpus_per_task": part.resources.cpus_per_task,
            "cpus_per_gpu": part.resources.cpus_per_gpu,
            "threads": None if _OMP_THREADS in resolved.job.env else component.cpus,
            "command": task_command(component, standalone=standalone),
        })  # fmt: skip
    return found


def script_exports(resolved: Resolved, *, standalone: bool) -> list[tuple[str, str]]:
    """Return the environment variables that the script sets; those of the job come last."""
    launch = resolved.job.launch
    ours: dict[str, object] = {"PYTHONUNBUFFERED": 1}
    if not standalone and not launch.bootstrap and launch.launcher != "torchrun":
        # Without a name server, torch warns in the log of each rank that it cannot resolve the names of its peers.
        # hpc_kit.distributed() reports such a fault itself. `python -m hpc_kit.runtime` sets the variable only for its
        # own process, so that processes that do not meet through hpc_kit keep torch's messages.
        ours["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    # Each component has its own number of CPUs for a task. With cpus_by_slurm only the running job knows the number.
    if not resolved.components and not resolved.cpus_by_slurm:
        ours[_OMP_THREADS] = max(1, resolved.cpus // launch.nproc_per_node)
    if resolved.layout_text:
        ours["HPC_KIT_LAYOUT"] = resolved.layout_text
    if launch.launcher == "mpirun" and resolved.cluster.slurm == "embedded":
        # The virtual nodes share one host, where Open MPI would mix up their ranks in its shared memory. In a container
        # the user is root, and Open MPI refuses root.
        ours |= {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
        ours |= {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1}
    if launch.backend != "auto":
        ours["HPC_KIT_BACKEND"] = launch.backend
    if launch.timeout is not None:
        ours["HPC_KIT_TIMEOUT"] = launch.timeout
    watchdog = resolved.job.watchdog
    if watchdog.action != "report":
        ours["HPC_KIT_WATCHDOG"] = watchdog.action
    if watchdog.timeout is not None:
        ours["HPC_KIT_WATCHDOG_TIMEOUT"] = watchdog.timeout
    return [(name, str(value)) for name, value in {**ours, **resolved.job.env}.items()]


def preflight_requeues(job: Job) -> int:
    """Return how often preflight may requeue the job on other nodes: never with --no-requeue or a list of nodes."""
    resources = job.resources
    is_impossible = resources.no_requeue or resources.nodelist is not None or resources.nodefile is not None
    return 0 if is_impossible or not job.preflight.enabled else job.preflight.requeues


def literal_pattern(path: str) -> str:
    """Return Slurm's file name pattern for exactly this path."""
    return path.replace("%", "%%")


# The program


def task_command(resolved: Resolved, *, standalone: bool) -> tuple[str, ...]:
    """Return the words that each task runs. With `bootstrap`, `python -m hpc_kit.runtime` starts the program."""
    words = resolved.argv
    if not standalone and resolved.job.launch.bootstrap:
        # -P: otherwise a file of the project, such as types.py, would replace a module of Python.
        words = (resolved.python, "-P", "-m", "hpc_kit.runtime", *runtime_arguments(resolved))
    return (*container_command(resolved), *words)


def container_command(resolved: Resolved) -> tuple[str, ...]:
    """Return the words that enter a container of Apptainer. A container of Pyxis needs options of srun instead."""
    environment = resolved.cluster.environment
    if environment.apptainer is None:
        return ()
    gpus = () if resolved.cluster.node.gpus == 0 else ("--nv",)
    binds = [word for folder in environment.mounts for word in ("--bind", folder)]
    return ("apptainer", "exec", *gpus, *binds, environment.apptainer)


def runtime_arguments(resolved: Resolved) -> tuple[str, ...]:
    """Return the words behind `python -m hpc_kit.runtime`: a Python file or `-m MODULE`, or any other command.

    A file without the suffix .py keeps its interpreter: without it, the file would be taken for a command.
    """
    interpreter, *rest = resolved.argv
    is_python = interpreter == resolved.python and (rest[:1] == ["-m"] or "".join(rest[:1]).endswith(".py"))
    return tuple(rest) if is_python else resolved.argv


# The mesh of ranks


class MeshAxis(NamedTuple):
    """One axis of the mesh.

    Attributes:
        name: `pp`, `dp`, `cp` or `tp`.
        degree: The number of ranks along the axis.
        what: The meaning of a coordinate.
        groups: The ranks that work together: `ranks 0-1 | 2-3, each on one node`.
    """

    name: str
    degree: int
    what: str
    groups: str


def mesh_axes(resolved: Resolved) -> list[MeshAxis]:
    """Return the axes with more than one rank, the slowest first; if there is none, dp."""
    layout, size = resolved.job.layout, resolved.world_size
    degrees = layout.degrees(size)
    named = [axis for axis, degree in degrees.items() if degree > 1] or ["dp"]
    return [
        MeshAxis(axis, degrees[axis], _axis_title(resolved, axis), _describe_groups(resolved, axis)) for axis in named
    ]


def nodes_spanned(resolved: Resolved, *names: Axis) -> int | None:
    """Return the largest number of nodes of a group of these axes; 0 without such groups, None if unknown."""
    layout, size = resolved.job.layout, resolved.world_size
    degrees = layout.degrees(size)
    numbers = [_nodes_of_groups(resolved, layout.groups(name, size)) for name in names if degrees[name] > 1]
    known = [number for number in numbers if number is not None]
    return max(known, default=0) if len(known) == len(numbers) else None


def _axis_title(resolved: Resolved, axis: Axis) -> str:
    layout = resolved.job.layout
    if axis != "dp" or not layout.zero:
        return AXIS_TITLES[axis]
    shards = layout.dp_shard or layout.replicas(resolved.world_size)
    kept = {1: "optimizer state", 2: "gradients and optimizer state", 3: "parameters, gradients and optimizer state"}
    return f"each with its part of the batch; every {shards} share {kept[layout.zero]}"


def _describe_groups(resolved: Resolved, axis: Axis) -> str:
    groups = resolved.job.layout.groups(axis, resolved.world_size)
    text = " | ".join(_list_ranks(group) for group in groups[:GROUPS_SHOWN])
    more = f" | ... ({len(groups)} groups)" if len(groups) > GROUPS_SHOWN else ""
    spanned = _nodes_of_groups(resolved, groups)
    if spanned is None or resolved.nodes == 1:
        place = ""
    else:
        place = ", each on one node" if spanned == 1 else f", across {spanned} nodes"
    return f"ranks {text}{more}{place}"


def _list_ranks(group: range) -> str:
    if len(group) == 1:
        return str(group[0])
    if group.step == 1:
        return f"{group[0]}-{group[-1]}"
    listed = [str(rank) for rank in group]
    return ",".join(listed if len(listed) <= 4 else [*listed[:2], "...", listed[-1]])


def _nodes_of_groups(resolved: Resolved, groups: list[range]) -> int | None:
    """Return the largest number of nodes of one group; None if unknown."""
    per_node = resolved.ranks_per_node
    node = node_of_rank(resolved.job, resolved.nodes, per_node) if per_node else None
    return None if node is None else max(len({node(rank) for rank in group}) for group in groups)
