"""Imports mpi4py once, as late as possible, for the MPI library that started this process."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import sys
import uuid
import warnings
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import ContradictoryEnvironment, HpcKitError, IncompleteEnvironment, SpecError
from hpc_kit.runtime import shutdown
from hpc_kit.runtime.launchers.mpi_variables import MPI_LAUNCHERS, MPICH, OPEN_MPI
from hpc_kit.runtime.proc_stat import PARENT, read_stat
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from hpc_kit.runtime.world import World


LIBRARY_VARIABLE = "MPI4PY_LIBMPI"
"""mpi4py's own variable with the path of the library to load."""


def import_mpi4py(world: World, environ: Mapping[str, str] | None = None) -> ModuleType:
    """Return `mpi4py.MPI` for the MPI that started `world`. The import calls MPI_Init.

    Raises:
        IncompleteEnvironment: No MPI started this process. It would be a world of one.
        SpecError: mpi4py or the MPI library is missing, or the program has kept it from starting.
        ContradictoryEnvironment: MPI's rank or size differs from the launcher's.
    """
    environ = os.environ if environ is None else environ
    found = find_evidence(environ)
    if world.launcher == "torchrun" or found is None:
        raise _not_started_by_mpi(world, found)
    module = sys.modules.get("mpi4py.MPI") or _import_module(found, environ)
    _check_initialized(module)
    _check_same_world(module, world, found)
    return module


def check_thread_level(module: ModuleType) -> None:
    """Check that MPI supports MPI_THREAD_MULTIPLE: the waiting thread and the backend's own thread call it.

    Raises:
        SpecError: This MPI supports one thread at a time, or only the main thread.
    """
    level = module.Query_thread()
    if level == module.THREAD_MULTIPLE:
        return
    names = {getattr(module, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED")}
    raise SpecError(
        "the backend mpi needs an MPI that takes calls of several threads (MPI_THREAD_MULTIPLE)",
        found=f"MPI_THREAD_{names[level]} of {_library_version(module)}",
        remedy="leave mpi4py.rc.threads and .thread_level, or MPI4PY_RC_*, as they are; who calls MPI_Init calls\n"
        "MPI_Init_thread with MPI_THREAD_MULTIPLE; Cray MPICH: export MPICH_MAX_THREAD_SAFETY=multiple;\n"
        "MVAPICH2: export MV2_ENABLE_AFFINITY=0; or take the backend gloo",
    )


def _check_initialized(module: ModuleType) -> None:
    """Raise an error outside of MPI_Init and MPI_Finalize, where asking MPI for the rank would end the process."""
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


def _library_version(module: ModuleType) -> str:
    first: str = module.Get_library_version().splitlines()[0]
    return first.strip("\0")


def _import_module(found: MpiEvidence, environ: Mapping[str, str]) -> ModuleType:
    if find_spec("mpi4py") is None:
        raise SpecError(
            "the backend mpi needs mpi4py",
            found=f"no mpi4py in {sys.prefix}",
            remedy="pip install 'hpc_kit[mpi]'; it takes the MPI that is there, and builds nothing",
        )
    if not environ.get(LIBRARY_VARIABLE) and not environ.get("MPI4PY_MPIABI"):
        library = next((name for name in libraries(found) if _loads(name)), None)
        if library is not None:
            os.environ[LIBRARY_VARIABLE] = library
    try:
        with warnings.catch_warnings():
            # "suspicious MPI execution environment": `_check_same_world` reports the problem with a remedy.
            warnings.simplefilter("ignore", RuntimeWarning)
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise _library_error(found, environ, error) from error
    return MPI


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library, os.RTLD_LAZY | os.RTLD_LOCAL)
    except OSError:
        return False
    return True


def _check_same_world(module: ModuleType, world: World, found: MpiEvidence) -> None:
    """Check MPI's rank and size. A library of another MPI than the launcher's has a world of its own."""
    comm = module.COMM_WORLD
    if (comm.rank, comm.size) == (world.rank, world.world_size):
        return
    raise ContradictoryEnvironment(
        f"MPI's own world is rank {comm.rank} of {comm.size}, but this is {world}",
        found=f"{found.sources}; the library is {_library_version(module)}"
        + (f" ({os.environ[LIBRARY_VARIABLE]})" if LIBRARY_VARIABLE in os.environ else ""),
        remedy=f"mpi4py has taken another MPI than the {found.families[0]} that started the ranks: export\n"
        f"{LIBRARY_VARIABLE}=/PATH/TO/{_SONAMES[found.families[0]][0]} of that one",
        everywhere=comm.size == 1,
    )


def _not_started_by_mpi(world: World, found: MpiEvidence | None) -> IncompleteEnvironment:
    ranks = f"{world.world_size} ranks" if world.world_size > 1 else "one process"
    if world.launcher == "slurm":
        return IncompleteEnvironment(
            f"MPI would make {world.world_size} worlds of 1 inside of {world.name} of {world.world_size}",
            found="neither PMIX_RANK nor PMI_RANK and PMI_SIZE: srun has started the tasks without MPI",
            remedy=f"{_kinds_of_mpi()};\n"
            "or start the ranks with mpirun: hpc-kit submit --set launch.launcher=mpirun ...",
            everywhere=True,
        )
    return IncompleteEnvironment(
        "the backend mpi needs ranks that MPI has started",
        found=f"{ranks} of {world.name}" + (f"; {found.sources} belongs to what started that" if found else ""),
        remedy="mpirun -n 2 python train.py, or srun --mpi=pmix; or the backend gloo",
        everywhere=True,
    )


def _kinds_of_mpi() -> str:
    """Return the srun command to use, with a value that Slurm's `--mpi` offers here."""
    import subprocess

    text = ""
    if shutil.which("srun"):
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, timeout=10, check=False)
            text = f"{done.stdout}\n{done.stderr}" if done.returncode == 0 else ""
    offered = list(dict.fromkeys(re.findall(r"\b(?:pmix(?:_v\d+)?|pmi2|cray_shasta)\b", text)))
    best = next((kind for kind in ("pmix", *offered) if kind in offered), "pmix")
    here = f"offers {', '.join(offered)} here" if offered else "lists the plug-ins"
    return f"srun --mpi={best} (`srun --mpi=list` {here})"


