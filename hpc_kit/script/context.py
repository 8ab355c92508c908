"""The values that templates see; docs/templates.md lists them."""

from __future__ import annotations

import re
from pathlib import PurePath

from msgspec import structs

from hpc_kit import __version__
from hpc_kit.script.axes import axes, spans
from hpc_kit.script.quoting import pasted
from hpc_kit.slurm.versions import CPUS_NOT_HANDED_ON
from hpc_kit.spec.resolve import Resolved

Directive = tuple[str, str | int | None]
"""Long option and value; None: a flag."""


_THREADS = "OMP_NUM_THREADS"

OF_THE_WHOLE = frozenset({
    "array", "begin", "chdir", "comment", "dependency", "error", "export", "export-file", "hold", "input", "job-name",
    "kill-on-invalid-dep", "mail-type", "mail-user", "no-requeue", "open-mode", "output", "requeue", "signal",
})  # fmt: skip
"""Options of a heterogeneous job that its first component says for all."""


def context(resolved: Resolved, *, template: str, standalone: bool) -> dict[str, object]:
    """All values of a script, ready to be written.

    Args:
        resolved: The job, fitted to its cluster.
        template: The template as the header names it.
        standalone: Whether the nodes do without hpc_kit.
    """
    job, resources = resolved.job, resolved.job.resources
    own_threads = _THREADS in job.env
    return {
        "name": job.name,
        "description": job.description,
        "version": __version__,
        "sources": ", ".join((*resolved.sources, template)),
        "again": pasted(again(resolved, standalone=standalone)),
        "submit": submit(resolved),
        "notes": resolved.notes,
        "directives": directives(resolved),
        "environment": resolved.cluster.environment,
        "setup": job.setup,
        "exports": exports(resolved, standalone=standalone),
        "log_folder": resolved.log_folder,
        "log_folder_is_absolute": PurePath(resolved.cluster.runs).is_absolute(),
        "components": components(resolved, standalone=standalone),
        "array": resources.array is not None,
        "nodes": resolved.nodes,
        "ntasks": resolved.ntasks,
        "ntasks_per_node": resources.ntasks_per_node,
        "nproc_per_node": job.launch.nproc_per_node,
        "cpus_per_task": resources.cpus_per_task,
        "cpus_per_gpu": resources.cpus_per_gpu,
        "cpus_by_slurm": resolved.cpus_by_slurm and (job.launch.launcher != "mpirun" or not own_threads),
        "threads_by_slurm": resolved.cpus_by_slurm and not own_threads,
        "world_size": resolved.world_size,
        "launcher": job.launch.launcher,
        "mpi": job.launch.mpi,
        "task_output": job.launch.output,
        "task_error": job.launch.error,
        "standalone": standalone,
        "layout": job.layout,
        "axes": axes(resolved),
        "nodes_of_a_layer": spans(resolved, "tp", "cp"),
        "nodes_of_a_pipeline": spans(resolved, "pp"),
        "python": resolved.python,
        "command": command(resolved, standalone=standalone),
        "program": program(resolved),
        "cpus_not_handed_on": CPUS_NOT_HANDED_ON.releases,
        # srun replaces patterns in file names: a '%' of the project's folder must come out as itself.
        "run_pattern": "${run//%/%%}",
    }


def again(resolved: Resolved, *, standalone: bool) -> tuple[str, ...]:
    """The command that makes the same script; what follows `--` is the program's own."""
    words = list(resolved.again)
    if standalone and words:
        words.insert(words.index("--") if "--" in words else len(words), "--standalone")
    return tuple(words)


def submit(resolved: Resolved) -> str:
    """The commands that submit the script by hand."""
    name = f"{resolved.job.name}.sbatch"
    sbatch = pasted(("sbatch", f"./{name}" if name.startswith("-") else name))
    folders = log_folders(resolved)
    return f"{pasted(('mkdir', '-p', *folders))} && {sbatch}" if folders else sbatch


def log_folders(resolved: Resolved) -> tuple[str, ...]:
    """Folders that must be there before sbatch runs; one named by the job's id cannot be."""
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


