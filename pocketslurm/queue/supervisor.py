"""A job's supervisor: runs its script, enforces its time limit, forwards signals, and ends all its processes."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from hpc_kit.slurm.option_values import parse_signal
from pocketslurm import processes, resources
from pocketslurm.exit_status import step_state
from pocketslurm.queue import batch_step, controller_start, job_processes, messages, submission
from pocketslurm.queue.controller_start import log
from pocketslurm.queue.database import is_damaged
from pocketslurm.queue.messages import send_to_srun
from pocketslurm.queue.records import BATCH_STEP
from pocketslurm.queue.state import now

if TYPE_CHECKING:
    from pocketslurm.queue.records import Job, Step
    from pocketslurm.queue.state import StateDirectory


_LOOK_SECONDS = 2.0
_ENDING_SECONDS = 0.03
"""Seconds between two checks, and between two checks of a job that ends."""

_GRACE_SECONDS = 1.0
"""Seconds that an srun gets to kill its tasks before it is killed itself."""


class Supervisor:
    """The process that runs one job."""

    def __init__(self, state: StateDirectory, job: Job) -> None:
        self.state = state
        self.job = job
        self._wakeup_pipe = messages.WakeupPipe(state.directory, job.job_id)
        self._name = processes.identity(os.getpid())
        self._is_ending = False
        self._kill_at = 0.0  # time.monotonic() of SIGKILL, after KillWait
        self._force_at = 0.0  # time.monotonic() at which sruns that have not killed their tasks are killed
        self._pid = 0
        self._stderr = -1
        self._status: int | None = None
        self._is_signalled = False
        self._oom = resources.OomCounter()
        self._ended_components: set[int] = set()

    def run(self) -> None:
        """Run the job until it has ended."""
        processes.adopt_orphans(f"pocketslurm-{self.job.job_id}")
        if not self._register():
            return
        if self.job.state != "RUNNING":
            self._record_unstarted()
        elif self.job.batch:
            self._launch()
        while not self._is_done():
            self.state.close()

    def _is_done(self) -> bool:
        """Check the job once and sleep. Return True when its end is recorded."""
        try:
            if self._check():
                self._record_end()
                return True
            self._wakeup_pipe.sleep(self._seconds_to_sleep())
        except (OSError, sqlite3.Error) as error:
            # A full disk must not end a job, so the next check tries again.
            if not is_damaged(error):
                log(f"error: JobId={self.job.display_id}: {error}")
            elif self._status is not None:
                # The script has ended, but a damaged database cannot record it.
                self._kill_and_exit()
            time.sleep(_LOOK_SECONDS)
        return False

    def _register(self) -> bool:
        """Register as the job's supervisor. Return False if this start of the job is obsolete."""
        with self.state.transaction():
            job = self.state.job(self.job.job_id)
            wanted = job is not None and (job.state == "RUNNING" or job.completing)
            if job is None or not wanted or job.attempt != self.job.attempt or job.supervisor:
                return False
            self.state.update_components(job.job_id, supervisor=self._name)
            if job.batch:
                batch_step.record_start(self.state, job)
        self.job = job
        return True

    def _record_unstarted(self) -> None:
        """Record a job that was cancelled before its script started, as if the script had been killed."""
        if self.job.batch:
            self._stderr = batch_step.open_error_log(self.job)
        orders = [messages.decode_order(*stored) for stored in self.state.take_orders(self.job.job_id)]
        self._end(next((order.why for order in orders if isinstance(order, messages.Cancel)), ""))
        # The wait status of a script that SIGTERM has ended, or of success.
        self._status = signal.SIGTERM if self.job.batch else 0

    def _launch(self) -> None:
        try:
            self._pid, self._stderr = batch_step.start_script(self.state, self.job)
        except OSError as error:
            log(f"error: JobId={self.job.display_id} could not be started: {error}")
            self._status = batch_step.LAUNCH_FAILED

    def _check(self) -> bool:
        """Handle orders and time limits. Return True when the job and all its processes have ended."""
        self._status = processes.reap().get(self._pid, self._status)
        job = self.state.job(self.job.job_id) if self.state.exists() else None
        # The directory may have been deleted, and a new one may have another job with this id.
        if job is None or job.supervisor != self._name:
            self._kill_and_exit()
        self.job = job
        job_processes.end_lost_steps(self.state, job)
        for kind, value in self.state.take_orders(job.job_id):
            self._handle_order(kind, value)
        self._release_components()
        # An allocation without a script belongs to a salloc or an srun, the holder.
        if job.holder and self._status is None and not processes.is_alive(job.holder):
            self._status = signal.SIGKILL
        if self._status is None and not self._is_ending:
            self._check_time_limits()
        if self._status is not None and not self._is_ending:
            self._end_after_script()
        return self._is_ending and self._has_ended()

    def _check_time_limits(self) -> None:
        """End the job or a component at its time limit. Send the signal of --signal before."""
        minute = self.state.settings.minute
        for part in self._running_components():
            end = end_of_time(part, minute)
            if end and now() >= end:
                with self.state.transaction():
                    over = {"state": "TIMEOUT", "reason": "TimeLimit", "completing": True, "end_time": now()}
                    self.state.update_components(part.job_id, **over)
                if part is self.job:
                    self._end("TIME LIMIT")
                    return
                self._end_component(part.job_id, "TIME LIMIT")
        warning = warning_signal(self.job, minute)
        if warning and not self._is_signalled and now() >= warning.moment:
            self._is_signalled = True
            # A stopped task handles no signal, so SIGCONT comes first.
            target = "batch" if warning.batch_shell else "steps"
            self._send_signal(signal.SIGCONT, target)
            self._send_signal(warning.number, target)

    def _seconds_to_sleep(self) -> float:
        """Return the seconds to the next check. An order ends the sleep earlier."""
        if self._is_ending:
            return _ENDING_SECONDS
        minute = self.state.settings.minute
        ends = [end_of_time(part, minute) for part in self._running_components()]
        warning = None if self._is_signalled else warning_signal(self.job, minute)
        moments = [moment for moment in (*ends, warning.moment if warning else 0.0) if moment]
        return max(0.0, min([_LOOK_SECONDS, *(moment - now() for moment in moments)]))

    def _handle_order(self, kind: str, value: str) -> None:
        match messages.decode_order(kind, value):
            case messages.Cancel(why):
                self._end(why)
            case messages.EndComponent(job_id):
                self._end_component(job_id, "")
            case messages.Signal(number, target, job_id):
                self._send_signal(number, target, job_id)
            case messages.TellStep(label, text, job_id):
                self._send_to_steps(label, text, job_id)
            case messages.Complete(status):
                self._status = status
            case _:
                log(f"error: JobId={self.job.display_id}: unknown order: {kind} {value}")

    def _running_components(self) -> list[Job]:
        """Return the job, and the running components that it leads."""
        others = self.state.components(self.job)[1:]
        return [self.job, *(part for part in others if part.state == "RUNNING")]

    def _end_component(self, job_id: int, why: str) -> None:
        """Cancel the steps of a component whose record has ended. The job continues without the component."""
        self._ended_components.add(job_id)
        for step in job_processes.running_steps(self.state, self.job):
            if step.job_id == job_id:
                self._send_to_step(step, f"cancel {why}".rstrip())

    def _release_components(self) -> None:
        """Release the nodes of ended components without running steps."""
        if not self._ended_components:
            return
        busy = {step.job_id for step in job_processes.running_steps(self.state, self.job)}
        for job_id in self._ended_components - busy:
            self.state.update_job(job_id, completing=False)
            controller_start.ensure_running(self.state)
        self._ended_components &= busy

    def _send_to_steps(self, label: str, order: str, job_id: int | None) -> None:
        """Send an order to a step. With the id of the leader, or without an id, all parts of the step get it."""
        for step in job_processes.running_steps(self.state, self.job):
            is_addressed = job_id in {None, step.job_id, self.job.job_id}
            if is_addressed and label in {step.label, str(step.step_id)}:
                self._send_to_step(step, order)

    def _send_signal(self, number: int, target: str, job_id: int | None = None) -> None:
        """Send a signal to the steps, to the batch shell, or (`full`) to both and to other children of the shell.

        A component other than the leader has steps only.
        """
        if job_id not in {None, self.job.job_id}:
            for step in job_processes.running_steps(self.state, self.job):
                if step.job_id == job_id:
                    self._send_to_step(step, f"signal {number}")
            return
        if target == "batch" and self._pid and self._status is None:
            processes.kill([self._pid], number)
        if target == "full":
            processes.kill(job_processes.outside_steps(self.state, self.job), number)
        if target in {"steps", "full"}:
            for step in job_processes.running_steps(self.state, self.job):
                self._send_to_step(step, f"signal {number}")

    def _send_to_step(self, step: Step, order: str) -> None:
        """Send an order to a step's srun. Signal the tasks directly if that fails."""
        if not send_to_srun(self.state.directory, step.job_id, step.label, order):
            word, _, value = order.partition(" ")
            number: int = signal.SIGKILL if word == "kill" else signal.SIGTERM
            if word == "signal":
                number = int(value)
            processes.kill(job_processes.step_pids(step), number)

    def _end(self, why: str) -> None:
        """Send SIGTERM to all processes and write to the log; SIGKILL follows after KillWait."""
        if self._is_ending:
            return
        self._start_ending()
        if self._stderr >= 0 and self._status is None:
            processes.write_cancellation(f"JOB {self.job.job_id} ON {self.job.nodes[0]}", why, self._stderr)
        for step in job_processes.running_steps(self.state, self.job):
            self._send_to_step(step, f"cancel {why}".rstrip())
        # Children of the batch shell get no SIGTERM, as with proctrack/cgroup.
        if self._pid and self._status is None:
            processes.terminate([self._pid])

    def _start_ending(self) -> None:
        self._is_ending, self._kill_at = True, time.monotonic() + self.state.settings.kill_wait

    def _end_after_script(self) -> None:
        """End the job after its script: cancel running steps, and kill other processes."""
        state, reason = self._final_state()
        with self.state.transaction():
            self.state.update_components(self.job.job_id, state=state, reason=reason, end_time=now(), completing=True)
        self._start_ending()
        for step in job_processes.running_steps(self.state, self.job):
            self._send_to_step(step, "cancel")

    def _final_state(self) -> tuple[str, str]:
        """Return the job's state and reason after the end of its script."""
        status = self._status or 0
        if status == 0:
            return "COMPLETED", "None"
        ends = [step.exit_code for part in self.state.components(self.job) for step in self.state.steps(part.job_id)]
        if resources.is_any_killed(status, ends) and self._oom.rose():
            self._status = resources.OUT_OF_MEMORY
            return "OUT_OF_MEMORY", "OutOfMemory"
        # Slurm's name for a script that a signal ended is JobLaunchFailure.
        return "FAILED", "NonZeroExitCode" if os.WIFEXITED(status) else "JobLaunchFailure"

    def _has_ended(self) -> bool:
        if time.monotonic() >= self._kill_at:
            self._kill()
        # The script has not ended, or its end will be found by the next `_check`.
        if self._pid and self._status is None:
            return False
        # Slurm also kills the background processes of a script that has ended.
        processes.kill(job_processes.outside_steps(self.state, self.job), signal.SIGKILL)
        return not job_processes.job_pids(self.state, self.job)

    def _kill(self) -> None:
        """Let each srun kill its tasks and record it. Some time later, kill all processes that are left."""
        if not self._force_at:
            self._force_at = time.monotonic() + _GRACE_SECONDS
            for step in job_processes.running_steps(self.state, self.job):
                self._send_to_step(step, "kill")
            processes.kill(job_processes.outside_steps(self.state, self.job), signal.SIGKILL)
        elif time.monotonic() >= self._force_at:
            processes.kill(job_processes.job_pids(self.state, self.job), signal.SIGKILL)

    def _kill_and_exit(self) -> NoReturn:
        """Kill the job and exit, because its record or the state directory was deleted."""
        # A killed process may have just forked, so the search is repeated until it finds none.
        for _ in range(100):
            left = [process.pid for process in processes.descendants([os.getpid()])]
            processes.kill(left, signal.SIGKILL)
            processes.reap()
            if not left:
                break
            time.sleep(_ENDING_SECONDS)
        os._exit(0)

    def _record_end(self) -> None:
        status = self._status or 0
        with self.state.transaction():
            job = self.state.job(self.job.job_id) or self.job
            for job_id in self._ended_components:
                self.state.update_job(job_id, completing=False)
            for part in self.state.components(job):
                self.state.update_job(part.job_id, derived_exit_code=record_steps(self.state, part, status))
            # scontrol requeue has set this state before the job had ended.
            if job.state == "PENDING":
                submission.put_back(self.state, job)
            else:
                self.state.update_components(job.job_id, completing=False, exit_code=status)
        shutil.rmtree(batch_step.script_path(self.state, job).parent, ignore_errors=True)
        self._wakeup_pipe.close()
        controller_start.ensure_running(self.state)


