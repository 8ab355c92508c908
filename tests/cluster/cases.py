"""The launches whose environments are captured, read from cases.toml in this folder."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class Truth(Enum):
    """The source of the expected values: always the launch itself, never the variables."""

    FILES = "task file names written by slurmstepd (%t %n %N) + scontrol listpids LOCALID/GLOBALID agree"
    ONE = "one process was started, by hand"
    LABELS = "labels srun -l put on each task's output line; node_rank = order of lowest rank"
    MPI = "MPI_COMM_WORLD itself, asked by each process; node_rank = order of lowest rank"
    AGENTS = "torchrun agents' own log (group_rank, global_ranks) + its log directory for each worker (local rank)"


LAUNCHERS = {Truth.FILES: "slurm", Truth.ONE: "single", Truth.LABELS: "slurm", Truth.AGENTS: "torchrun"}
LAUNCHERS[Truth.MPI] = "mpi"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch."""

    name: str
    description: str
    script: str
    options: str = "-N2 --ntasks-per-node=4"
    truth: Truth = Truth.FILES
    login: bool = False
    refused: bool = False
    """Variables of other launches contradict this one."""
    mpi: str | None = None
    """The MPI whose launcher MPIRUN is, by its name in mpis.py."""

    @property
    def expect(self) -> str:
        """Return the result that `resolve` must have for these variables."""
        if self.refused:
            return "refused"
        return "single" if self.truth is Truth.ONE else "ranks"

    @property
    def launcher(self) -> str:
        """Return the launcher that determines the rank."""
        return LAUNCHERS[self.truth]


def load() -> list[Case]:
    """Return all cases in the order of the file."""
    table = tomllib.loads((Path(__file__).parent / "cases.toml").read_text())
    return [_case(**entry) for entry in table["case"]]


def _case(*, truth: str = "files", srun: str | None = None, script: str = "", **rest: str) -> Case:
    if srun is not None:
        script = f"srun {srun} $TASKS"
    values: dict[str, Any] = {name: rest[name] for name in ("name", "description", "options", "mpi") if name in rest}
    values |= {name: bool(rest.get(name)) for name in ("login", "refused")}
    return Case(script=script, truth=Truth[truth.upper()], **values)
