"""Ignores variables that a parent rank exported. Jobs and steps started inside a rank inherit them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.runtime.launchers import slurm_step
from hpc_kit.runtime.launchers.mpi_variables import MPI_LAUNCHERS
from hpc_kit.runtime.launchers.torch_variables import inner_launcher
from hpc_kit.runtime.variables import NODE_RANK, TORCH_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

EXPORT_MARKER = "HPC_KIT_EXPORTED"
"""Environment variable with the job and step of the exporting rank, and the variables that it exported."""

_RANK_AND_SIZE = {"RANK", "WORLD_SIZE"}
"""Variables that every launcher outside of a step sets again. Many job scripts set an address alone for their steps."""

_TORCH_VARIABLES = set(TORCH_VARIABLES.values())
_AMBIGUOUS = {"OMP_NUM_THREADS"}
"""Variables that a job script may have set again to the same value, which cannot be distinguished from inherited
ones.
"""


def export_marker(exports: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that marks `exports` as exported by this rank."""
    torchrun = environ.get("TORCHELASTIC_RUN_ID")  # torchrun has set torch's variables itself, and will do so again
    names = exports.keys() - _AMBIGUOUS - (_TORCH_VARIABLES if torchrun else set())
    launch = {name: environ[name] for name in _mpi_variables() if environ.get(name)}
    exported = {name: exports[name] for name in sorted(names)} | launch
    return {EXPORT_MARKER: " ".join([_step_id(environ), *(f"{name}={value}" for name, value in exported.items())])}


def inherited_exports(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that come from a rank of another job or step and were not set again since."""
    place, *words = environ.get(EXPORT_MARKER, "").split() or [""]
    # Every job or step that a rank starts has an id. Without one, Slurm's variables were removed on purpose.
    if not words or place == _step_id(environ) or not environ.get("SLURM_JOB_ID"):
        return {}
    exported = dict(word.split("=", 1) for word in words if "=" in word)
    same = {name for name, value in exported.items() if environ.get(name) == value}
    if _has_inner_launcher(environ, same):
        same -= {*_TORCH_VARIABLES, NODE_RANK}
    # A later mpirun has a launch id of its own. A launch without any id cannot be distinguished from the inherited one.
    launch_ids = {name for names in MPI_LAUNCHERS.values() for name in names.launch} & same
    if not launch_ids or place.partition(".")[0] == _step_id(environ).partition(".")[0]:
        same -= _mpi_variables()
    return {name: environ[name] for name in sorted(same)}


def _has_inner_launcher(environ: Mapping[str, str], same: set[str]) -> bool:
    """Return whether a launcher inside this job has set torch's variables."""
    if environ.get("TORCHELASTIC_RUN_ID") or inner_launcher(environ):
        return True
    return slurm_step.reason_not_in_step(environ) is not None and not _RANK_AND_SIZE & environ.keys() <= same


def _mpi_variables() -> set[str]:
    """Return the rank, size and launch id variables of the MPI launchers that have a launch id."""
    found = {
        name for names in MPI_LAUNCHERS.values() if names.launch for name in (names.rank, names.size, *names.launch)
    }
    return found - {"WORLD_SIZE"}


def _step_id(environ: Mapping[str, str]) -> str:
    return f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
