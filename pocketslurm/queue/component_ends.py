"""The components of a running heterogeneous job that end before it does: cancelled, or out of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketslurm.queue import controller_start, deadlines, job_processes
from pocketslurm.queue.state import now

if TYPE_CHECKING:
    from collections.abc import Callable

    from pocketslurm.queue.records import Job, Step
    from pocketslurm.queue.state import State


class ComponentEnds:
    """Ends components beside the leader, whose job goes on without them.

    Args:
        tell: Passes an order to a step.
    """

    def __init__(self, state: State, tell: Callable[[Step, str], None]) -> None:
        self._state = state
        self._tell = tell
        self._ending: set[int] = set()

    def running(self, job: Job) -> list[Job]:
        """The components beside the leader that run."""
        return [part for part in self._state.whole(job)[1:] if part.state == "RUNNING"]

    def watch_clock(self, job: Job) -> None:
        """End those whose own time limit is reached."""
        for part in self.running(job):
            end = deadlines.end_of_time(part, self._state.settings.minute)
            if end and now() >= end:
                with self._state.transaction():
                    over = {"state": "TIMEOUT", "reason": "TimeLimit", "completing": True, "end_time": now()}
                    self._state.update_job(part.job_id, **over)
                self.end(job, part.job_id, "TIME LIMIT")

    def end(self, job: Job, job_id: int, why: str) -> None:
        """Ask the steps of one, whose record says already that it is over, to end."""
        self._ending.add(job_id)
        for step in job_processes.running_steps(self._state, job):
            if step.job_id == job_id:
                self._tell(step, f"cancel {why}".rstrip())

    def release(self, job: Job) -> None:
        """Take back the nodes of those whose steps are over."""
        busy = {step.job_id for step in job_processes.running_steps(self._state, job)} if self._ending else set()
        if over := self._ending - busy:
            self._book(over)
            controller_start.ensure(self._state)

    def release_all(self) -> None:
        """Nothing of the whole job is left; in the transaction that books its end."""
        self._book(set(self._ending))

    def _book(self, over: set[int]) -> None:
        for job_id in over:
            self._state.update_job(job_id, completing=False)
        self._ending -= over