def _library_error(found: MpiEvidence, environ: Mapping[str, str], error: Exception) -> SpecError:
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
            f"load the module of {family}, or export {LIBRARY_VARIABLE}=/PATH/TO/{_SONAMES[family][0]};\n"
            "an mpi4py that was built here for another MPI: pip install --force-reinstall mpi4py"
        )
    return SpecError(
        f"mpi4py finds no library of {family}, which has started this process", found=found_text, remedy=remedy
    )


_SONAMES = {
    OPEN_MPI: ("libmpi.so.40", "libmpi.so"),
    # Intel MPI and MVAPICH2 have MPICH's ABI and library name. Debian's MPICH has a different name.
    MPICH: ("libmpi.so.12", "libmpich.so.12", "libmpi.so"),
}


_HYDRA_PROXY = "hydra_pmi_proxy"

_LAUNCHER_PROGRAMS = {
    "mpirun": OPEN_MPI,
    "mpirun.openmpi": OPEN_MPI,
    "mpiexec.openmpi": OPEN_MPI,
    "orterun": OPEN_MPI,
    "orted": OPEN_MPI,
    "prterun": OPEN_MPI,
    "prte": OPEN_MPI,
    "prted": OPEN_MPI,
    "mpiexec.hydra": MPICH,
    "mpiexec.mpich": MPICH,
    "mpirun.mpich": MPICH,
    _HYDRA_PROXY: MPICH,
}
"""Programs whose child processes are ranks and whose folder is beside that of the library."""


class MpiEvidence(NamedTuple):
    """Evidence that MPI started this process."""

    families: tuple[str, ...]
    """Possible MPI implementations, the most likely one first."""
    sources: str
    """The variables with their values."""
    size: int | None
    """Number of ranks, if a variable contains it."""


def find_evidence(environ: Mapping[str, str]) -> MpiEvidence | None:
    """Return the evidence in the environment: a rank with a size, or the rank of srun's PMIx plug-in; or None."""
    for names in MPI_LAUNCHERS.values():
        # srun's plug-in for PMIx sets no number of ranks.
        size = "" if names.rank == "PMIX_RANK" else names.size
        if names.libraries and environ.get(names.rank) and (not size or environ.get(size)):
            count = environ.get(size, "")
            text = f"{names.rank} = {environ[names.rank]}" + (f", {size} = {count}" if size else "")
            return MpiEvidence(names.libraries, text, int(count) if count.isdigit() else None)
    return None


