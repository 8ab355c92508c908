"""A job's supervisor: runs its script, keeps its time limit, passes signals on, and leaves nothing of it behind."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from typing import TYPE_CHECKING, NoReturn

from pocketslurm import memory, processes
from pocketslurm.queue import (
    batch_step,
    controller_start,
    deadlines,
    job_processes,
    messages,
    recovery,
    suspension,
    wakeup,
)
from pocketslurm.queue.booking import book_steps
from pocketslurm.queue.component_ends import ComponentEnds
from pocketslurm.queue.database import damaged
from pocketslurm.queue.journal import log
from pocketslurm.queue.state import now
from pocketslurm.steps.orders import send

if TYPE_CHECKING:
    from pocketslurm.queue.records import Job, Step
    from pocketslurm.queue.state import Order, State

_LOOK_SECONDS = 2.0
_ENDING_SECONDS = 0.03
_GRACE_SECONDS = 1.0
"""Between the order to an srun to kill its tasks, and its own end by force."""


class Supervisor:
    """The process that owns one running job."""

    def __init__(self, state: State, job: Job) -> None:
        self.state = state
        self.job = job
        self._sleeper = wakeup.Sleeper(state.directory, job.job_id)
        self._name = processes.identity(os.getpid())
        self._ending = False
        self._kill_at = 0.0
        self._force_at = 0.0
        self._pid = 0
        self._stderr = -1
        self._status: int | None = None
        self._warned = False
        self._oom = memory.OomCounter()
        self._components = ComponentEnds(state, self._tell)

    def run(self) -> None:
        """See the job through to its end."""
        processes.adopt_orphans(f"hpc-job-{self.job.job_id}")
        if not self._register():
            return
        if self.job.state != "RUNNING":
            self._never_begin()
        elif self.job.batch:
            self._launch()
        while not self._is_done():
            self.state.close()

    def _is_done(self) -> bool:
        """One look, and the sleep behind it; True when the job's end is booked."""
        try:
            if self._look():
                self._book_end()
                return True
            self._sleeper.sleep(self._how_long())
        except (OSError, sqlite3.Error) as error:  # a full disk must not end a job: the next look may fare better
            if not damaged(error):
                log(f"error: JobId={self.job.label}: {error}")
            elif self._status is not None:  # its end cannot be booked
                self._abandon()
            time.sleep(_LOOK_SECONDS)
        return False

    def _register(self) -> bool:
        """Enter as the job's supervisor; False if this start of the job is no longer wanted."""
        with self.state.transaction():
            job = self.state.job(self.job.job_id)
            wanted = job is not None and (job.state == "RUNNING" or job.completing)
            if job is None or not wanted or job.attempt != self.job.attempt or job.supervisor:
                return False
            self.state.update_whole(job.job_id, supervisor=self._name)
            if job.batch:
                batch_step.announce(self.state, job)
        self.job = job
        return True

    def _never_begin(self) -> None:
        """Cancelled before its script could begin: told and booked as if that had been killed at once."""
        if self.job.batch:
            self._stderr = batch_step.open_error_log(self.job)
        told = [messages.read(order.kind, order.value) for order in self.state.take_orders(self.job.job_id)]
        self._end(next((order.why for order in told if isinstance(order, messages.Cancel)), ""))
        self._status = signal.SIGTERM if self.job.batch else 0

    def _launch(self) -> None:
        try:
            self._pid, self._stderr = batch_step.launch(self.state, self.job)
        except OSError as error:
            log(f"error: JobId={self.job.label} could not be started: {error}")
            self._status = batch_step.LAUNCH_FAILED

    def _look(self) -> bool:
        """Do what is to be done now; True when the job is over and nothing of it is left."""
        self._status = processes.reap().get(self._pid, self._status)
        job = self.state.job(self.job.job_id) if self.state.exists() else None
        # Under the same number another directory of the same name may have a job of its own.
        if job is None or job.supervisor != self._name:
            self._abandon()
        self.job = job
        job_processes.end_lost_steps(self.state, job)
        for order in self.state.take_orders(job.job_id):
            self._obey(order)
        self._components.release(job)
        if job.holder and self._status is None and not processes.alive(job.holder):
            self._status = signal.SIGKILL
        if self._status is None and not self._ending:
            self._watch_clock()
            self._components.watch_clock(job)
        if self._status is not None and not self._ending:
            self._wind_up()
        return self._ending and self._is_over()

    def _watch_clock(self) -> None:
        minute = self.state.settings.minute
        end = deadlines.end_of_time(self.job, minute)
        warning = deadlines.warning(self.job, minute)
        if end and now() >= end:
            with self.state.transaction():
                over = {"state": "TIMEOUT", "reason": "TimeLimit", "completing": True, "end_time": now()}
                self.state.update_whole(self.job.job_id, **over)
            self._end("TIME LIMIT")
        elif warning and not self._warned and now() >= warning.moment:
            self._warned = True
            whom = "batch" if warning.batch_shell else "steps"
            self._deliver(signal.SIGCONT, whom)
            self._deliver(warning.number, whom)

    def _how_long(self) -> float:
        """Seconds until there may be something to do, if nobody calls before."""
        if self._ending:
            return _ENDING_SECONDS
        minute = self.state.settings.minute
        ends = [deadlines.end_of_time(job, minute) for job in (self.job, *self._components.running(self.job))]
        warning = None if self._warned else deadlines.warning(self.job, minute)
        moments = [moment for moment in (*ends, warning.moment if warning else 0.0) if moment]
        return max(0.0, min([_LOOK_SECONDS, *(moment - now() for moment in moments)]))

    def _obey(self, order: Order) -> None:
        match messages.read(order.kind, order.value):
            case messages.Cancel(why):
                self._end(why)
            case messages.EndComponent(job_id):
                self._components.end(self.job, job_id, "")
            case messages.Signal(number, whom, job_id):
                self._deliver(number, whom, job_id)
            case messages.TellStep(label, text, job_id):
                self._tell_steps(label, text, job_id)
            case messages.Suspend():
                suspension.stop(self.state, self.job)
            case messages.Resume():
                suspension.resume(self.state, self.job)
            case messages.Notify(text):
                batch_step.say(self._stderr, text)
            case messages.Complete(status):
                self._status = status
            case _:
                log(f"error: JobId={self.job.label}: unknown order: {order.kind} {order.value}")

    def _tell_steps(self, label: str, order: str, job_id: int | None) -> None:
        """Pass an order to a step; one of the leader, or of an ordinary job, to all parts of it."""
        for step in job_processes.running_steps(self.state, self.job):
            its_own = job_id in {None, step.job_id, self.job.job_id}
            if its_own and label in {step.label, str(step.step_id)}:
                self._tell(step, order)

    def _deliver(self, number: int, whom: str, job_id: int | None = None) -> None:
        """A signal to the steps, to the batch shell alone, or (full) to both and to what the shell started besides.

        To a component beside the leader: to its steps, for it has nothing else.
        """
        if job_id not in {None, self.job.job_id}:
            for step in job_processes.running_steps(self.state, self.job):
                if step.job_id == job_id:
                    self._tell(step, f"signal {number}")
            return
        if whom == "batch" and self._pid and self._status is None:
            processes.kill([self._pid], number)
        if whom == "full":
            processes.kill(job_processes.outside_steps(self.state, self.job), number)
        if whom in {"steps", "full"}:
            for step in job_processes.running_steps(self.state, self.job):
                self._tell(step, f"signal {number}")

    def _tell(self, step: Step, order: str) -> None:
        """Pass an order to a step's srun; where that does not listen, do it without."""
        if not send(self.state.directory, step.job_id, step.label, order):
            word, _, value = order.partition(" ")
            number = int(value) if word == "signal" else signal.SIGKILL if word == "kill" else signal.SIGTERM
            processes.kill(job_processes.of_step(step), number)

    def _end(self, why: str) -> None:
        """Ask everything to end, and say so in the log; KillWait later it is no question any more."""
        if self._ending:
            return
        self._ending, self._kill_at = True, now() + self.state.settings.kill_wait
        if self.job.suspended_at:  # who stands still does not hear
            suspension.resume(self.state, self.job)
        if self._stderr >= 0 and self._status is None:
            batch_step.say_cancelled(self._stderr, self.job, why)
        for step in job_processes.running_steps(self.state, self.job):
            self._tell(step, f"cancel {why}".rstrip())
        # What the batch shell has started hears nothing, as under proctrack/cgroup.
        if self._pid and self._status is None:
            processes.terminate([self._pid])

    def _wind_up(self) -> None:
        """The script is over: what it left behind is killed, steps that still run are asked first."""
        state, reason = self._verdict()
        with self.state.transaction():
            self.state.update_whole(self.job.job_id, state=state, reason=reason, end_time=now(), completing=True)
        self._ending, self._kill_at = True, now() + self.state.settings.kill_wait
        for step in job_processes.running_steps(self.state, self.job):
            self._tell(step, "cancel")

    def _verdict(self) -> tuple[str, str]:
        """The state that the script's end means for the job, and the reason with it."""
        status = self._status or 0
        if status == 0:
            return "COMPLETED", "None"
        ends = [step.exit_code for part in self.state.whole(self.job) for step in self.state.steps(part.job_id)]
        if memory.looks_killed(status, ends) and self._oom.rose():
            self._status = memory.OUT_OF_MEMORY
            return "OUT_OF_MEMORY", "OutOfMemory"
        return "FAILED", "NonZeroExitCode" if os.WIFEXITED(status) else "JobLaunchFailure"

    def _is_over(self) -> bool:
        if self._kill_at and now() >= self._kill_at:
            self._kill()
        if self._pid and self._status is None:
            return False
        # With the batch shell goes what it has started.
        processes.kill(job_processes.outside_steps(self.state, self.job), signal.SIGKILL)
        return not job_processes.all_of(self.state, self.job)

    def _kill(self) -> None:
        """First by way of the steps' own sruns, which book it, then with force."""
        if not self._force_at:
            self._force_at = now() + _GRACE_SECONDS
            for step in job_processes.running_steps(self.state, self.job):
                self._tell(step, "kill")
            processes.kill(job_processes.outside_steps(self.state, self.job), signal.SIGKILL)
        elif now() >= self._force_at:
            processes.kill(job_processes.all_of(self.state, self.job), signal.SIGKILL)

    def _abandon(self) -> NoReturn:
        """The directory, or the job's record, is gone: the job goes too."""
        for _ in range(100):
            left = [process.pid for process in processes.below([os.getpid()])]
            processes.kill(left, signal.SIGKILL)
            processes.reap()
            if not left:
                break
            time.sleep(_ENDING_SECONDS)
        os._exit(0)

    def _book_end(self) -> None:
        status = self._status or 0
        with self.state.transaction():
            job = self.state.job(self.job.job_id) or self.job
            self._components.release_all()
            for part in self.state.whole(job):
                self.state.update_job(part.job_id, derived_exit_code=book_steps(self.state, part, status))
            if job.state == "PENDING":
                recovery.requeue(self.state, job)
            else:
                self.state.update_whole(job.job_id, completing=False, exit_code=status)
        shutil.rmtree(batch_step.script_path(self.state, job).parent, ignore_errors=True)
        self._sleeper.close()
        controller_start.ensure(self.state)


def main(state: State, job: Job) -> None:
    """Supervise a job that was given nodes."""
    Supervisor(state, job).run()
