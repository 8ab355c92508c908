"""How srun books the end of its step, part by part."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

from pocketslurm import resources
from pocketslurm.queue.messages import wake
from pocketslurm.queue.state import now
from pocketslurm.steps.task_exits import accounted_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import State
    from pocketslurm.steps.running_part import Part


class Books:
    """The records of one running step of this job, or of any component of it."""

    def __init__(self, state: State, job: Job) -> None:
        self._state = state
        self._job = job
        self._done: set[int] = set()

    def part(self, part: Part) -> None:
        """Book a part that is over before others; where that cannot be done now, it is with the whole."""
        with contextlib.suppress(OSError, sqlite3.Error):
            self._end(part)
            self._done.add(part.index)
        self._state.close()

    def whole(self, parts: Iterable[Part]) -> None:
        """Book what is left; what all have used stands with the first part."""
        used = resources.children_usage()._asdict()
        for part in parts:
            if part.index not in self._done:
                self._end(part)
            if part.index == 0:
                self._state.update_step(part.step, **used)

    def _end(self, part: Part) -> None:
        status = part.report.status or 0
        ending = "TIMEOUT" if part.ending.timed_out else accounted_state(status)
        self._state.update_step(part.step, state=ending, exit_code=status, end_time=now())
        if self._job.het_job_id is not None:  # a component that was cancelled is over now
            wake(self._state.directory, self._job.leader_id)
