"""Runs the shipped training programs as processes and reads their summaries."""

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
from hpc_kit.runtime.mesh import LAYOUT_VARIABLE
from hpc_kit.runtime.variables import CHOICE
from hpc_kit.slurm.command_environment import submit_environment
from hpc_kit.spec import search_path

Summary: TypeAlias = dict[str, float | str]


def find_training_program(name: str) -> Path:
    """Find a program of jobs/train, first in the project, then among the shipped ones.

    Raises:
        SpecError: There is no such program.
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


def training_command(name: str, *words: str) -> list[str]:
    """Return the command line of a program of jobs/train.

    Raises:
        SpecError: There is no such program.
    """
    return [sys.executable, str(find_training_program(name)), *words]


def program_environment(run: Path, *, threads: int = 1) -> dict[str, str]:
    """Return the environment of a program: without the surrounding job or step, but with its own run folder."""
    dropped = {LAYOUT_VARIABLE, CHOICE}
    own = {name: value for name, value in submit_environment(os.environ).items() if name not in dropped}
    return own | {"OMP_NUM_THREADS": str(threads), RUN_VARIABLE: str(run)}


def torch_variables_of_rank(
    rank: int, world_size: int, local: tuple[int, int], master: tuple[str, int]
) -> dict[str, str]:
    """Return the variables of one rank.

    `local` contains its rank and the number of ranks on its host, `master` the address of rank 0.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", CHOICE)
    return dict(zip(names, map(str, (rank, world_size, *local, *master, "env")), strict=True))


def run_program(argv: Sequence[str], environ: Mapping[str, str], timeout: float) -> str | None:
    """Run a command to its end; return the last lines of its output if it failed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        # The rank gets SIGTERM when the benchmark ends. Without this, its program would keep running.
        with processes.interruptible():
            process = processes.start(argv, environ, log)
            try:
                ended = f"exit code {code}" if (code := process.wait(timeout)) else ""
            except subprocess.TimeoutExpired:
                ended = f"not ended within {timeout:g} s"
            finally:
                processes.end(process)
        if not ended:
            return None
        return "\n".join([ended, *processes.last_lines(log)])


def read_summary(folder: Path) -> Summary:
    """Read the summary that rank 0 of a training wrote.

    Raises:
        JobFailed: There is no summary.
    """
    try:
        found: Summary = json.loads((folder / SUMMARY).read_text())
    except (OSError, ValueError) as error:
        raise JobFailed("the training left no summary", found=str(error), remedy="its output, above") from error
    return found
