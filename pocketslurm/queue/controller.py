"""The controller: schedules jobs, forks a supervisor for each, recovers lost jobs, and ends with the last job.

Supervisors continue if the controller is killed. The controller imports all modules that it and they need at its start,
because an upgrade may replace the files of the package while a queue runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pocketslurm import processes, resources
from pocketslurm.queue import batch_step, controller_start, messages, supervisor
from pocketslurm.queue.controller_start import log
from pocketslurm.queue.database import is_damaged
from pocketslurm.queue.job_processes import pids_by_environment
from pocketslurm.queue.scheduler import LAUNCH_FAILED_HELD, SchedulingPass
from pocketslurm.queue.state import now, state_error
from pocketslurm.queue.submission import NOTHING_ALLOCATED, put_back

if TYPE_CHECKING:
    from collections.abc import Collection

    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import StateDirectory


LOOK_SECONDS = 2.0
"""Seconds between two checks for dead supervisors and for a deleted state directory."""

_PURGE_SECONDS = 60.0
"""Seconds between two deletions of old jobs."""

_MAX_LOSSES = 3
_SHORT_RUN_SECONDS = 10.0
"""A job that has lost its supervisor so often, now after such a short run, is held."""


class Controller:
    """The process that schedules the queue. It owns the lock, so there is only one."""

    def __init__(self, state: StateDirectory, lock: int) -> None:
        self.state = state
        self._lock = lock
        self._supervisors: dict[int, int] = {}
        self._next_purge = 0.0
        self._ready = False
        self._wakeup_pipe = messages.WakeupPipe(state.directory, messages.CONTROLLER)

    def run(self) -> None:
        """Run passes until the queue is empty or its directory is deleted."""
        processes.adopt_orphans("pocketslurmctld")
        resources.raise_limits()
        while not self._directory_gone():
            try:
                next_pass_at = self._run_pass()
            except (OSError, sqlite3.Error) as error:
                # A full disk or a full process table may be better at the next pass.
                if is_damaged(error):
                    log(f"error: {state_error(self.state.directory, error)}")
                    break
                log(f"error: {error}")
                next_pass_at = now() + LOOK_SECONDS
            if next_pass_at is None:
                break
            self._report_ready()
            self.state.close()
            self._wakeup_pipe.sleep(min(next_pass_at - now(), LOOK_SECONDS) if next_pass_at else LOOK_SECONDS)
        self._wakeup_pipe.close()

    def _run_pass(self) -> float | None:
        """Run one pass. Return the latest time of the next one (0: any time), or None if the queue is empty."""
        self._reap()
        self.state.reload()
        self._recover_lost_jobs()
        self._purge()
        with self.state.transaction():
            outcome = SchedulingPass(self.state, now()).run()
        for job in outcome.started:
            self._supervise(job)
        return None if self._unregister_if_idle() else outcome.next_pass_at

    def _report_ready(self) -> None:
        if not self._ready:
            self._ready = True
            with self.state.transaction():
                self.state.set_meta(controller_start.READY, processes.identity(os.getpid()))

    def _unregister_if_idle(self) -> bool:
        """Unregister if the queue is empty, so that the next submission starts a new controller."""
        # One transaction, because a job that is submitted between the statements would have no controller.
        with self.state.transaction():
            left = self.state.execute("SELECT count(*) FROM jobs WHERE state IN ('PENDING', 'RUNNING') OR completing")
            if int(left.fetchone()[0]) or self._supervisors:
                return False
            self.state.set_meta(controller_start.META, "")
        return True

    def _reap(self) -> None:
        for pid in processes.reap():
            self._supervisors.pop(pid, None)

    def _recover_lost_jobs(self) -> None:
        """Recover jobs whose supervisor was killed, or was lost when the machine was restarted."""
        for job in self.state.jobs("(state = 'RUNNING' OR completing) AND het_offset = 0"):
            is_mine = job.job_id in self._supervisors.values()
            if not is_mine and not processes.is_alive(job.supervisor):
                clear_leftovers(self.state, job, spare={os.getpid(), *self._supervisors})
                log(recover_lost_job(self.state, job))

    def _supervise(self, job: Job) -> None:
        """Fork the job's supervisor."""
        self.state.close()
        pid = os.fork()
        if pid:
            self._supervisors[pid] = job.job_id
            return
        try:
            # Close all files: otherwise this process would keep the lock after the end of the controller.
            signal.set_wakeup_fd(-1)
            processes.close_files()
            os.setsid()
            supervisor.main(self.state, job)
        except BaseException as error:  # noqa: BLE001 - only the log can report it
            log(f"error: JobId={job.display_id} has lost its supervisor: {type(error).__name__}: {error}")
            traceback.print_exc()
        finally:
            os._exit(0)

    def _purge(self) -> None:
        if time.monotonic() < self._next_purge:
            return
        self._next_purge = time.monotonic() + _PURGE_SECONDS
        with self.state.transaction():
            self.state.purge(now())

    def _directory_gone(self) -> bool:
        # The path may exist again: only the lock file shows that the directory was deleted.
        return os.fstat(self._lock).st_nlink == 0


