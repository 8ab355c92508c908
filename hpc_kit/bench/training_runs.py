"""Runs the shipped training programs as processes and reads their summaries.

`python -m hpc_kit.bench.training_runs 2 jobs/train/ddp.py --steps 60` runs a program in processes that one parent
starts with `torch.multiprocessing.spawn`.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hpc_kit.bench import processes
from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.run_files import RUN_VARIABLE, SUMMARY
from hpc_kit.runtime.mesh import LAYOUT_VARIABLE
from hpc_kit.runtime.rendezvous import network
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
        with processes.interruptible(), processes.ended_together() as start:
            try:
                ended = f"exit code {code}" if (code := start(argv, environ, log).wait(timeout)) else ""
            except subprocess.TimeoutExpired:
                ended = f"not ended within {timeout:g} s"
        if not ended:
            return None
        return "\n".join([ended, *processes.last_lines(log)])


_SUMMARY_COLUMNS = (
    ("tokens_per_second", "tokens_per_second", 1.0),
    ("step", "step_time_median", 1.0),
    ("communication", "communication_share", 100.0),
    ("waiting", "waiting_share", 100.0),
)
"""Column, its key in a summary, and the factor between them; a parameter server lacks some keys."""


def summary_values(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return the values of a row from the summaries of all repeats, in seconds, percent and bytes."""
    values: dict[str, Any] = {}
    for column, key, factor in _SUMMARY_COLUMNS:
        if key in summaries[0]:
            values[column] = [factor * float(each[key]) for each in summaries]
    if "peak_memory_mib" in summaries[0]:
        values["memory"] = max(float(each["peak_memory_mib"]) for each in summaries) * 2**20
    return values


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


def run_spawned_rank(number: int, ranks: int, port: int, argv: list[str]) -> None:
    """Run a program in this process as one rank, with torch's variables set."""
    os.environ.update(torch_variables_of_rank(number, ranks, (number, ranks), ("127.0.0.1", port)))
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).parent))
    runpy.run_path(argv[0], run_name="__main__")


def spawn_ranks(ranks: int, argv: list[str]) -> None:
    """Spawn the ranks of a program and wait for all; the first failure ends all of them."""
    from torch.multiprocessing.spawn import spawn

    spawn(run_spawned_rank, args=(ranks, network.free_port(), argv), nprocs=ranks)


if __name__ == "__main__":
    spawn_ranks(int(sys.argv[1]), sys.argv[2:])
