"""The command srun."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from hpc_kit.embedded import leniency, processes, srun_job, srun_launch, srun_mpi, srun_multi, srun_step, usage
from hpc_kit.embedded.filenames import Names
from hpc_kit.embedded.memory import OUT_OF_MEMORY
from hpc_kit.embedded.records import Step
from hpc_kit.embedded.refused import Refused
from hpc_kit.embedded.settings import VERSION, load
from hpc_kit.embedded.srun_end import Manner
from hpc_kit.embedded.srun_files import Place, Plumbing
from hpc_kit.embedded.srun_gpus import check_types
from hpc_kit.embedded.srun_options import read
from hpc_kit.embedded.srun_request import step_request
from hpc_kit.embedded.srun_run import Run
from hpc_kit.embedded.srun_talk import Talk, write
from hpc_kit.embedded.srun_tasks import start
from hpc_kit.embedded.state import State, now
from hpc_kit.embedded.submission import working_folder
from hpc_kit.slurm.units import parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpc_kit.embedded.pmi import PmiServer
    from hpc_kit.embedded.srun_environ import Launch
    from hpc_kit.embedded.srun_job import Home
    from hpc_kit.embedded.srun_options import Asked
    from hpc_kit.embedded.srun_orders import Inbox
    from hpc_kit.embedded.srun_pty import Terminal
    from hpc_kit.embedded.srun_request import StepRequest

KILL_WAIT_SECONDS = 3.0
"""The longest that --kill-on-bad-exit waits between SIGTERM and SIGKILL: a broken step should not keep its nodes."""


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    _open_standard_files()
    try:
        return _srun(argv, environ)
    except Refused as refusal:
        if refusal.status == 1:
            at_once = isinstance(refusal, srun_job.NotNow)
            refusal.status = _error_status(environ.get("SLURM_EXIT_IMMEDIATE" if at_once else "SLURM_EXIT_ERROR", ""))
        raise
    except srun_job.Interrupted:
        return _error_status(environ.get("SLURM_EXIT_ERROR", ""))


def _open_standard_files() -> None:
    """Whoever closed one of them must not find a pipe of ours in its place."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(opened)


def _error_status(named: str) -> int:
    """What a script has asked srun to end with when srun itself is at fault."""
    return int(named) if named.isdecimal() and int(named) else 1


def _srun(argv: list[str], environ: Mapping[str, str]) -> int:
    settings = load(environ)
    strict = settings.strict
    asked = srun_mpi.with_default(read(argv, environ, strict=strict), settings.mpi_default)
    if (answer := _answer(asked, strict=strict)) is not None:
        print(answer)
        return 0
    commands = _commands(asked)
    talk = Talk(asked.verbosity)
    state = State.open(environ)
    if asked.has("test-only"):
        return srun_job.test_only(state, asked, environ)
    home = srun_job.find(state, asked, environ, talk)
    try:
        return _Srun(state, asked, environ, talk, home).run(commands, argv)
    except BaseException:
        if home.own:
            srun_job.give_back(state, home.job.job_id, 1 << 8)
        raise


def _answer(asked: Asked, *, strict: bool) -> str | None:
    """What is only to be printed."""
    if asked.has("version"):
        return f"slurm {VERSION}"
    if asked.has("help") or asked.has("usage"):
        from hpc_kit.embedded.srun_help import usage

        return usage()
    if asked.get("mpi") == "list":
        return srun_mpi.LISTED
    srun_mpi.check_mpi(asked.get("mpi"), strict=strict)
    return None


def _commands(asked: Asked) -> list[tuple[str, ...]]:
    """The program of every task, or one for all of them."""
    if ":" in asked.command:
        raise Refused("error: steps of several components are not supported by the embedded Slurm")
    if asked.has("multi-prog"):
        if not asked.command:
            raise Refused("error: configuration file not specified")
        return srun_multi.read(asked.command[0], asked.number("ntasks"))
    if not asked.command and not asked.has("test-only"):
        raise Refused("fatal: No command given to execute.")
    return [asked.command]