def main(state: StateDirectory, lock: int) -> NoReturn:
    """Run the controller until the queue is empty, then exit."""
    try:
        with state.transaction():
            state.set_meta(controller_start.META, processes.identity(os.getpid()))
        Controller(state, lock).run()
    except BaseException:  # noqa: BLE001 - only the log can report it
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            state.close()
        os._exit(0)


def clear_leftovers(state: StateDirectory, job: Job, spare: Collection[int]) -> None:
    """Kill the remaining processes of a job other than `spare`, and delete the copy of its script."""
    # A process may fork while it is found and killed, so the search is repeated.
    for _ in range(10):
        left = pids_by_environment(state, job, spare)
        if not left:
            break
        processes.kill(left, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(batch_step.script_path(state, job).parent, ignore_errors=True)


def recover_lost_job(state: StateDirectory, job: Job) -> str:
    """Requeue a job without a supervisor, or record NODE_FAIL. Return a line for the log."""
    with state.transaction():
        job = state.job(job.job_id) or job
        if not (job.state == "RUNNING" or job.completing) or processes.is_alive(job.supervisor):
            return ""
        # The supervisor ended before it registered.
        if job.state == "RUNNING" and not job.supervisor:
            return _requeue_unstarted(state, job)
        for step in [step for part in state.components(job) for step in state.steps(part.job_id)]:
            if step.state == "RUNNING":
                state.update_step(step, state="CANCELLED", end_time=now(), exit_code=signal.SIGKILL)
        # The job was being requeued.
        if job.state == "PENDING":
            put_back(state, job)
            return f"JobId={job.display_id} requeued without its supervisor"
        if job.state != "RUNNING":
            state.update_components(job.job_id, completing=False)
            return f"JobId={job.display_id} ended without its supervisor: {job.state}"
        if job.batch:
            _write_node_failure(job)
        if job.batch and job.requeue:
            is_held = job.restart_count >= _MAX_LOSSES and now() - job.start_time < _SHORT_RUN_SECONDS
            # Hold a job that kills its supervisor each time. It would restart forever.
            put_back(state, job._replace(priority=0, reason=LAUNCH_FAILED_HELD) if is_held else job)
            return f"JobId={job.display_id} lost its supervisor, requeued{' and held' if is_held else ''}"
        state.update_components(job.job_id, state="NODE_FAIL", reason="NodeDown", end_time=now(), exit_code=0)
        state.update_components(job.job_id, completing=False)
        return f"JobId={job.display_id} lost its supervisor: NODE_FAIL"


def _requeue_unstarted(state: StateDirectory, job: Job) -> str:
    """Requeue a job that got nodes but no supervisor; hold it after a few attempts."""
    is_held = job.attempt - job.restart_count > _MAX_LOSSES
    hold = {"priority": 0, "reason": LAUNCH_FAILED_HELD} if is_held else {}
    state.update_components(job.job_id, completing=False)
    state.update_components(job.job_id, state="PENDING", start_time=0.0, **NOTHING_ALLOCATED, **hold)
    return f"JobId={job.display_id} was not started, requeued{' and held' if is_held else ''}"


def _write_node_failure(job: Job) -> None:
    with contextlib.suppress(OSError), Path(job.std_err).open("r+b") as log:
        log.seek(0, os.SEEK_END)
        processes.write_cancellation(f"JOB {job.job_id} ON {job.nodes[0]}", "NODE FAILURE", log.fileno())
