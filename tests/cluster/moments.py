"""The jobs whose listings are recorded, read from moments.toml in this folder."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple


class Job(NamedTuple):
    """One job. moments.toml explains the fields."""

    name: str
    reaches: str
    script: str = "true"
    options: str = ""
    then: tuple[str, ...] = ()
    when: str = "RUNNING"

    def argv(self, ids: dict[str, str]) -> list[str]:
        """Return the command line of its submission."""
        options = shlex.split(self.options.format_map(ids))
        if ":" in options:  # a colon separates components, and --wrap belongs to the first component
            at = options.index(":")
            return [*self._head(), *options[:at], f"--wrap={self.script}", *options[at:]]
        return [*self._head(), *options, f"--wrap={self.script}"]

    def _head(self) -> list[str]:
        return ["sbatch", "--parsable", f"--job-name={self.name}"]


def load() -> dict[str, list[Job]]:
    """Return the jobs of each moment."""
    table = tomllib.loads((Path(__file__).parent / "moments.toml").read_text())
    return {moment: [Job(**entry) for entry in entries] for moment, entries in table.items()}
