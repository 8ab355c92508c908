"""What srun, and the slurmstepd that it stands in for, say on stderr."""

from __future__ import annotations

import os
import time

ERROR, INFO, VERBOSE = -1, 0, 1
"""How loud srun must be for a line: -Q takes one away, -v adds one."""


class Talk:
    """The voice of one srun.

    Attributes:
        verbosity: 0 unless -v or -Q were given.
        raw: The terminal is in raw mode: lines end with a carriage return too.
    """

    def __init__(self, verbosity: int = 0) -> None:
        self.verbosity = verbosity
        self.raw = False

    def info(self, text: str) -> None:
        """A line that -Q silences."""
        self._say(INFO, f"srun: {text}")

    def error(self, text: str) -> None:
        """A line that -QQ silences."""
        self._say(ERROR, f"srun: error: {text}")

    def detail(self, text: str) -> None:
        """A line for -v."""
        self._say(VERBOSE, f"srun: {text}")

    def notes(self, lines: tuple[str, ...]) -> None:
        """Lines of the options' own check, which come before -Q has any effect."""
        for line in lines:
            write(f"srun: {line}\n")

    def cancelled(self, step: str, node: str, why: str) -> None:
        """What slurmstepd says on a step's end by order."""
        cause = f" DUE TO {why}" if why else ""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        write(f"slurmstepd: error: *** STEP {step} ON {node} CANCELLED AT {stamp}{cause} ***{self._end}")

    @property
    def _end(self) -> str:
        return "\r\n" if self.raw else "\n"

    def _say(self, level: int, text: str) -> None:
        if self.verbosity >= level:
            write(text + self._end)


def write(text: str) -> None:
    """Write to stderr; that nobody reads it is no reason to stop."""
    try:
        os.write(2, text.encode(errors="surrogateescape"))
    except OSError:
        return
