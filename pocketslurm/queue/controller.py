"""The controller: one process that starts what may start, and that goes when nothing is left to do.

It runs no job itself. Each job has a supervisor, a fork of the controller, that goes on without it. All that both
need is imported when the controller starts: what becomes of the package's files later on does not concern them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import traceback
from typing import TYPE_CHECKING, NoReturn

from pocketslurm import limits, processes
from pocketslurm.queue import controller_start, supervisor, wakeup
from pocketslurm.queue.database import damaged
from pocketslurm.queue.journal import log
from pocketslurm.queue.recovery import book_lost, sweep
from pocketslurm.queue.scheduler import Pass
from pocketslurm.queue.state import now, unusable

if TYPE_CHECKING:
    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import State

LOOK_SECONDS = 2.0
"""How often it looks by itself: for supervisors that died, and for its own directory."""

_PURGE_SECONDS = 60.0


class Controller:
    """The owner of the lock."""

    def __init__(self, state: State, lock: int) -> None:
        self.state = state
        self._lock = lock
        self._supervisors: dict[int, int] = {}
        self._next_purge = 0.0
        self._ready = False
        self._sleeper = wakeup.Sleeper(state.directory, wakeup.CONTROLLER)

    def run(self) -> None:
        """Look, start, sleep; until the queue is empty or the directory is gone."""
        processes.adopt_orphans("hpc-slurmctld")
        limits.lift()
        while not self._directory_gone():
            try:
                again = self._look()
            except (
                OSError,
                sqlite3.Error,
            ) as error:  # a full disk, a process table at its end: the next look may fare better
                if damaged(error):
                    log(f"error: {unusable(self.state.directory, error)}")
                    break
                log(f"error: {error}")
                again = now() + LOOK_SECONDS
            if again is None:
                break
            self._report_ready()
            self.state.close()
            self._sleeper.sleep(min(again - now(), LOOK_SECONDS) if again else LOOK_SECONDS)
        self._sleeper.close()

    def _look(self) -> float | None:
        """One pass; when to look again at the latest (0: whenever), None when all is done."""
        self._reap()
        self.state.reload()
        self._book_lost()
        self._purge()
        with self.state.transaction():
            outcome = Pass(self.state, now()).run()
        for job in outcome.started:
            self._supervise(job)
        return None if self._leave() else outcome.again

    def _report_ready(self) -> None:
        if not self._ready:
            self._ready = True
            with self.state.transaction():
                self.state.set_meta(controller_start.READY, processes.identity(os.getpid()))

    def _leave(self) -> bool:
        """Give up the post if the queue is empty: whoever submits from now on finds it vacant."""
        with self.state.transaction():
            left = self.state.execute("SELECT count(*) FROM jobs WHERE state IN ('PENDING', 'RUNNING') OR completing")
            if int(left.fetchone()[0]) or self._supervisors:
                return False
            self.state.set_meta(controller_start.META, "")
        return True

    def _reap(self) -> None:
        for pid in processes.reap():
            self._supervisors.pop(pid, None)

    def _book_lost(self) -> None:
        """Jobs that nobody watches any more: their supervisor was killed, or the machine went down."""
        for job in self.state.jobs("(state = 'RUNNING' OR completing) AND het_offset = 0"):
            mine = job.job_id in self._supervisors.values()
            if not mine and not processes.alive(job.supervisor):
                sweep(self.state, job, spare={os.getpid(), *self._supervisors})
                log(book_lost(self.state, job))

    def _supervise(self, job: Job) -> None:
        """Fork the job's supervisor."""
        self.state.close()
        pid = os.fork()
        if pid:
            self._supervisors[pid] = job.job_id
            return
        try:
            signal.set_wakeup_fd(-1)
            processes.close_files()
            os.setsid()
            supervisor.main(self.state, job)
        except BaseException as error:  # noqa: BLE001 - the log is all that will tell of it
            log(f"error: JobId={job.label} has lost its supervisor: {type(error).__name__}: {error}")
            traceback.print_exc()
        finally:
            os._exit(0)

    def _purge(self) -> None:
        if now() < self._next_purge:
            return
        self._next_purge = now() + _PURGE_SECONDS
        with self.state.transaction():
            self.state.purge(now())

    def _directory_gone(self) -> bool:
        return os.fstat(self._lock).st_nlink == 0


def main(state: State, lock: int) -> NoReturn:
    """Be the controller until there is nothing left to do, then end the process."""
    try:
        with state.transaction():
            state.set_meta(controller_start.META, processes.identity(os.getpid()))
        Controller(state, lock).run()
    except BaseException:  # noqa: BLE001 - the log is all that will tell of it
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            state.close()
        os._exit(0)
