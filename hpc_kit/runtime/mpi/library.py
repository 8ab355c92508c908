"""mpi4py, imported once, late, and with the MPI that has started this process."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import warnings
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment, SpecError
from hpc_kit.runtime.mpi import evidence

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from hpc_kit.runtime.world import World

LIBRARY_VARIABLE = "MPI4PY_LIBMPI"
"""mpi4py's own variable: the path of the library that it loads."""


def import_mpi4py(world: World, environ: Mapping[str, str] | None = None) -> ModuleType:
    """`mpi4py.MPI` of the MPI that has started `world`; importing it is MPI_Init.

    Args:
        world: What the launcher's variables say; MPI's own numbers must be the same.
        environ: `os.environ` by default.

    Raises:
        IncompleteEnvironment: No MPI has started this process: it would be a world of one.
        SpecError: There is no mpi4py, or no MPI library, or the program has not let it start.
        ContradictoryEnvironment: MPI counts other ranks than the launcher.
    """
    environ = os.environ if environ is None else environ
    found = evidence.find_evidence(environ)
    if world.launcher == "torchrun" or found is None:
        raise _not_started_by_mpi(world, found)
    module = sys.modules.get("mpi4py.MPI") or _import_module(found, environ)
    _check_initialized(module)
    _check_same_world(module, world, found)
    return module


def check_thread_level(module: ModuleType) -> None:
    """The backend calls MPI from the thread that waits, and from its own while the program computes.

    Raises:
        SpecError: This MPI takes one thread at a time, or the main thread alone.
    """
    level = module.Query_thread()
    if level == module.THREAD_MULTIPLE:
        return
    names = {getattr(module, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED")}
    raise SpecError(
        "the backend mpi needs an MPI that takes calls of several threads (MPI_THREAD_MULTIPLE)",
        found=f"MPI_THREAD_{names[level]} of {_name(module)}",
        remedy="leave mpi4py.rc.threads and .thread_level, or MPI4PY_RC_*, as they are; who calls MPI_Init calls\n"
        "MPI_Init_thread with MPI_THREAD_MULTIPLE; Cray MPICH: export MPICH_MAX_THREAD_SAFETY=multiple;\n"
        "MVAPICH2: export MV2_ENABLE_AFFINITY=0; or take the backend gloo",
    )


def _check_initialized(module: ModuleType) -> None:
    """What asks for a rank outside of MPI_Init and MPI_Finalize ends the process without an error to catch."""
    if module.Is_finalized():
        raise SpecError(
            "MPI has ended already",
            found="the program has called MPI_Finalize",
            remedy="call it after the process group has ended, or leave it to mpi4py",
        )
    if not module.Is_initialized():
        raise SpecError(
            "MPI has not been started",
            found="mpi4py.rc.initialize, or MPI4PY_RC_INITIALIZE, keeps mpi4py from it",
            remedy="leave that as it is, or call MPI.Init_thread() before",
        )


def _name(module: ModuleType) -> str:
    first: str = module.Get_library_version().splitlines()[0]
    return first.strip("\0")


def _import_module(found: evidence.Evidence, environ: Mapping[str, str]) -> ModuleType:
    if find_spec("mpi4py") is None:
        raise SpecError(
            "the backend mpi needs mpi4py",
            found=f"no mpi4py in {sys.prefix}",
            remedy="pip install 'hpc_kit[mpi]'; it takes the MPI that is there, and builds nothing",
        )
    if not environ.get(LIBRARY_VARIABLE) and not environ.get("MPI4PY_MPIABI"):
        library = next((name for name in evidence.libraries(found) if _loads(name)), None)
        if library is not None:
            os.environ[LIBRARY_VARIABLE] = library
    try:
        with warnings.catch_warnings():
            # "suspicious MPI execution environment": what is wrong is told by _refuse_another, with what to do.
            warnings.simplefilter("ignore", RuntimeWarning)
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise _no_library(found, environ, error) from error
    return MPI


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library, os.RTLD_LAZY | os.RTLD_LOCAL)
    except OSError:
        return False
    return True


def _check_same_world(module: ModuleType, world: World, found: evidence.Evidence) -> None:
    """An MPI of another launcher counts another world."""
    comm = module.COMM_WORLD
    if (comm.rank, comm.size) == (world.rank, world.world_size):
        return
    raise ContradictoryEnvironment(
        f"MPI's own world is rank {comm.rank} of {comm.size}, but this is {world}",
        found=f"{found.sources}; the library is {_name(module)}"
        + (f" ({os.environ[LIBRARY_VARIABLE]})" if LIBRARY_VARIABLE in os.environ else ""),
        remedy=f"mpi4py has taken another MPI than the {found.families[0]} that started the ranks: export\n"
        f"{LIBRARY_VARIABLE}=/PATH/TO/{evidence.soname(found.families[0])} of that one",
        everywhere=comm.size == 1,
    )


def _not_started_by_mpi(world: World, found: evidence.Evidence | None) -> IncompleteEnvironment:
    ranks = f"{world.world_size} ranks" if world.world_size > 1 else "one process"
    if world.launcher == "slurm":
        return IncompleteEnvironment(
            f"MPI would make {world.world_size} worlds of 1 inside of {world.name} of {world.world_size}",
            found="neither PMIX_RANK nor PMI_RANK and PMI_SIZE: srun has started the tasks without MPI",
            remedy=f'{_kinds_of_mpi()};\nor start the ranks with mpirun, in a job file: launcher = "mpirun"',
            everywhere=True,
        )
    return IncompleteEnvironment(
        "the backend mpi needs ranks that MPI has started",
        found=f"{ranks} of {world.name}" + (f"; {found.sources} belongs to what started that" if found else ""),
        remedy="mpirun -n 2 python train.py, or srun --mpi=pmix; or the backend gloo",
        everywhere=True,
    )


def _kinds_of_mpi() -> str:
    """What to type, with what Slurm's `--mpi` offers here."""
    text = ""
    if shutil.which("srun"):
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, timeout=10, check=False)
            text = f"{done.stdout}\n{done.stderr}" if done.returncode == 0 else ""
    offered = list(dict.fromkeys(re.findall(r"\b(?:pmix(?:_v\d+)?|pmi2|cray_shasta)\b", text)))
    best = next((kind for kind in ("pmix", *offered) if kind in offered), "pmix")
    here = f"offers {', '.join(offered)} here" if offered else "tells what there is"
    return f"srun --mpi={best} (`srun --mpi=list` {here})"


def _no_library(found: evidence.Evidence, environ: Mapping[str, str], error: Exception) -> SpecError:
    family = found.families[0]
    text = str(error).splitlines()
    chosen = environ.get(LIBRARY_VARIABLE, "")
    found_text = f"{found.sources}\n{text[-1] if text else type(error).__name__}"
    if "libmpi.so.12" in str(error) and chosen.endswith("libmpich.so.12"):
        remedy = (
            "this MPICH names its library libmpich.so.12, mpi4py's wheel wants libmpi.so.12: before the ranks start\n"
            "mkdir -p ~/mpich; ln -sf /PATH/TO/libmpich.so.12 ~/mpich/libmpi.so.12; export LD_LIBRARY_PATH=~/mpich"
        )
    else:
        remedy = (
            f"load the module of {family}, or export {LIBRARY_VARIABLE}=/PATH/TO/{evidence.soname(family)};\n"
            "an mpi4py that was built here for another MPI: pip install --force-reinstall mpi4py"
        )
    return SpecError(
        f"mpi4py finds no library of {family}, which has started this process", found=found_text, remedy=remedy
    )