def directives(resolved: Resolved) -> list[Directive]:
    """The #SBATCH options in the man page's order."""
    job, array = resolved.job, resolved.job.resources.array is not None
    given = {"job_name": job.name, "open_mode": "append"} | resolved.job.resources.given()
    given.setdefault("output", pattern(resolved.log_folder) + ("/%A_%a.log" if array else "/%j.log"))
    ordered = [(name, given[name]) for name in job.resources.__struct_fields__ if name in given]
    return [(name.replace("_", "-"), None if value is True else value) for name, value in ordered]


def components(resolved: Resolved, *, standalone: bool) -> list[dict[str, object]]:
    """Of a heterogeneous job each component: its directives, its size, and the words of its tasks."""
    found: list[dict[str, object]] = []
    for part in resolved.parts:
        own = structs.replace(
            resolved, job=structs.replace(resolved.job, resources=part.resources, command=part.command)
        )
        said = [each for each in directives(own) if not found or each[0] not in OF_THE_WHOLE]
        found.append({
            "directives": said,
            "nodes": part.nodes,
            "ntasks": part.ntasks,
            "ntasks_per_node": part.resources.ntasks_per_node,
            "cpus_per_task": part.resources.cpus_per_task,
            "cpus_per_gpu": part.resources.cpus_per_gpu,
            "threads": None if _THREADS in resolved.job.env else structs.replace(
                own, nodes=part.nodes, ntasks=part.ntasks
            ).cpus,
            "command": command(own, standalone=standalone),
        })  # fmt: skip
    return found


def exports(resolved: Resolved, *, standalone: bool) -> list[tuple[str, str]]:
    """Environment variables that the script sets, with the job's own last."""
    launch = resolved.job.launch
    ours: dict[str, object] = {
        "PYTHONUNBUFFERED": 1,
        # Where no name server answers, torch warns in each rank's log that a peer's host name is not known.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    # Each component's tasks have CPUs of their own, and what Slurm gives is known to the job alone.
    if not resolved.parts and not resolved.cpus_by_slurm:
        ours[_THREADS] = max(1, resolved.cpus // launch.nproc_per_node)
    if resolved.told:
        ours["HPC_KIT_LAYOUT"] = resolved.told
    if launch.launcher == "mpirun" and resolved.cluster.slurm == "embedded":
        # Daemons of several virtual nodes share one host, where Open MPI's shared memory takes their ranks for one
        # another's; and in a container the user is root, whom Open MPI refuses.
        ours |= {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
        ours |= {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1}
    if not standalone and launch.backend != "auto":
        ours["HPC_KIT_BACKEND"] = launch.backend
    if not standalone and launch.timeout is not None:
        ours["HPC_KIT_TIMEOUT"] = launch.timeout
    return [(name, str(value)) for name, value in {**ours, **resolved.job.env}.items()]


def pattern(path: str) -> str:
    """A path in which Slurm replaces nothing: `%` starts its patterns."""
    return path.replace("%", "%%")


def command(resolved: Resolved, *, standalone: bool) -> tuple[str, ...]:
    """The words that each task runs; a program that knows nothing of us is started through the runtime."""
    own = resolved.argv
    if not standalone and resolved.job.launch.bootstrap:
        ranks_by = ("--ranks-by", "program") if resolved.job.launch.ranks_by == "program" else ()
        own = (resolved.python, "-m", "hpc_kit.runtime", *ranks_by, *program(resolved))
    return (*container(resolved), *own)


def container(resolved: Resolved) -> tuple[str, ...]:
    """The words that enter Apptainer's container; Pyxis is told by srun."""
    own = resolved.cluster.environment
    if own.apptainer is None:
        return ()
    gpus = () if resolved.cluster.node.gpus == 0 else ("--nv",)
    binds = [word for folder in own.mounts for word in ("--bind", folder)]
    return ("apptainer", "exec", *gpus, *binds, own.apptainer)


def program(resolved: Resolved) -> tuple[str, ...]:
    """The words behind `python -m hpc_kit.runtime`: a file or a -m module, which it runs itself, or a whole command."""
    interpreter, *rest = resolved.argv
    own = interpreter == resolved.python and bool(rest) and (rest[0] == "-m" or not rest[0].startswith("-"))
    return tuple(rest) if own else resolved.argv
