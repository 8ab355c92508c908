"""What a rank has exported for libraries comes along to the jobs and steps that it starts: there it is nobody's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.runtime.launchers import slurm_step
from hpc_kit.runtime.launchers.mpi_variables import FAMILIES
from hpc_kit.runtime.launchers.torch_variables import launched_inside

if TYPE_CHECKING:
    from collections.abc import Mapping

MARK = "HPC_KIT_EXPORTED"
"""Environment variable: the job and the step of the rank that has exported, and what."""

_WHO = {"RANK", "WORLD_SIZE"}
"""What whoever launches outside of a step sets anew; an address alone, many job scripts set for their steps."""

_OF_TORCH = {*_WHO, "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
_CHOSEN = {"OMP_NUM_THREADS"}
"""What a job script may have set anew to the same value: no two can be told apart."""


def mark(exports: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that tells later launches whose `exports` are."""
    torchrun = environ.get("TORCHELASTIC_RUN_ID")  # it has set torch's names itself, and will again
    names = exports.keys() - _CHOSEN - (_OF_TORCH if torchrun else set())
    launch = {name: environ[name] for name in _of_mpi() if environ.get(name)}
    said = {name: exports[name] for name in sorted(names)} | launch
    return {MARK: " ".join([_place(environ), *(f"{name}={value}" for name, value in said.items())])}


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that a rank of another job or step has exported or was started with, and that nobody has set anew."""
    place, *words = environ.get(MARK, "").split() or [""]
    # Every job or step that a rank starts has a number: without one, Slurm's names have been taken out by hand.
    if not words or place == _place(environ) or not environ.get("SLURM_JOB_ID"):
        return {}
    said = dict(word.split("=", 1) for word in words if "=" in word)
    same = {name for name, value in said.items() if environ.get(name) == value}
    if _set_anew(environ, same):
        same -= _OF_TORCH
    # A later mpirun has a number of its own; one without any cannot be told from it.
    told = {name for names in FAMILIES.values() for name in names.launch} & same
    if not told or place.partition(".")[0] == _place(environ).partition(".")[0]:
        same -= _of_mpi()
    return {name: environ[name] for name in sorted(same)}


def _set_anew(environ: Mapping[str, str], same: set[str]) -> bool:
    """Whether torch's names are those of a launcher inside of this job."""
    if environ.get("TORCHELASTIC_RUN_ID") or launched_inside(environ):
        return True
    return slurm_step.why_no_step(environ) is not None and not _WHO & environ.keys() <= same


def _of_mpi() -> set[str]:
    """Rank, size and number of the launch, for each of MPI's launchers that has a number."""
    found = {name for names in FAMILIES.values() if names.launch for name in (names.rank, names.size, *names.launch)}
    return found - {"WORLD_SIZE"}


def _place(environ: Mapping[str, str]) -> str:
    return f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
