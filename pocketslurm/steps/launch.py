"""Builds the tasks of a step: programs, variables and GPUs. It starts no process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm import processes
from pocketslurm.pmi.plugins import plugin_variables
from pocketslurm.queue.job_environment import words
from pocketslurm.queue.submission import working_folder
from pocketslurm.settings import STATE_VARIABLE
from pocketslurm.steps.environment import (
    SrunContext,
    component_variables,
    gpu_binding,
    merge_components,
    sort_by_name,
    step_environ,
    task_environ,
    visible_gpus,
)
from pocketslurm.steps.step_creation import merge_step_parts
from pocketslurm.steps.task_process import TaskSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pocketslurm.queue.records import Job, Step
    from pocketslurm.queue.state import StateDirectory
    from pocketslurm.steps.allocation import JobForStep
    from pocketslurm.steps.options import StepOptions
    from pocketslurm.steps.request import StepRequest


_FIRST_PORT = 32768
"""Start of the numbers for SLURM_SRUN_COMM_PORT. Programs only read them: no srun listens there."""


def apply_export(environ: Mapping[str, str], export: str | None) -> dict[str, str]:
    """Return the environment of srun after --export; SLURM_* variables always stay.

    With ALL, a variable of srun keeps its value even if --export assigns another one, as in Slurm.
    """
    if export is None:
        return dict(environ)
    exported: dict[str, str] = {}
    everything = False
    for word in words(export):
        name, equals, value = word.partition("=")
        everything = everything or word.upper() == "ALL"
        if equals:
            exported[name] = value
        elif name in environ:
            exported[name] = environ[name]
    return exported | {name: value for name, value in environ.items() if everything or name.startswith("SLURM")}


def srun_context(
    options: StepOptions, request: StepRequest, job_for_step: JobForStep, environ: Mapping[str, str]
) -> SrunContext:
    """Return the facts about this srun, or about one part of it, for the variables of tasks."""
    shown = {
        name: options.get(name) for name in ("cpus-per-task", "threads-per-core", "dependency") if options.get(name)
    }
    shown |= {name: "" for name in ("overcommit", "label") if options.has(name)}
    if request.tasks_per_node:
        shown["ntasks-per-node"] = str(request.tasks_per_node)
    if request.distribution.plane_size:
        shown["plane"] = str(request.distribution.plane_size)
    return SrunContext(
        distribution=request.shown,
        options=shown,
        job_name=_job_name(options, job_for_step, environ),
        address=_address(job_for_step, environ),
        port=_FIRST_PORT + os.getpid() % 28000,
        allocated=job_for_step.allocated_here,
        umask=processes.current_umask(),
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        cwd=working_folder(),
        host=os.uname().nodename,
        tres_bind=gpu_binding(options),
        preserve=options.has("preserve-env"),
    )


def step_name(options: StepOptions) -> str:
    """Return the step's name: from the command line, else the program's."""
    if "job-name" in options.typed:
        return options.get("job-name")
    return options.command[0].rpartition("/")[2]


def _job_name(options: StepOptions, job_for_step: JobForStep, environ: Mapping[str, str]) -> str | None:
    if "job-name" in options.typed or (job_for_step.job.het_job_id is not None and options.has("job-name")):
        return options.get("job-name")
    if job_for_step.allocated_here:
        return job_for_step.job.name
    return None if "SLURM_JOB_NAME" in environ else step_name(options)


def _address(job_for_step: JobForStep, environ: Mapping[str, str]) -> str:
    """Return the address of this srun: its node, if the name of the node is an address."""
    node = environ.get("SLURMD_NODENAME", "")
    return node if node in job_for_step.job.nodes and node.replace(".", "").isdecimal() else "127.0.0.1"


class PlacedPart(NamedTuple):
    """A part of a step that has its place, before its tasks run."""

    options: StepOptions
    job: Job
    step: Step
    context: SrunContext


def shared_environs(
    state: StateDirectory, parts: Sequence[PlacedPart], environ: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return the variables that the tasks of each part share.

    srun sets the variables of its parts one after another in one environment, and starts the tasks of the first part
    last. Therefore a part sees the variables of earlier parts, and the first part sees those of all.
    """
    jobs = [part.job for part in parts]
    job, step = merge_components(jobs), merge_step_parts([part.step for part in parts])
    if len(parts) > 1:
        # srun lists the nodes of several parts as one sorted host list.
        job, step = sort_by_name(job, "nodes", "cpus"), sort_by_name(step, "nodes", "cpus", "tasks")
    variables = {**environ, **component_variables(job)}
    # 3 is the level `info` of Slurm's logs.
    variables.setdefault("SRUN_DEBUG", str(3 + parts[0].options.verbosity))
    environs = []
    for part in parts:
        variables = step_environ(job, step, part.context, apply_export(variables, part.options.values.get("export")))
        variables = plugin_variables(part.options, variables)
        environs.append({**variables, STATE_VARIABLE: str(state.directory)})
    return [environs[-1], *environs[1:]]


def list_tasks(state: StateDirectory, parts: Sequence[PlacedPart], environ: Mapping[str, str]) -> Iterator[TaskSpec]:
    """Yield all tasks of a step by part and node; numbers continue from part to part."""
    step = merge_step_parts([part.step for part in parts])
    nodes = iter(enumerate(step.tasks))
    for part, shared in zip(parts, shared_environs(state, parts, environ), strict=True):
        bind = gpu_binding(part.options)
        for _ in part.step.nodes:
            node, numbers = next(nodes)
            devices = step.gpus[node] if step.gpus else []
            for local, number in enumerate(numbers):
                variables = task_environ(
                    shared, step, state.settings, (node, local), visible_gpus(devices, bind, local)
                )
                yield TaskSpec(number, node, local, part.options.command, variables)
