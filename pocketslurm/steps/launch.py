"""What the tasks of a step are started with: their programs, variables and GPUs; no process is touched here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.pmi.plugins import of_plugin
from pocketslurm.queue.job_environment import words
from pocketslurm.queue.submission import working_folder
from pocketslurm.settings import STATE_VARIABLE
from pocketslurm.steps.environment import Launch, by_name, of_allocation, of_components, step_environ, task_environ
from pocketslurm.steps.environment import joined as joined_jobs
from pocketslurm.steps.gpus import binding, visible
from pocketslurm.steps.step_creation import joined
from pocketslurm.steps.task_process import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pocketslurm.queue.records import Step
    from pocketslurm.queue.state import State
    from pocketslurm.steps.allocation import Home
    from pocketslurm.steps.options import Asked
    from pocketslurm.steps.request import StepRequest

_FIRST_PORT = 32768
_LISTED = ("map_cpu:", "mask_cpu:", "map_ldom:", "mask_ldom:")


def exported(environ: Mapping[str, str], export: str | None) -> dict[str, str]:
    """The environment of srun as --export lets it through; SLURM's own variables always pass.

    A variable that srun has stays as it is under ALL, whatever value stands behind it there: as with Slurm.
    """
    if export is None:
        return dict(environ)
    found: dict[str, str] = {}
    everything = False
    for word in words(export):
        name, equals, value = word.partition("=")
        everything = everything or word.upper() == "ALL"
        if equals:
            found[name] = value
        elif name in environ:
            found[name] = environ[name]
    return found | {name: value for name, value in environ.items() if everything or name.startswith("SLURM")}


def step_launch(
    asked: Asked, request: StepRequest, home: Home, environ: Mapping[str, str], *, several: bool = False
) -> Launch:
    """What the step's variables tell of this srun, or of one part of `several`."""
    shown = {name: asked.get(name) for name in ("cpus-per-task", "threads-per-core", "dependency") if asked.get(name)}
    shown |= {name: "" for name in ("overcommit", "label") if asked.has(name)}
    if request.tasks_per_node:
        shown["ntasks-per-node"] = str(request.tasks_per_node)
    if request.distribution.plane_size:
        shown["plane"] = str(request.distribution.plane_size)
    umask = os.umask(0o022)
    os.umask(umask)
    return Launch(
        distribution=request.shown,
        options=shown,
        job_name=_job_name(asked, home, environ),
        address=_address(home, environ),
        port=_FIRST_PORT + os.getpid() % 28000,
        allocated=home.own,
        umask=umask,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        cwd=working_folder(),
        host=os.uname().nodename,
        bind=_binding(asked),
        tres_bind=binding(asked),
        preserve=asked.has("preserve-env"),
        several=several and home.job.het_job_id is None,
    )


def step_name(asked: Asked) -> str:
    """The step's name: of the command line, else the program's."""
    if "job-name" in asked.typed:
        return asked.get("job-name")
    return asked.command[0].rpartition("/")[2]


def _job_name(asked: Asked, home: Home, environ: Mapping[str, str]) -> str | None:
    if "job-name" in asked.typed or (home.job.het_job_id is not None and asked.has("job-name")):
        return asked.get("job-name")
    if home.own:
        return home.job.name
    return None if "SLURM_JOB_NAME" in environ else step_name(asked)


def _address(home: Home, environ: Mapping[str, str]) -> str:
    """Where this srun runs: its node, if that is named by an address."""
    node = environ.get("SLURMD_NODENAME", "")
    return node if node in home.job.nodes and node.replace(".", "").isdecimal() else "127.0.0.1"


def _binding(asked: Asked) -> tuple[str, str, str] | None:
    """--cpu-bind in its three parts; some other options imply one."""
    text = asked.get("cpu-bind")
    if not text:
        threads = asked.has("threads-per-core") or asked.get("hint") == "nomultithread"
        return ("quiet", "threads", "") if threads else None
    parts = text.split(",")
    loud = [word for word in parts if word in {"v", "verbose"}]
    rest = ",".join(word for word in parts if word not in {"v", "verbose", "q", "quiet"})
    listed = next((kind for kind in _LISTED if rest.startswith(kind)), "")
    return (
        "verbose" if loud else "quiet",
        listed or rest.replace("no", "none") if rest == "no" else listed or rest,
        (rest[len(listed) :] if listed else ""),
    )


class Start(NamedTuple):
    """A part of a step that has its place, before its tasks run; `commands` has one for each task, or one for all."""

    asked: Asked
    home: Home
    step: Step
    launch: Launch
    commands: Sequence[tuple[str, ...]]


def shared_environs(state: State, parts: Sequence[Start], environ: Mapping[str, str]) -> list[dict[str, str]]:
    """What the tasks of each part share.

    srun sets the variables of its parts one after the other in one environment of its own, and starts the first part's
    tasks last: a part knows what those before it have set, the first one what all have.
    """
    jobs = [part.home.job for part in parts]
    job, step = joined_jobs(jobs), joined([part.step for part in parts])
    if len(parts) > 1:
        job, step = by_name(job, "nodes", "cpus"), by_name(step, "nodes", "cpus", "tasks")
    own = {**environ, **of_components(job)}
    if parts[0].launch.allocated:
        own |= of_allocation(jobs)
    own.setdefault("SRUN_DEBUG", str(3 + parts[0].asked.verbosity))
    found = []
    for part in parts:
        own = step_environ(job, step, part.launch, exported(own, part.asked.values.get("export")))
        own = of_plugin(part.asked, own)
        found.append({**own, STATE_VARIABLE: str(state.directory)})
    return [found[-1], *found[1:]]


def tasks(state: State, parts: Sequence[Start], environ: Mapping[str, str]) -> Iterator[Task]:
    """Every task of a step, part by part and node by node; numbers and nodes count on from part to part."""
    step = joined([part.step for part in parts])
    nodes = iter(enumerate(step.tasks))
    for part, shared in zip(parts, shared_environs(state, parts, environ), strict=True):
        bind = binding(part.asked)
        for _ in part.step.nodes:
            node, numbers = next(nodes)
            devices = step.gpus[node] if step.gpus else []
            for local, number in enumerate(numbers):
                found = task_environ(shared, step, state.settings, (node, local), visible(devices, bind, local))
                yield Task(number, node, local, part.commands[number % len(part.commands)], found)
