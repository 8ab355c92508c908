"""The questions of `hpc-kit init`: it offers what it found, and asks on a terminal only."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from hpc_kit.cli.output import print_line

if TYPE_CHECKING:
    from pathlib import Path

MOST_SCRIPTS = 5
"""A project with more batch scripts is not asked about each of them."""

_PATTERNS = ("*.sbatch", "*.slurm", "*.sh")


class Offers(NamedTuple):
    """Additional work of `init`: write a cluster file, and convert these batch scripts."""

    discover: bool
    scripts: tuple[Path, ...]


def ask(folder: Path, discover: bool | None, scripts: tuple[Path, ...]) -> Offers:
    """Return the answers of the command line, and ask for the missing ones on a terminal.

    Args:
        folder: The project.
        discover: The answer about the cluster file; None: ask.
        scripts: The batch scripts to convert; none: ask for each that the project has.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Offers(bool(discover), scripts)
    if discover is None:
        discover = not (folder / "env" / "default.toml").exists() and _offer_cluster()
    if not scripts:
        scripts = tuple(
            script
            for script in find_scripts(folder)
            if not _job_of(folder, script).exists()
            and click.confirm(f"Convert {script} to {_job_of(folder, script)}?", default=True)
        )
    return Offers(discover, scripts)


def find_scripts(folder: Path) -> list[Path]:
    """Return the batch scripts of a project; none if it has many."""
    found = [
        path
        for pattern in _PATTERNS
        for path in sorted(folder.glob(pattern))
        if path.is_file() and b"#SBATCH" in path.read_bytes()[: 1 << 16]
    ]
    return found if len(found) <= MOST_SCRIPTS else []


def carry_out(context: click.Context, folder: Path, offers: Offers) -> None:
    """Write the cluster file and the job files."""
    from hpc_kit.cli import cluster, import_script

    if offers.discover:
        context.invoke(cluster.discover_command, write=folder / "env" / "default.toml")
    for script in offers.scripts:
        job = _job_of(folder, script)
        if job.exists():
            print_line("kept", f"{job}: yours")
        else:
            context.invoke(import_script.command, script=script, output=job, as_json=False)


def _job_of(folder: Path, script: Path) -> Path:
    return folder / "jobs" / f"{script.stem}.toml"


def _offer_cluster() -> bool:
    """Offer a cluster file if a Slurm of the system is here."""
    from hpc_kit.errors import SlurmUnavailable
    from hpc_kit.slurm.client import find_slurm, is_embedded
    from hpc_kit.slurm.versions import detect_version

    try:
        here = not is_embedded(os.environ) and find_slurm(os.environ) is not None
    except SlurmUnavailable:
        return False
    if not here:
        return False
    version = detect_version(os.environ)
    name = f"Slurm {version}" if version else "A Slurm"
    return click.confirm(f"{name} is here. Write env/default.toml with its partitions and limits?", default=True)
