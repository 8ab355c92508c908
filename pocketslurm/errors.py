"""Errors of commands. `__main__` prints them in the words of Slurm."""

from __future__ import annotations

from typing import ClassVar

from hpc_kit.slurm.errors import HpcKitError

BAD_OPTION = 255
"""Exit status of sbatch, salloc and srun for an option that they do not understand."""

INVALID_GRES = "Invalid generic resource (gres) specification"
INVALID_JOB_ID = "Invalid job id specified"
INVALID_NODE_NAME = "Invalid node name specified"
JOB_OVER = "Job/step already completing or completed"
NOT_AVAILABLE = "Requested node configuration is not available"

_FAILED = {
    "salloc": "Job submit/allocate failed",
    "sbatch": "Batch job submission failed",
    "srun": "Unable to allocate resources",
}
"""Phrases of the commands for a request that the controller refused."""


class CommandError(Exception):
    """Slurm refuses the command.

    Args:
        lines: Lines that the command prints after its name: `error: ...`, `fatal: ...`.
        denied: Message of the controller; the command adds the failed operation.
        status: Exit status of the command.
    """

    def __init__(self, *lines: str, denied: str = "", status: int = 1) -> None:
        super().__init__(*lines, denied)
        self.lines = lines
        self.denied = denied
        self.status = status

    def text_for(self, command: str) -> str:
        """Return all lines as the command prints them."""
        lines = [*self.lines, f"error: {_FAILED[command]}: {self.denied}"] if self.denied else self.lines
        return "".join(f"{command}: {line}\n" for line in lines)


class UsageError(CommandError):
    """The command line is wrong; the message refers to --help."""

    def text_for(self, command: str) -> str:
        """Return the message and the line about --help."""
        return f'{super().text_for(command)}Try "{command} --help" for more information\n'


class PlainError(CommandError):
    """An error whose message is printed unchanged."""

    def __str__(self) -> str:
        return self.lines[0]

    def text_for(self, command: str) -> str:  # noqa: ARG002 - words of whichever command
        """Return the message."""
        return f"{self}\n"


class StateError(HpcKitError):
    """The state directory, its database or the code of the package cannot be used."""

    exit_status: ClassVar[int] = 1


class SettingsError(HpcKitError):
    """The settings cannot be read, or contain a wrong value."""
