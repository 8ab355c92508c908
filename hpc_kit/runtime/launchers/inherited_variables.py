"""What a rank has exported for libraries comes along to the jobs and steps that it starts: there it is nobody's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.runtime.launchers import slurm_step
from hpc_kit.runtime.launchers.mpi_variables import MPI_LAUNCHERS
from hpc_kit.runtime.launchers.torch_variables import inner_launcher

if TYPE_CHECKING:
    from collections.abc import Mapping

EXPORT_MARKER = "HPC_KIT_EXPORTED"
"""Environment variable: the job and the step of the rank that has exported, and what."""

_RANK_AND_SIZE = {"RANK", "WORLD_SIZE"}
"""What whoever launches outside of a step sets anew; an address alone, many job scripts set for their steps."""

_TORCH_VARIABLES = {*_RANK_AND_SIZE, "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
_AMBIGUOUS = {"OMP_NUM_THREADS"}
"""What a job script may have set anew to the same value: no two can be told apart."""


def export_marker(exports: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that tells later launches whose `exports` are."""
    torchrun = environ.get("TORCHELASTIC_RUN_ID")  # it has set torch's names itself, and will again
    names = exports.keys() - _AMBIGUOUS - (_TORCH_VARIABLES if torchrun else set())
    launch = {name: environ[name] for name in _mpi_variables() if environ.get(name)}
    said = {name: exports[name] for name in sorted(names)} | launch
    return {EXPORT_MARKER: " ".join([_step_id(environ), *(f"{name}={value}" for name, value in said.items())])}


def inherited_exports(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that a rank of another job or step has exported or was started with, and that nobody has set anew."""
    place, *words = environ.get(EXPORT_MARKER, "").split() or [""]
    # Every job or step that a rank starts has a number: without one, Slurm's names have been taken out by hand.
    if not words or place == _step_id(environ) or not environ.get("SLURM_JOB_ID"):
        return {}
    said = dict(word.split("=", 1) for word in words if "=" in word)
    same = {name for name, value in said.items() if environ.get(name) == value}
    if _has_inner_launcher(environ, same):
        same -= _TORCH_VARIABLES
    # A later mpirun has a number of its own; one without any cannot be told from it.
    told = {name for names in MPI_LAUNCHERS.values() for name in names.launch} & same
    if not told or place.partition(".")[0] == _step_id(environ).partition(".")[0]:
        same -= _mpi_variables()
    return {name: environ[name] for name in sorted(same)}


def _has_inner_launcher(environ: Mapping[str, str], same: set[str]) -> bool:
    """Whether torch's names are those of a launcher inside of this job."""
    if environ.get("TORCHELASTIC_RUN_ID") or inner_launcher(environ):
        return True
    return slurm_step.reason_not_in_step(environ) is not None and not _RANK_AND_SIZE & environ.keys() <= same


def _mpi_variables() -> set[str]:
    """Rank, size and number of the launch, for each of MPI's launchers that has a number."""
    found = {
        name for names in MPI_LAUNCHERS.values() if names.launch for name in (names.rank, names.size, *names.launch)
    }
    return found - {"WORLD_SIZE"}


def _step_id(environ: Mapping[str, str]) -> str:
    return f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
