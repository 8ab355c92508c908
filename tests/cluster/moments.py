"""The jobs whose traces are recorded, read from moments.toml beside this file."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple


class Job(NamedTuple):
    """One job; moments.toml says what the words mean."""

    name: str
    reaches: str
    script: str = "true"
    options: str = ""
    then: tuple[str, ...] = ()
    when: str = "RUNNING"

    def argv(self, ids: dict[str, str]) -> list[str]:
        """How it is submitted."""
        options = shlex.split(self.options.format_map(ids))
        if ":" in options:  # components are separated on the command line, and --wrap belongs to the first
            at = options.index(":")
            return [*self._head(), *options[:at], f"--wrap={self.script}", *options[at:]]
        return [*self._head(), *options, f"--wrap={self.script}"]

    def _head(self) -> list[str]:
        return ["sbatch", "--parsable", f"--job-name={self.name}"]


def load() -> dict[str, list[Job]]:
    """The jobs of each moment."""
    table = tomllib.loads((Path(__file__).parent / "moments.toml").read_text())
    return {moment: [Job(**entry) for entry in entries] for moment, entries in table.items()}
