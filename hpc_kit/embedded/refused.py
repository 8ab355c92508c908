"""How the embedded Slurm says no."""

from __future__ import annotations


class Refused(Exception):
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

    def said_by(self, command: str, failed: str) -> str:
        """All lines, as the command prints them: `failed` is its phrase for a request that did not get through."""
        lines = [*self.lines, f"error: {failed}: {self.denied}"] if self.denied else self.lines
        return "".join(f"{command}: {line}\n" for line in lines)
