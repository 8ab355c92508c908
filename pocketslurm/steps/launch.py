"""Builds the tasks of a step: programs, variables and GPUs. It starts no process."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.errors import CommandError
from pocketslurm.pmi.plugins import plugin_variables
from pocketslurm.queue.job_environment import words
from pocketslurm.queue.submission import working_folder
from pocketslurm.settings import STATE_VARIABLE
from pocketslurm.steps.environment import (
    SrunContext,
    allocation_variables,
    component_variables,
    gpu_binding,
    sort_by_name,
    step_environ,
    task_environ,
    visible_gpus,
)
from pocketslurm.steps.environment import merge_components as joined_jobs
from pocketslurm.steps.step_creation import merge_step_parts
from pocketslurm.steps.task_process import TaskSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pocketslurm.queue.records import Step
    from pocketslurm.queue.state import StateDirectory
    from pocketslurm.steps.allocation import JobForStep
    from pocketslurm.steps.options import StepOptions
    from pocketslurm.steps.request import StepRequest


_FIRST_PORT = 32768
_LISTED = ("map_cpu:", "mask_cpu:", "map_ldom:", "mask_ldom:")


def exported_environ(environ: Mapping[str, str], export: str | None) -> dict[str, str]:
    """Return the environment of srun after --export; SLURM_* variables always stay.

    With ALL, a variable of srun keeps its value even if --export assigns another one, as in Slurm.
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


def srun_context(
    asked: StepOptions, request: StepRequest, home: JobForStep, environ: Mapping[str, str], *, several: bool = False
) -> SrunContext:
    """Return the facts about this srun, or about one part of `several`, for the variables of tasks."""
    shown = {name: asked.get(name) for name in ("cpus-per-task", "threads-per-core", "dependency") if asked.get(name)}
    shown |= {name: "" for name in ("overcommit", "label") if asked.has(name)}
    if request.tasks_per_node:
        shown["ntasks-per-node"] = str(request.tasks_per_node)
    if request.distribution.plane_size:
        shown["plane"] = str(request.distribution.plane_size)
    umask = os.umask(0o022)
    os.umask(umask)
    return SrunContext(
        distribution=request.shown,
        options=shown,
        job_name=_job_name(asked, home, environ),
        address=_address(home, environ),
        port=_FIRST_PORT + os.getpid() % 28000,
        allocated=home.allocated_here,
        umask=umask,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        cwd=working_folder(),
        host=os.uname().nodename,
        bind=_binding(asked),
        tres_bind=gpu_binding(asked),
        preserve=asked.has("preserve-env"),
        several=several and home.job.het_job_id is None,
    )


def step_name(asked: StepOptions) -> str:
    """Return the step's name: from the command line, else the program's."""
    if "job-name" in asked.typed:
        return asked.get("job-name")
    return asked.command[0].rpartition("/")[2]


def _job_name(asked: StepOptions, home: JobForStep, environ: Mapping[str, str]) -> str | None:
    if "job-name" in asked.typed or (home.job.het_job_id is not None and asked.has("job-name")):
        return asked.get("job-name")
    if home.allocated_here:
        return home.job.name
    return None if "SLURM_JOB_NAME" in environ else step_name(asked)


def _address(home: JobForStep, environ: Mapping[str, str]) -> str:
    """Return the address of this srun: its node, if the name of the node is an address."""
    node = environ.get("SLURMD_NODENAME", "")
    return node if node in home.job.nodes and node.replace(".", "").isdecimal() else "127.0.0.1"


def _binding(asked: StepOptions) -> tuple[str, str, str] | None:
    """Return the three parts of --cpu-bind; some other options imply one."""
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


class PlacedPart(NamedTuple):
    """A part of a step that has its place, before its tasks run; `commands` has one for each task, or one for all."""

    asked: StepOptions
    home: JobForStep
    step: Step
    launch: SrunContext
    commands: Sequence[tuple[str, ...]]