def main(state: StateDirectory, job: Job) -> None:
    """Run the supervisor of a job that got nodes."""
    Supervisor(state, job).run()


def record_steps(state: StateDirectory, job: Job, status: int) -> int:
    """Record the ends of a job's steps. Return the highest exit code of steps other than the batch script."""
    steps = state.steps(job.job_id)
    others = [step for part in state.components(job) for step in state.steps(part.job_id) if step.step_id != BATCH_STEP]
    for step in steps:
        if step.step_id == BATCH_STEP:
            used = resources.children_usage(others)._asdict()
            state.update_step(step, exit_code=status, end_time=now(), state=_state(status), **used)
        elif step.state == "RUNNING":
            state.update_step(step, exit_code=signal.SIGKILL, end_time=now(), state="CANCELLED")
    return max((step.exit_code for step in state.steps(job.job_id) if step.step_id >= 0), default=0)


def _state(status: int) -> str:
    """Return the state of the batch step in sacct."""
    # Slurm cancels a batch step that could not start.
    return "CANCELLED" if status == batch_step.LAUNCH_FAILED else step_state(status)


class WarningSignal(NamedTuple):
    """The signal of --signal: its time, its number, and whether only the batch shell gets it."""

    moment: float
    number: int
    batch_shell: bool


def end_of_time(job: Job, minute: float) -> float:
    """Return the time when the limit is reached; 0.0 for never. A minute lasts `minute` seconds."""
    return job.start_time + job.time_limit / 60 * minute if job.time_limit >= 0 else 0.0


def warning_signal(job: Job, minute: float) -> WarningSignal | None:
    """Return the signal of --signal; None without the option."""
    text, end = job.options.get("signal"), end_of_time(job, minute)
    if not text or not end:
        return None
    spec = parse_signal(text)
    return WarningSignal(end - spec.seconds / 60 * minute, spec.number, spec.batch_shell)
