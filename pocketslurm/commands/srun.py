"""The command srun: reads the command line, and runs a step."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from hpc_kit.slurm.units import parse_time
from pocketslurm import processes
from pocketslurm.errors import CommandError
from pocketslurm.exit_status import srun_exit_code
from pocketslurm.log_paths import PatternValues
from pocketslurm.pmi import plugins
from pocketslurm.queue import job_size
from pocketslurm.queue.records import Step
from pocketslurm.queue.state import StateDirectory, now
from pocketslurm.queue.submission import working_folder
from pocketslurm.settings import SLURM_VERSION, load_settings
from pocketslurm.steps import allocation, launch, options, step_creation
from pocketslurm.steps.environment import check_types
from pocketslurm.steps.messages import SrunMessages, write_stderr
from pocketslurm.steps.request import part_requests
from pocketslurm.steps.running_step import RunningStep, StepRecorder
from pocketslurm.steps.task_io import StepStreams
from pocketslurm.steps.task_process import start_task
from pocketslurm.steps.termination import StepPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pocketslurm.pmi.server import PmiServer
    from pocketslurm.queue.records import Job
    from pocketslurm.steps.allocation import JobForStep
    from pocketslurm.steps.environment import SrunContext
    from pocketslurm.steps.options import StepOptions, StepPart
    from pocketslurm.steps.pty import Terminal
    from pocketslurm.steps.request import StepRequest

KILL_WAIT_SECONDS = 3.0
"""The longest that --kill-on-bad-exit waits between SIGTERM and SIGKILL: a broken step should not keep its nodes."""


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    _open_standard_files()
    try:
        return _srun(argv, environ)
    except CommandError as refusal:
        if refusal.status == 1:
            at_once = isinstance(refusal, allocation.Busy)
            refusal.status = _error_status(environ.get("SLURM_EXIT_IMMEDIATE" if at_once else "SLURM_EXIT_ERROR", ""))
        raise
    except allocation.Interrupted:
        return _error_status(environ.get("SLURM_EXIT_ERROR", ""))


def _open_standard_files() -> None:
    """Open closed standard streams on /dev/null, so that no pipe of srun gets their number."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(opened)


def _error_status(named: str) -> int:
    """Return the exit status for errors of srun itself, from SLURM_EXIT_ERROR and its relatives."""
    return int(named) if named.isdecimal() and int(named) else 1


def _srun(argv: list[str], environ: Mapping[str, str]) -> int:
    settings = load_settings(environ)
    strict = settings.strict
    parts = options.read_parts(argv, environ, strict=strict)
    asked = plugins.with_default(parts[0].asked, settings.mpi_default)
    if (answer := _answer(asked, strict=strict)) is not None:
        print(answer)
        return 0
    talk = SrunMessages(asked.verbosity)
    state = StateDirectory.open(environ)
    found = options.assign_groups(parts, environ, allocation.size(state, asked), strict=strict)
    components = [part._replace(asked=plugins.with_default(part.asked, settings.mpi_default)) for part in found]
    commands = [_commands(part.asked, several=len(components) > 1) for part in components]
    if asked.has("test-only"):
        return allocation.test_only(state, components, environ)
    homes = allocation.find_or_allocate(state, components, environ, talk)
    try:
        return _Srun(state, components, homes, environ, talk).run(commands, argv)
    except BaseException:
        if homes[0].allocated_here:
            allocation.release(state, homes[0].job.leader_id, 1 << 8)
        raise


def _answer(asked: StepOptions, *, strict: bool) -> str | None:
    """Return the text of options that only print something, such as --help."""
    if asked.has("version"):
        return f"slurm {SLURM_VERSION}"
    if asked.has("help") or asked.has("usage"):
        from pocketslurm.option_support import srun_help

        return srun_help()
    if asked.get("mpi") == "list":
        return plugins.LISTED
    plugins.check_plugin(asked.get("mpi"), strict=strict)
    return None