def shared_environs(
    state: StateDirectory, parts: Sequence[PlacedPart], environ: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return the variables that the tasks of each part share.

    srun sets the variables of its parts one after the other in one environment, and starts the tasks of the first part
    last. Therefore a part sees the variables of earlier parts, and the first part sees those of all.
    """
    jobs = [part.home.job for part in parts]
    job, step = joined_jobs(jobs), merge_step_parts([part.step for part in parts])
    if len(parts) > 1:
        job, step = sort_by_name(job, "nodes", "cpus"), sort_by_name(step, "nodes", "cpus", "tasks")
    own = {**environ, **component_variables(job)}
    if parts[0].launch.allocated:
        own |= allocation_variables(jobs)
    own.setdefault("SRUN_DEBUG", str(3 + parts[0].asked.verbosity))
    found = []
    for part in parts:
        own = step_environ(job, step, part.launch, exported_environ(own, part.asked.values.get("export")))
        own = plugin_variables(part.asked, own)
        found.append({**own, STATE_VARIABLE: str(state.directory)})
    return [found[-1], *found[1:]]


def list_tasks(state: StateDirectory, parts: Sequence[PlacedPart], environ: Mapping[str, str]) -> Iterator[TaskSpec]:
    """Yield all tasks of a step by part and node; numbers continue from part to part."""
    step = merge_step_parts([part.step for part in parts])
    nodes = iter(enumerate(step.tasks))
    for part, shared in zip(parts, shared_environs(state, parts, environ), strict=True):
        bind = gpu_binding(part.asked)
        for _ in part.step.nodes:
            node, numbers = next(nodes)
            devices = step.gpus[node] if step.gpus else []
            for local, number in enumerate(numbers):
                found = task_environ(shared, step, state.settings, (node, local), visible_gpus(devices, bind, local))
                yield TaskSpec(number, node, local, part.commands[number % len(part.commands)], found)


def read_multi_prog(path: str, ntasks: int | None) -> list[tuple[str, ...]]:
    """Return the command of each task; without a task count, the file gives it.

    Raises:
        CommandError: The file is missing, malformed, or leaves a task without a command.
    """
    try:
        with open(path) as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        raise CommandError(f"error: Could not open multi_prog config file {path}") from None
    commands: dict[int, tuple[str, ...]] = {}
    count = ntasks or 1
    lines = text.replace("\\\n", "  ").splitlines()
    for number, line in enumerate(lines, start=1):
        words = shlex.split(line, comments=False) if line.strip() and not line.lstrip().startswith("#") else []
        if not words:
            continue
        try:
            tasks = _tasks(words, count, commands, fixed=ntasks is not None)
        except CommandError as refused:
            raise CommandError(*refused.lines, f"error: Line {number} of configuration file {path} invalid") from None
        count = max([count, *(task + 1 for task in tasks)])
        for offset, task in enumerate(tasks):
            commands.setdefault(task, _filled(words[1:], task, offset))
    missing = [task for task in range(count) if task not in commands]
    if missing:
        raise CommandError(f"error: Configuration file {path} invalid, no record for task id {missing[0]}")
    return [commands[task] for task in range(count)]


def _tasks(words: list[str], count: int, taken: dict[int, tuple[str, ...]], *, fixed: bool) -> list[int]:
    """Return the tasks of one line."""
    if len(words) < 2:
        raise CommandError
    if words[0] == "*":
        return list(range(count))
    found: list[int] = []
    for item in words[0].split(","):
        low, dash, high = item.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise CommandError(f"error: Invalid task range specification ({item})")
        first, last = int(low), int(high or low)
        if first > last:
            raise CommandError(f"error: Invalid task range, {first}-{last}")
        if fixed and last >= count:
            raise CommandError(f"error: Invalid task id, {last} >= ntasks")
        found += range(first, last + 1)
    twice = [task for task in found if task in taken]
    if twice:
        raise CommandError(f"error: Duplicate record for task {twice[0]}")
    return found


def _filled(words: list[str], task: int, offset: int) -> tuple[str, ...]:
    """`%t` is the task's number, `%o` its place among the tasks of its line."""
    program, *arguments = words
    return (program, *(word.replace("%t", str(task)).replace("%o", str(offset)) for word in arguments))
