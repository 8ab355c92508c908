"""Messages of srun and slurmstepd on stderr, and the exit code of srun."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from hpc_kit.slurm.option_values import fold_indices
from pocketslurm.resources import OUT_OF_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


ERROR, INFO = -1, 0
"""Verbosity that a message needs: each -Q subtracts one."""


class SrunMessages:
    """Prints the messages of one srun.

    Attributes:
        verbosity: 0 unless -v or -Q were given.
    """

    def __init__(self, verbosity: int = 0) -> None:
        self.verbosity = verbosity

    def info(self, text: str) -> None:
        """Print a line that -Q silences."""
        self._say(INFO, f"srun: {text}")

    def error(self, text: str) -> None:
        """Print a line that -QQ silences."""
        self._say(ERROR, f"srun: error: {text}")

    def notes(self, lines: tuple[str, ...]) -> None:
        """Print warnings about options; -Q does not silence them."""
        for line in lines:
            write_stderr(f"srun: {line}\n")

    def _say(self, level: int, text: str) -> None:
        if self.verbosity >= level:
            write_stderr(f"{text}\n")


def write_stderr(text: str) -> None:
    """Write to stderr, and ignore errors."""
    # A closed terminal must not end the step, and print would keep the text in a buffer that a fork copies.
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="surrogateescape"))


def format_tasks(tasks: Sequence[int]) -> str:
    """Return `task 3` or `tasks 1-2`."""
    return f"task{'s' if len(tasks) != 1 else ''} {fold_indices(tasks, steps=False)}"


class TaskExits:
    """The ended tasks of a step.

    Attributes:
        cancelled: srun was aborted; ends of tasks are not reported any more.
        status: The wait status of the step; None before the first end.
        bad: A task has ended with a status other than 0.
        killed: SIGTERM or SIGKILL has ended a task.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self.status: int | None = None
        self.bad = False
        self.killed = False
        self._oom_reported = False

    def record(self, node: str, tasks: Sequence[int], status: int) -> str | None:
        """Record tasks of a node that ended with the same status. Return the line to print, if any."""
        self._keep_highest(status)
        text = self._describe_end(status)
        return text and f"{node}: {format_tasks(tasks)}: {text}"

    def _keep_highest(self, status: int) -> None:
        """Record the status if it is the highest: out of memory, then signals, then exit codes."""
        self.bad = self.bad or status != 0
        if status != OUT_OF_MEMORY and os.WIFSIGNALED(status):
            self.killed = self.killed or os.WTERMSIG(status) in {signal.SIGKILL, signal.SIGTERM}
        if self.status is None or _rank(status) > _rank(self.status):
            self.status = status

    def _describe_end(self, status: int) -> str | None:
        # slurmstepd reports an out-of-memory kill once for each step, not for each task.
        if status == OUT_OF_MEMORY:
            reported, self._oom_reported = self._oom_reported, True
            return None if reported else "Out Of Memory"
        if os.WIFSIGNALED(status):
            core = " (core dumped)" if os.WCOREDUMP(status) else ""
            return None if self.cancelled else f"{signal.strsignal(os.WTERMSIG(status))}{core}"
        return f"Exited with exit code {os.WEXITSTATUS(status)}" if status else None


def highest_exit_code(reports: Iterable[TaskExits]) -> int:
    """Return the highest wait status of a step's parts."""
    return max((exits.status for exits in reports if exits.status is not None), key=_rank, default=0)


def _rank(status: int) -> tuple[int, int]:
    # A wait status has the signal in its low bits and the exit code above them, so the numbers do not compare.
    if status == OUT_OF_MEMORY:
        return 2, 0
    if os.WIFSIGNALED(status):
        return 1, os.WTERMSIG(status)
    return 0, os.WEXITSTATUS(status)