def _commands(asked: StepOptions, *, several: bool) -> list[tuple[str, ...]]:
    """Return the program of every task, or one for all of them."""
    if asked.has("multi-prog"):
        if not asked.command:
            raise CommandError("error: configuration file not specified")
        commands = launch.read_multi_prog(asked.command[0], asked.number("ntasks"))
        if several:
            raise CommandError("fatal: --multi-prog option not supported with multiple het groups")
        return commands
    if not asked.command and not asked.has("test-only"):
        raise CommandError("fatal: No command given to execute.")
    return [asked.command]


class _Srun:
    """One step of one job, in one component of it or in several; the first part speaks for srun itself."""

    def __init__(
        self,
        state: StateDirectory,
        parts: Sequence[StepPart],
        homes: Sequence[JobForStep],
        environ: Mapping[str, str],
        talk: SrunMessages,
    ) -> None:
        self.state = state
        self.parts = [part.asked for part in parts]
        self.asked = self.parts[0]
        self.environ = environ
        self.talk = talk
        self.homes = homes
        self.home = homes[0]
        self.folder = os.path.join(working_folder(), self.asked.get("chdir"))  # noqa: PTH118

    def run(self, commands: Sequence[list[tuple[str, ...]]], argv: Sequence[str]) -> int:
        """Create and run the step, and return the exit status."""
        if self.asked.has("multi-prog") and not self.asked.has("ntasks"):
            self.parts[0] = self.asked._replace(values={**self.asked.values, "ntasks": str(len(commands[0]))})
        if not self.state.settings.strict:
            self.parts = [asked._replace(values=job_size.portable_options(asked.values)) for asked in self.parts]
        jobs = [home.job for home in self.homes]
        requests = part_requests(self.parts, self.environ, jobs, self.talk, allocated=self.home.allocated_here)
        processes.adopt_orphans("srun")
        created = self._create(requests, argv)
        starts = [
            launch.PlacedPart(asked, home, step, self._launch(asked, request, home), programs)
            for asked, home, (step, _), request, programs in zip(
                self.parts, self.homes, created, requests, commands, strict=True
            )
        ]
        try:
            pmi = plugins.start_server(self.parts, requests, [step for step, _ in created])
            return self._run_step(created, starts, pmi)
        except BaseException:
            for step, _ in created:
                self.state.update_step(step, state="FAILED", exit_code=1 << 8, end_time=now())
            raise
        finally:
            for _, inbox in created:
                inbox.close()

    def _launch(self, asked: StepOptions, request: StepRequest, home: JobForStep) -> SrunContext:
        return launch.srun_context(asked, request, home, self.environ, several=len(self.parts) > 1)

    def _create(self, requests: Sequence[StepRequest], argv: Sequence[str]) -> step_creation.Created:
        wanted = [
            step_creation.PendingPart(home.job, request, self._draft(number, asked, home.job, request, argv))
            for number, (asked, home, request) in enumerate(zip(self.parts, self.homes, requests, strict=True))
        ]
        # One second, which --immediate means without a value, is none at all to srun.
        patience = max(0, int(self.asked.get("immediate") or 1) - 1) if self.asked.has("immediate") else None
        if self.state.settings.strict:
            for asked, home in zip(self.parts, self.homes, strict=True):
                check_types(asked, self.state.settings.gpu_type, home.job.job_id)
        return step_creation.create_step(self.state, wanted, self.talk, patience=patience)

    def _draft(self, number: int, asked: StepOptions, job: Job, request: StepRequest, argv: Sequence[str]) -> Step:
        return Step(
            job.job_id, 0, job.attempt, launch.step_name(asked), [],
            srun=processes.identity(os.getpid()), overlap=request.overlap, submit_line=" ".join(["srun", *argv]),
            component=number if len(self.parts) > 1 and job.het_job_id is None else None,
        )  # fmt: skip

    def _run_step(
        self, created: step_creation.Created, starts: Sequence[launch.PlacedPart], pmi: PmiServer | None
    ) -> int:
        terminal = self._terminal()
        plumbing = self._plumbing(starts)
        program = starts[0].commands[0]
        if failed := self._script("prolog", program):
            return self._abort(created, failed)
        books = StepRecorder(self.state, self.home.job)
        run = RunningStep(created, self._manner(), self.talk, books.record_part)
        self.state.close()
        environ = {**self.environ, **(terminal.environ if terminal else {})}
        umask = int(self.environ.get("SLURM_UMASK") or oct(starts[0].launch.umask), 8)
        launched = True
        for task in launch.list_tasks(self.state, starts, environ):
            part = run.part(task)
            pipes, place = plumbing[part.index], part.place(task)
            try:
                streams = pipes.connect_terminal(place, terminal) if terminal else pipes.connect(place)
            except OSError as error:
                write_stderr(f"slurmstepd: error: Could not open file {error.filename}: {error.strerror}\n")
                run.failed(task)
                launched = False
                continue
            run.started(start_task(pmi.connect(task) if pmi else task, streams, self.folder, umask), task)
            pipes.started()
            if pmi is not None:
                pmi.started()
        with terminal.raw() if terminal else contextlib.nullcontext():
            run.wait(plumbing[0], pmi, launched=launched)
        books.record_step(run.parts)
        if self.home.allocated_here:
            allocation.release(self.state, self.home.job.leader_id, run.status)
        if failed := self._script("epilog", program):
            self.talk.error(f"srun epilog failed status= {failed}.")
        return srun_exit_code(run.status)

    def _terminal(self) -> Terminal | None:
        if not self.asked.has("pty"):
            return None
        from pocketslurm.steps.pty import open_terminal

        return open_terminal(self.asked, self.talk)

    def _plumbing(self, starts: Sequence[launch.PlacedPart]) -> list[StepStreams]:
        ntasks = sum(len(tasks) for start in starts for tasks in start.step.tasks)
        found: list[StepStreams] = []
        for part in starts:
            job = part.home.job
            names = PatternValues(
                job_id=job.job_id,
                job_name=self.environ.get("SLURM_JOB_NAME", job.name),
                user=job.user,
                node=part.step.nodes[0],
                step_id=part.step.step_id,
                array_job_id=job.array_job_id,
                array_task_id=job.array_task_id,
            )
            found.append(StepStreams(part.asked, names, ntasks, self.folder, found[-1] if found else None))
        return found

    def _manner(self) -> StepPolicy:
        kill_wait = self.state.settings.kill_wait
        limit = parse_time(self.asked.get("time")) if self.asked.get("time") and not self.home.allocated_here else -1
        return StepPolicy(
            kill_bad_exit=any(asked.get("kill-on-bad-exit", "0") != "0" for asked in self.parts),
            kill_wait=min(kill_wait, KILL_WAIT_SECONDS),
            job_kill_wait=kill_wait,
            max_wait=self.asked.number("wait") or 0,
            time_limit=limit / 60 * self.state.settings.minute if limit > 0 else None,
            pass_interrupt=self.asked.has("disable-status"),
            quit_on_interrupt=self.asked.has("quit-on-interrupt"),
            reduce=self.environ.get("SLURM_SRUN_REDUCE_TASK_EXIT_MSG", "0") not in {"", "0"},
        )

    def _script(self, name: str, command: Sequence[str]) -> int:
        """Run the script of --prolog or --epilog, and return its exit code."""
        path = self.asked.get(name)
        if not path or path.lower() == "none":
            return 0
        return os.waitstatus_to_exitcode(os.waitpid(os.spawnv(os.P_NOWAIT, path, [path, *command]), 0)[1])  # noqa: S606

    def _abort(self, created: step_creation.Created, code: int) -> int:
        """Record a step as killed because its prolog failed."""
        self.talk.error(f"srun prolog failed rc = {code}. Aborting step.")
        for step, _ in created:
            name = f"StepId={step.job_id}.{step.label}"
            self.talk.info(f"launch/slurm: launch_p_step_launch: {name} aborted before step completely launched.")
            self.state.update_step(step, state="CANCELLED", exit_code=signal.SIGKILL, end_time=now())
        if self.home.allocated_here:
            allocation.release(self.state, self.home.job.leader_id, signal.SIGKILL)
        return 128 + signal.SIGKILL