class _Srun:
    """One step of one job."""

    def __init__(self, state: State, asked: Asked, environ: Mapping[str, str], talk: Talk, home: Home) -> None:
        self.state = state
        self.asked = asked
        self.environ = environ
        self.talk = talk
        self.home = home
        self.folder = os.path.join(working_folder(), asked.get("chdir"))  # noqa: PTH118

    def run(self, commands: Sequence[tuple[str, ...]], argv: Sequence[str]) -> int:
        """From the request to the exit status."""
        if self.asked.has("multi-prog") and not self.asked.has("ntasks"):
            self.asked = self.asked._replace(values={**self.asked.values, "ntasks": str(len(commands))})
        if not self.state.settings.strict:
            self.asked = self.asked._replace(values=leniency.counted(self.asked.values))
        request = step_request(self.asked, self.environ, self.home.job, allocated=self.home.own)
        self.talk.notes(request.notes)
        processes.adopt_orphans("srun")
        step, inbox = self._create(request, argv)
        launch = srun_launch.step_launch(self.asked, request, self.home, self.environ)
        try:
            pmi = srun_mpi.server(self.asked, request, step, self.talk)
            return self._run_step(step, inbox, launch, commands, pmi)
        except BaseException:
            self.state.update_step(step, state="FAILED", exit_code=1 << 8, end_time=now())
            raise
        finally:
            inbox.close()

    def _create(self, request: StepRequest, argv: Sequence[str]) -> tuple[Step, Inbox]:
        job = self.home.job
        draft = Step(
            job.job_id, 0, job.attempt, srun_launch.step_name(self.asked), [],
            srun=processes.identity(os.getpid()), overlap=request.overlap, submit_line=" ".join(["srun", *argv]),
        )  # fmt: skip
        # One second, which --immediate means without a value, is none at all to srun.
        patience = max(0, int(self.asked.get("immediate") or 1) - 1) if self.asked.has("immediate") else None
        try:
            if self.state.settings.strict:
                check_types(self.asked, self.state.settings.gpu_type)
            return srun_step.create(self.state, job, request, draft, self.talk, patience=patience)
        except Refused as refused:
            denied = [f"error: Unable to create step for job {job.job_id}: {refused.denied}"] if refused.denied else []
            raise type(refused)(*refused.lines, *denied) from None

    def _run_step(
        self, step: Step, inbox: Inbox, launch: Launch, commands: Sequence[tuple[str, ...]], pmi: PmiServer | None
    ) -> int:
        terminal = self._terminal()
        plumbing = self._plumbing(step)
        if failed := self._script("prolog", commands[0]):
            return self._abort(step, failed)
        run = Run(step, inbox, self._manner(), self.talk)
        self.state.close()
        environ = {**self.environ, **(terminal.environ if terminal else {})}
        umask = int(self.environ.get("SLURM_UMASK") or oct(launch.umask), 8)
        for task in srun_launch.tasks(self.state, self.home, step, self.asked, launch, commands, environ):
            place = Place(task.number, step.nodes[task.node], task.node)
            try:
                streams = plumbing.connect_terminal(place, terminal) if terminal else plumbing.connect(place)
            except OSError as error:
                write(f"slurmstepd: error: Could not open file {error.filename}: {error.strerror}\n")
                run.failed(task)
                continue
            run.started(start(pmi.connect(task) if pmi else task, streams, self.folder, umask), task)
            plumbing.started()
            if pmi is not None:
                pmi.started()
        with terminal.raw() if terminal else contextlib.nullcontext():
            run.wait(plumbing, pmi)
        self._book(step, run)
        if failed := self._script("epilog", commands[0]):
            self.talk.error(f"srun epilog failed status= {failed}.")
        return run.report.exit_code

    def _terminal(self) -> Terminal | None:
        if not self.asked.has("pty"):
            return None
        from hpc_kit.embedded.srun_pty import open_terminal

        return open_terminal(self.asked, self.talk)

    def _plumbing(self, step: Step) -> Plumbing:
        job = self.home.job
        names = Names(
            job_id=job.job_id,
            job_name=self.environ.get("SLURM_JOB_NAME", job.name),
            user=job.user,
            node=step.nodes[0],
            step_id=step.step_id,
            array_job_id=job.array_job_id,
            array_task_id=job.array_task_id,
        )
        return Plumbing(self.asked, names, sum(map(len, step.tasks)), self.folder)

    def _manner(self) -> Manner:
        kill_wait = self.state.settings.kill_wait
        limit = parse_time(self.asked.get("time")) if self.asked.get("time") and not self.home.own else -1
        return Manner(
            kill_bad_exit=self.asked.get("kill-on-bad-exit", "0") != "0",
            kill_wait=min(kill_wait, KILL_WAIT_SECONDS),
            job_kill_wait=kill_wait,
            max_wait=self.asked.number("wait") or 0,
            time_limit=limit / 60 * self.state.settings.minute if limit > 0 else None,
            pass_interrupt=self.asked.has("disable-status"),
            quit_on_interrupt=self.asked.has("quit-on-interrupt"),
            reduce=self.environ.get("SLURM_SRUN_REDUCE_TASK_EXIT_MSG", "0") not in {"", "0"},
        )

    def _book(self, step: Step, run: Run) -> None:
        status = run.report.status or 0
        ending = "TIMEOUT" if run.ending.timed_out else _state(status)
        used = usage.of_children()._asdict()
        self.state.update_step(step, state=ending, exit_code=status, end_time=now(), **used)
        if self.home.own:
            srun_job.give_back(self.state, self.home.job.job_id, status)

    def _script(self, name: str, command: Sequence[str]) -> int:
        """--prolog and --epilog run here, beside srun; the exit code."""
        path = self.asked.get(name)
        if not path or path.lower() == "none":
            return 0
        return os.waitstatus_to_exitcode(os.waitpid(os.spawnv(os.P_NOWAIT, path, [path, *command]), 0)[1])  # noqa: S606

    def _abort(self, step: Step, code: int) -> int:
        """Without its prolog a step is not begun; it is booked as killed."""
        self.talk.error(f"srun prolog failed rc = {code}. Aborting step.")
        name = f"StepId={step.job_id}.{step.step_id}"
        self.talk.info(f"launch/slurm: launch_p_step_launch: {name} aborted before step completely launched.")
        self.state.update_step(step, state="CANCELLED", exit_code=signal.SIGKILL, end_time=now())
        if self.home.own:
            srun_job.give_back(self.state, self.home.job.job_id, signal.SIGKILL)
        return 128 + signal.SIGKILL


def _state(status: int) -> str:
    """How sacct shows a step that ended so."""
    if status == OUT_OF_MEMORY:
        return "OUT_OF_MEMORY"
    if os.WIFSIGNALED(status):
        return "CANCELLED"
    return "FAILED" if status else "COMPLETED"
