"""The command srun: reads the command line, and runs a step."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from hpc_kit.slurm.getopt import SRUN
from hpc_kit.slurm.units import parse_time
from pocketslurm import processes
from pocketslurm.errors import CommandError
from pocketslurm.exit_status import srun_exit_code
from pocketslurm.log_paths import PatternValues
from pocketslurm.option_support import SRUN_SUPPORT, print_help
from pocketslurm.pmi import plugins
from pocketslurm.queue import job_size
from pocketslurm.queue.records import Step
from pocketslurm.queue.state import StateDirectory, now
from pocketslurm.queue.submission import working_folder
from pocketslurm.settings import load_settings
from pocketslurm.steps import allocation, launch, step_creation
from pocketslurm.steps.environment import check_types
from pocketslurm.steps.messages import SrunMessages
from pocketslurm.steps.options import assign_groups, read_parts
from pocketslurm.steps.request import step_request
from pocketslurm.steps.running_step import RunningStep, record_end
from pocketslurm.steps.task_io import StepStreams
from pocketslurm.steps.task_process import start_task
from pocketslurm.steps.terminal import open_terminal
from pocketslurm.steps.termination import StepPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pocketslurm.pmi.server import PmiServer
    from pocketslurm.steps.allocation import JobForStep
    from pocketslurm.steps.options import StepPart
    from pocketslurm.steps.request import StepRequest

KILL_WAIT_SECONDS = 3.0
"""The longest that --kill-on-bad-exit waits between SIGTERM and SIGKILL: a broken step should not keep its nodes."""


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    try:
        return _srun(argv, environ)
    except CommandError as refusal:
        if refusal.status == 1:
            at_once = isinstance(refusal, allocation.Busy)
            refusal.status = _error_status(environ.get("SLURM_EXIT_IMMEDIATE" if at_once else "SLURM_EXIT_ERROR", ""))
        raise
    except allocation.Interrupted:
        return _error_status(environ.get("SLURM_EXIT_ERROR", ""))


def _error_status(value: str) -> int:
    """Return the exit status for errors of srun itself, from SLURM_EXIT_ERROR and its relatives."""
    return int(value) if value.isdecimal() and int(value) else 1


def _srun(argv: list[str], environ: Mapping[str, str]) -> int:
    settings = load_settings(environ)
    command_parts = read_parts(argv, environ, strict=settings.strict)
    options = plugins.with_default(command_parts[0].options, settings.mpi_default)
    if print_help(options.values, "srun [OPTIONS...] executable [args...]", SRUN_SUPPORT, SRUN):
        return 0
    if options.get("mpi") == "list":
        print(plugins.LISTED)
        return 0
    plugins.check_plugin(options.get("mpi"), strict=settings.strict)
    messages = SrunMessages(options.verbosity)
    state = StateDirectory.open(environ)
    assigned = assign_groups(command_parts, environ, allocation.size(state, options), strict=settings.strict)
    parts = [part._replace(options=plugins.with_default(part.options, settings.mpi_default)) for part in assigned]
    if not parts[0].options.command:
        raise CommandError("fatal: No command given to execute.")
    jobs = allocation.find_or_allocate(state, parts, environ, messages)
    try:
        return _Srun(state, parts, jobs, environ, messages).run(" ".join(["srun", *argv]))
    except BaseException:
        if jobs[0].allocated_here:
            allocation.release(state, jobs[0].job.leader_id, 1 << 8)  # exit code 1, as a wait status
        raise


class _Srun:
    """One step of a job, or of several components of a heterogeneous job; its first part has srun's own options."""

    def __init__(
        self,
        state: StateDirectory,
        parts: Sequence[StepPart],
        jobs: Sequence[JobForStep],
        environ: Mapping[str, str],
        messages: SrunMessages,
    ) -> None:
        self.state = state
        self.parts = [part.options for part in parts]
        if not state.settings.strict:
            self.parts = [options._replace(values=job_size.portable_options(options.values)) for options in self.parts]
        self.options = self.parts[0]
        self.environ = environ
        self.messages = messages
        self.jobs = jobs
        self.folder = os.path.join(working_folder(), self.options.get("chdir"))  # noqa: PTH118

    def run(self, submit_line: str) -> int:
        """Create and run the step, and return the exit status."""
        requests = []
        for options, (job, allocated) in zip(self.parts, self.jobs, strict=True):
            requests.append(step_request(options, self.environ, job, allocated=allocated))
            self.messages.notes(requests[-1].notes)
        # Processes that a task leaves behind become children of srun, which can then find and end them.
        processes.adopt_orphans("srun")
        created = self._create(requests, submit_line)
        placed = [
            launch.PlacedPart(options, job.job, step, launch.srun_context(options, request, job, self.environ))
            for options, job, (step, _), request in zip(self.parts, self.jobs, created, requests, strict=True)
        ]
        try:
            pmi = plugins.start_server(self.parts, requests, [step for step, _ in created])
            return self._run_step(created, placed, pmi)
        except BaseException:
            for step, _ in created:
                self.state.update_step(step, state="FAILED", exit_code=1 << 8, end_time=now())
            raise
        finally:
            for _, inbox in created:
                inbox.close()

    def _create(self, requests: Sequence[StepRequest], submit_line: str) -> step_creation.Created:
        pending = []
        for options, (job, _), request in zip(self.parts, self.jobs, requests, strict=True):
            if self.state.settings.strict:
                check_types(options, self.state.settings.gpu_type, job.job_id)
            srun = processes.identity(os.getpid())
            draft = Step(job.job_id, 0, job.attempt, launch.step_name(options), [], srun=srun, submit_line=submit_line)
            pending.append(step_creation.PendingPart(job, request, draft._replace(overlap=request.overlap)))
        # --immediate without a value means one second, which srun takes for no wait at all.
        timeout = max(0, int(self.options.get("immediate") or 1) - 1) if self.options.has("immediate") else None
        return step_creation.create_step(self.state, pending, self.messages, timeout=timeout)

    def _run_step(
        self,
        created: step_creation.Created,
        placed: Sequence[launch.PlacedPart],
        pmi: PmiServer | None,
    ) -> int:
        job, allocated = self.jobs[0]
        terminal = open_terminal(self.options, self.messages)
        streams = self._open_streams(placed)
        step = RunningStep(created, self._policy(), self.messages)
        # A connection to the database must not be open when a task is forked.
        self.state.close()
        umask = int(self.environ.get("SLURM_UMASK") or oct(placed[0].context.umask), 8)
        launched = True
        # A task whose files cannot be opened fails alone. In an MPI program, `wait` then ends the other tasks.
        for task in launch.list_tasks(self.state, placed, self.environ):
            part = step.part(task)
            part_streams, position = streams[part.index], part.position(task)
            try:
                task_streams = (
                    part_streams.connect_terminal(position, terminal) if terminal else part_streams.connect(position)
                )
            except OSError as error:
                processes.write_slurmstepd_error(f"Could not open file {error.filename}: {error.strerror}")
                step.record_launch_failure(task)
                launched = False
                continue
            step.record_start(start_task(pmi.connect(task) if pmi else task, task_streams, self.folder, umask), task)
            part_streams.close_task_ends()
            if pmi is not None:
                pmi.close_task_end()
        with terminal.raw() if terminal else contextlib.nullcontext():
            step.wait(streams[0], pmi, launched=launched)
        record_end(self.state, step.parts)
        if allocated:
            allocation.release(self.state, job.leader_id, step.status)
        return srun_exit_code(step.status)

    def _open_streams(self, placed: Sequence[launch.PlacedPart]) -> list[StepStreams]:
        ntasks = sum(len(tasks) for part in placed for tasks in part.step.tasks)
        streams: list[StepStreams] = []
        for part in placed:
            values = PatternValues(
                job_id=part.job.job_id,
                job_name=self.environ.get("SLURM_JOB_NAME", part.job.name),
                user=part.job.user,
                node=part.step.nodes[0],
                step_id=part.step.step_id,
                array_job_id=part.job.array_job_id,
                array_task_id=part.job.array_task_id,
            )
            streams.append(StepStreams(part.options, values, ntasks, self.folder, streams[-1] if streams else None))
        return streams

    def _policy(self) -> StepPolicy:
        kill_wait = self.state.settings.kill_wait
        # If srun makes the allocation, --time is the limit of the job.
        has_limit = self.options.get("time") and not self.jobs[0].allocated_here
        limit = parse_time(self.options.get("time")) if has_limit else -1
        return StepPolicy(
            kill_bad_exit=any(options.get("kill-on-bad-exit", "0") != "0" for options in self.parts),
            kill_wait=min(kill_wait, KILL_WAIT_SECONDS),
            job_kill_wait=kill_wait,
            max_wait=self.options.number("wait") or 0,
            time_limit=limit / 60 * self.state.settings.minute if limit > 0 else None,
            pass_interrupt=self.options.has("disable-status"),
            quit_on_interrupt=self.options.has("quit-on-interrupt"),
        )
