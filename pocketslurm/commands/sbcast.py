"""The command sbcast: copies a file to the nodes of a job, which all share this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pocketslurm import option_support
from pocketslurm.errors import CommandError, PlainError
from pocketslurm.getopt import NONE, OPTIONAL, REQUIRED, Table
from pocketslurm.queue.state import StateDirectory
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = Table(
    ("compress", "C", OPTIONAL), ("exclude", "", REQUIRED), ("fanout", "F", REQUIRED), ("force", "f", NONE),
    ("jobid", "j", REQUIRED), ("send-libs", "", OPTIONAL), ("preserve", "p", NONE), ("size", "s", REQUIRED),
    ("timeout", "t", REQUIRED), ("treewidth", "", REQUIRED), ("verbose", "v", NONE), ("version", "V", NONE),
    ("help", "", NONE), ("usage", "", NONE),
    notes=option_support.SBCAST,
)  # fmt: skip


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    given, words = OPTIONS.parse(argv)
    flags = {name: value or "" for name, value in given}
    if flags.keys() & {"version", "help", "usage"}:
        print(f"slurm {SLURM_VERSION}" if "version" in flags else "Usage: sbcast [OPTIONS] SOURCE DEST")
        return 0
    if len(words) != 2:
        raise PlainError(f'Need two file names, have {len(words)} names\nTry "sbcast --help" for more information')
    problem = _no_job(flags.get("jobid") or environ.get("SLURM_JOB_ID"), environ) or _copy(words[0], words[1], flags)
    if problem:
        raise CommandError(f"error: {problem}")
    return 0


def _no_job(named: str | None, environ: Mapping[str, str]) -> str:
    """Return the error message if no job runs: there are then no nodes to send a file to."""
    if not named:
        return "Need a job id to run this command.  Run from within a Slurm job or use the --jobid option."
    number = named.partition(".")[0]
    job = StateDirectory.open(environ).job(int(number)) if number.isdecimal() else None
    if job is None:
        return f"Slurm jobid {named} lookup error: Invalid job id specified"
    return "" if job.state == "RUNNING" else f"Slurm jobid {named} lookup error: Job has already finished"


def _copy(source: str, target: str, flags: Mapping[str, str]) -> str:
    """Copy a file as sbcast does; it overwrites a file only with --force."""
    path = Path(target)
    path = path / Path(source).name if target.endswith("/") or path.is_dir() else path
    if path.exists() and path.samefile(source):
        return ""
    if path.exists() and "force" not in flags:
        return f"REQUEST_FILE_BCAST({os.environ.get('SLURMD_NODENAME', 'localhost')}): File exists"
    try:
        (shutil.copy2 if "preserve" in flags else shutil.copy)(source, path)
    except OSError as error:
        return f"Can't open `{error.filename}`: {error.strerror}"
    return ""
