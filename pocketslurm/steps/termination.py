"""Ends a step early: after a bad exit, a time limit, a cancellation, a signal or Ctrl-C."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.processes import kill, terminate, write_cancellation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pocketslurm.queue.records import Step
    from pocketslurm.steps.messages import SrunMessages
    from pocketslurm.steps.running_step import Timers

_ABORT_SECONDS = 2
"""Seconds that srun waits in addition to KillWait."""

_AGAIN_SECONDS = 0.1


class StepPolicy(NamedTuple):
    """The policy of a step.

    Attributes:
        kill_bad_exit: End the step when a task fails, with SIGKILL `kill_wait` seconds after SIGTERM.
        job_kill_wait: The cluster's KillWait, for messages.
        max_wait: Seconds from the end of the first task to the end of the step; 0 for any number.
        time_limit: Seconds until the step is cancelled; None without a limit.
        pass_interrupt: The first SIGINT goes to the tasks (-X); with `quit_on_interrupt` it ends the step.
    """

    kill_bad_exit: bool = False
    kill_wait: float = 3.0
    job_kill_wait: float = 30.0
    max_wait: int = 0
    time_limit: float | None = None
    pass_interrupt: bool = False
    quit_on_interrupt: bool = False


class StepTermination:
    """Ends one step early.

    Args:
        tasks: Returns the pids of running tasks.
        processes: Returns the pids of all processes of the step.

    Attributes:
        cancelled: It was cancelled; `timed_out`: its time limit was reached.
        killing: Its processes get SIGKILL.
        name: The id of the step: `12.0`.
    """

    def __init__(
        self,
        step: Step,
        policy: StepPolicy,
        messages: SrunMessages,
        timers: Timers,
        tasks: Collection[int],
        processes: Callable[[], list[int]],
    ) -> None:
        self.cancelled = False
        self.timed_out = False
        self.killing = False
        self.name = f"{step.job_id}.{step.label}"
        self._node = step.nodes[0]
        self._policy = policy
        self._messages = messages
        self._timers = timers
        self._tasks = tasks
        self._processes = processes
        self._is_announced = False
        self._stopped = False
        if policy.time_limit is not None:
            timers.set(f"limit {self.name}", policy.time_limit, self.time_out)

    def terminate(self) -> None:
        """End the step with SIGTERM because of --kill-on-bad-exit."""
        self._announce()
        self._terminate_tasks(self._policy.kill_wait)

    def print_terminating(self) -> None:
        """Print the line with which srun ends a step."""
        self._messages.info(f"launch/slurm: _step_signal: Terminating StepId={self.name}")

    def abort(self) -> None:
        """End the step with SIGKILL."""
        self._cancel("")
        self.kill()

    def time_out(self) -> None:
        """End the step because its time limit is reached."""
        self.timed_out = True
        self._announce("TIME LIMIT")
        self._terminate_tasks(self._policy.job_kill_wait)

    def cancel(self, why: str) -> None:
        """End the step because its job is cancelled, with the reason."""
        self._cancel(why)
        self._terminate_tasks(self._policy.job_kill_wait)

    def deliver(self, number: int) -> None:
        """Send a signal to the tasks, not to their children, as with proctrack/cgroup."""
        if number in {signal.SIGTERM, signal.SIGKILL}:
            self._announce()
        # SIGCONT must reach every process that an earlier SIGSTOP has reached.
        whole = number in {signal.SIGKILL, signal.SIGSTOP} or (number == signal.SIGCONT and self._stopped)
        kill(self._processes() if whole else self._tasks, number)
        self._stopped = number == signal.SIGSTOP or (self._stopped and not whole)

    def kill(self) -> None:
        """Send SIGKILL until no process is left."""
        self.killing = True
        if left := self._processes():
            kill(left, signal.SIGKILL)
            self._timers.set(f"again {self.name}", _AGAIN_SECONDS, self.kill)

    def _terminate_tasks(self, kill_wait: float) -> None:
        # Only the tasks get SIGTERM, and not their children, as with proctrack/cgroup.
        terminate(self._tasks)
        self._timers.set(f"kill {self.name}", kill_wait, self.kill)

    def _cancel(self, why: str) -> None:
        if not self.cancelled:
            self.cancelled = True
            seconds = round(self._policy.job_kill_wait) + _ABORT_SECONDS
            self._messages.info(f"Job step aborted: Waiting up to {seconds} seconds for job step to finish.")
        self._announce(why)

    def _announce(self, why: str = "") -> None:
        """Print the message of slurmstepd once."""
        if not self._is_announced:
            self._is_announced = True
            write_cancellation(f"STEP {self.name} ON {self._node}", why)
