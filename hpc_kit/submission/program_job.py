"""The job of a program without a job file: `submit -j 4x2 -- python train.py`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.check.prerequisites import programs_of
from hpc_kit.spec.job import Job, Launch

if TYPE_CHECKING:
    from collections.abc import Sequence


def job_for_program(command: Sequence[str]) -> Job:
    """Return a job that runs a command. The runtime starts it, so any program works.

    A Python file is started by `python`.
    """
    words = ("python", *command) if command[0].endswith(".py") else tuple(command)
    stem = re.sub(r"[^\w.+-]+", "_", Path(_program_name(words)).name.removesuffix(".py")) or "job"
    return Job(name=stem, description=shlex.join(words), command=words, launch=Launch(bootstrap=True))


def _program_name(words: Sequence[str]) -> str:
    """Return the file or module that a command line runs, behind launchers and their options."""
    programs = programs_of(words)
    last = next((each for each in reversed(programs) if each.kind != "wrapper"), programs[0])
    return last.file or last.module or last.program