def libraries(evidence: MpiEvidence) -> Iterator[str]:
    """Return candidate paths of the library: beside the launcher, then the loader's own search.

    An MPI installed by pip beside this Python comes before other ones, because the loader does not find it.
    """
    prefix = _installation_folder(evidence.families)
    for family in evidence.families:
        for name in _SONAMES[family]:
            if prefix is not None:
                for folder in ("lib", "lib64", "lib/release"):
                    if (path := prefix / folder / name).is_file():
                        yield str(path)
    for family in evidence.families:
        yield from _SONAMES[family][:-1]
        yield from (str(path) for name in _SONAMES[family][:1] if (path := Path(sys.prefix, "lib", name)).is_file())


def _installation_folder(families: tuple[str, ...]) -> Path | None:
    """Return the installation folder of the MPI whose launcher is a parent of this process, or None."""
    for _, executable in _parent_processes():
        if _LAUNCHER_PROGRAMS.get(executable.name) in families:
            return executable.parent.parent
    return None


def mpiexec_of_proxy() -> str:
    """Return `host:port` of the mpiexec whose proxy is a parent of this process, or "" without such a proxy.

    It is equal on all ranks of a launch. No variable of MPICH distinguishes launches that run at the same time.
    """
    for pid, executable in _parent_processes():
        if executable.name == _HYDRA_PROXY:
            with suppress(OSError):
                words = Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
                return next((after for word, after in pairwise(words) if word == "--control-port"), "")
    return ""


def _parent_processes() -> Iterator[tuple[int, Path]]:
    """Yield the parent processes and their executables, nearest first. Those of other users cannot be read."""
    pid = os.getppid()
    while pid > 1:
        folder = Path("/proc", str(pid))
        try:
            executable = (folder / "exe").readlink()
            parent = int(read_stat(folder)[PARENT])
        except (OSError, ValueError):
            return
        yield pid, executable
        pid = parent


def world_from_mpi(world: World, timeout: float) -> World:
    """Return `world` completed from MPI's communicator under mpirun, and unchanged for other launchers.

    If mpi4py cannot be used, the variables alone count. Only the backend mpi requires it.
    """
    if world.launcher != "mpi":
        return world
    from hpc_kit.runtime.mpi import init_watchdog

    # Nothing else distinguishes two mpiexec of MPICH in one job or on one host.
    if mpiexec := mpiexec_of_proxy():
        world = replace(world, key=f"{world.key}, mpiexec at {mpiexec}")
    if find_spec("mpi4py") is None:
        return world

    with init_watchdog.mpi_init_deadline(world, timeout):
        try:
            module = import_mpi4py(world, os.environ)
        except HpcKitError:
            return world
        if mpiexec:
            # mpiexec kills the remaining ranks and would end with their status 9. MPI_Abort passes the exit code.
            shutdown.set_abort_function(lambda code: None if module.Is_finalized() else module.COMM_WORLD.Abort(code))
        return _read_communicator(world, module)


def _read_communicator(world: World, module: ModuleType) -> World:
    comm = module.COMM_WORLD
    host = comm.Split_type(module.COMM_TYPE_SHARED)
    local_rank, local_size = host.rank, host.size
    first_here = host.bcast(comm.rank)
    host.Free()
    ranks = comm.allgather((first_here, network.this_node_name(os.environ)))
    leaders = sorted({first for first, _ in ranks})
    own = (*network.own_addresses(), socket.gethostname())
    # Two launches of one size on a host share all variables, but not this number.
    where, key = comm.bcast((own, uuid.uuid4().hex))
    facts = {
        "local_rank": local_rank,
        "local_world_size": local_size,
        "node_rank": leaders.index(first_here),
        "nnodes": len(leaders),
    }
    sources = dict(world.sources) | dict.fromkeys(facts, "MPI_COMM_WORLD, split by shared memory")
    return replace(
        world,
        **facts,
        key=f"mpi {key}",
        hosts=tuple(ranks[leader][1] for leader in leaders),
        tasks_per_node=tuple([first for first, _ in ranks].count(leader) for leader in leaders),
        reach=("127.0.0.1",) if first_here == 0 else where,
        sources=sources,
    ).checked()
