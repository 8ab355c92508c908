"""Finds all processes of a job or a step, also those that left its process tree."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from pocketslurm import processes
from pocketslurm.queue import controller_start
from pocketslurm.queue.state import now
from pocketslurm.settings import STATE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Collection

    from pocketslurm.queue.records import Job, Step
    from pocketslurm.queue.state import StateDirectory


def running_steps(state: StateDirectory, job: Job) -> list[Step]:
    """Return the running steps of all components, without the batch script."""
    steps = (step for part in state.components(job) for step in state.steps(part.job_id))
    return [step for step in steps if step.state == "RUNNING" and step.step_id >= 0]


def job_pids(state: StateDirectory, job: Job) -> list[int]:
    """Return the pids of all processes that the job has started."""
    # Tasks of an srun without a script are not children of this process.
    return _pids([os.getpid()], _daemons(state)) if job.batch else pids_by_environment(state, job)


def pids_by_environment(state: StateDirectory, job: Job, spare: Collection[int] = ()) -> list[int]:
    """Return the pids of a job's processes, found by their environment, and of their descendants without `spare`."""
    # The command of salloc is no task, and continues.
    roots = processes.with_environment(_identifying_variables(state, job), b"" if job.batch else b"SLURM_STEP_ID")
    found = processes.descendants(roots, without={*_daemons(state), *spare}, inclusive=True)
    return [process.pid for process in found]


def outside_steps(state: StateDirectory, job: Job) -> list[int]:
    """Return the pids of the batch shell and its children, without the sruns of running steps and their tasks."""
    if not job.batch:
        return []
    sruns = {processes.pid_of(step.srun) for step in running_steps(state, job) if processes.is_alive(step.srun)}
    return _pids([os.getpid()], _daemons(state) | sruns)


def step_pids(step: Step) -> list[int]:
    """Return the pids of an srun and its tasks."""
    if not processes.is_alive(step.srun):
        return []
    return [process.pid for process in processes.descendants([processes.pid_of(step.srun)], inclusive=True)]


def end_lost_steps(state: StateDirectory, job: Job) -> None:
    """End the processes of steps whose srun was killed, and record the steps as Slurm does."""
    for step in running_steps(state, job):
        if not processes.is_alive(step.srun):
            roots = processes.with_environment(
                {*_identifying_variables(state, job), f"SLURM_STEP_ID={step.step_id}".encode()}
            )
            left = processes.descendants(roots, without=_daemons(state), inclusive=True)
            processes.kill([process.pid for process in left], signal.SIGKILL)
            with state.transaction():
                state.update_step(step, state="CANCELLED", exit_code=signal.SIGKILL, end_time=now())


def _identifying_variables(state: StateDirectory, job: Job) -> set[bytes]:
    """Return the variables that only processes of this job have."""
    return {f"SLURM_JOB_ID={job.job_id}".encode(), f"{STATE_VARIABLE}={state.directory}".encode()}


def _pids(roots: Collection[int], without: Collection[int]) -> list[int]:
    return [process.pid for process in processes.descendants(roots, without=without)]


def _daemons(state: StateDirectory) -> set[int]:
    """Return the pids of the controller and other supervisors: a command inside this job may have started them."""
    names = [job.supervisor for job in state.jobs("state = 'RUNNING' OR completing")]
    names.append(state.meta(controller_start.META) or "")
    return {processes.pid_of(name) for name in names if processes.is_alive(name)} - {os.getpid()}
