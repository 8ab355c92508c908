"""How the embedded Slurm says no; `command_line` prints it."""

from __future__ import annotations

BAD_OPTION = 255
"""Exit status of sbatch, salloc and srun for an option that they do not understand."""

_FAILED = {
    "salloc": "Job submit/allocate failed",
    "sbatch": "Batch job submission failed",
    "srun": "Unable to allocate resources",
}
"""A command's phrase for a request that did not get through."""


class CommandError(Exception):
    """Slurm says no.

    Args:
        lines: What the command prints behind its own name: `error: ...`, `fatal: ...`.
        denied: The controller's own words; the command says what failed before them.
        status: Exit status of the command.
    """

    def __init__(self, *lines: str, denied: str = "", status: int = 1) -> None:
        super().__init__(*lines, denied)
        self.lines = lines
        self.denied = denied
        self.status = status

    def text_for(self, command: str) -> str:
        """All lines, as the command prints them."""
        lines = [*self.lines, f"error: {_FAILED[command]}: {self.denied}"] if self.denied else self.lines
        return "".join(f"{command}: {line}\n" for line in lines)


class UsageError(CommandError):
    """The command line is wrong; behind the words the command says where the right ones stand."""

    def text_for(self, command: str) -> str:
        """Slurm's two lines."""
        return f'{super().text_for(command)}Try "{command} --help" for more information\n'


class PlainError(CommandError):
    """Something else is wrong; its words are printed as they stand."""

    def __str__(self) -> str:
        return self.lines[0]

    def text_for(self, command: str) -> str:  # noqa: ARG002 - words of whichever command
        """Its own words."""
        return f"{self}\n"
