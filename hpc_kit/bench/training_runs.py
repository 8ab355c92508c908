"""The shipped training programs as processes of their own, run to their end, and the summaries that they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from hpc_kit.bench import processes
from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.run_files import RUN_VARIABLE, SUMMARY
from hpc_kit.runtime.launchers.agreement import CHOICE
from hpc_kit.runtime.process_group import LAYOUT_VARIABLE
from hpc_kit.slurm.command_environment import submit_environment
from hpc_kit.spec import search_path

Summary: TypeAlias = dict[str, float | str]

_LAST_LINES = 12


def training(name: str) -> Path:
    """A program of jobs/train: the project's own before the shipped one.

    Raises:
        SpecError: There is none.
    """
    folders = search_path.search_folders("jobs", search_path.current_folder())
    for folder in folders:
        if (path := folder / "train" / name).is_file():
            return path.resolve()
    raise SpecError(
        f"there is no program {name}",
        found=f"none in {', '.join(str(folder / 'train') for folder in folders)}",
        remedy="hpc-kit init --job ddp_1node puts the programs into a project",
    )


def environment(run: Path, *, threads: int = 1, **variables: object) -> dict[str, str]:
    """Of a program of its own: nothing of the job or step around it but its run folder, and what is said here."""
    dropped = {LAYOUT_VARIABLE, CHOICE}
    own = {name: value for name, value in submit_environment(os.environ).items() if name not in dropped}
    own |= {"OMP_NUM_THREADS": str(threads), RUN_VARIABLE: str(run)}
    return own | {name: str(value) for name, value in variables.items()}


def of_rank(rank: int, world_size: int, local: tuple[int, int], master: tuple[str, int]) -> dict[str, object]:
    """Variables of one rank: `local` is its rank on its host and their number there, `master` where all meet."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", CHOICE)
    return dict(zip(names, (rank, world_size, *local, *master, "env"), strict=True))


def run(argv: Sequence[str], environ: Mapping[str, str], timeout: float) -> str | None:
    """Run a command to its end; its last words where it failed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        # A rank that runs this is sent SIGTERM when the bench is over; what it has begun would stay.
        with processes.interruptible():
            process = processes.begin(argv, environ, log)
            try:
                ended = f"exit code {code}" if (code := process.wait(timeout)) else ""
            except subprocess.TimeoutExpired:
                ended = f"not ended within {timeout:g} s"
            finally:
                processes.end(process)
        if not ended:
            return None
        log.seek(0)
        lines = [line for line in log.read().splitlines() if line.strip()][-_LAST_LINES:]
        return "\n".join([ended, *lines])


def summary(folder: Path) -> Summary:
    """What rank 0 of a training has left.

    Raises:
        JobFailed: It left nothing.
    """
    try:
        found: Summary = json.loads((folder / SUMMARY).read_text())
    except (OSError, ValueError) as error:
        raise JobFailed("the training left no summary", found=str(error), remedy="its output, above") from error
    return found


def python(program: Path, *words: str) -> list[str]:
    """The command line of a program."""
    return [sys.executable, str(program), *words]
