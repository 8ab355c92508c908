"""Which MPI has started this process, by its variables and by its parents; nothing is imported for it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OPEN_MPI, MPICH = "Open MPI", "MPICH"

_SONAMES = {
    OPEN_MPI: ("libmpi.so.40", "libmpi.so"),
    # Intel MPI and MVAPICH2 keep MPICH's ABI and its name; Debian's MPICH has a name of its own.
    MPICH: ("libmpi.so.12", "libmpich.so.12", "libmpi.so"),
}


def soname(family: str) -> str:
    """What that MPI calls its library."""
    return _SONAMES[family][0]


_PROXY = "hydra_pmi_proxy"

_LAUNCHERS = {
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
    _PROXY: MPICH,
}
"""Programs whose children are ranks, and whose folder lies beside the library."""


class Evidence(NamedTuple):
    """What shows that MPI has started this process."""

    families: tuple[str, ...]
    """The MPIs that may have done it, the likelier first."""
    sources: str
    """The variables, with their values."""
    size: int | None
    """Ranks, where a variable tells."""


def find_evidence(environ: Mapping[str, str]) -> Evidence | None:
    """The evidence in a process's variables: a rank and a size, or the rank that srun's PMIx plug-in gives."""
    for families, rank, size in (
        ((OPEN_MPI,), "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ((OPEN_MPI,), "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
        ((MPICH,), "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        ((MPICH,), "MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE"),
        ((MPICH,), "PMI_ID", "MPIRUN_NPROCS"),
        ((MPICH,), "PALS_RANKID", "PMI_SIZE"),
        ((MPICH, OPEN_MPI), "PMI_RANK", "PMI_SIZE"),
        ((MPICH,), "PMI_ID", "WORLD_SIZE"),
        ((MPICH, OPEN_MPI), "PALS_RANKID", "WORLD_SIZE"),
        ((OPEN_MPI, MPICH), "PMIX_RANK", ""),
    ):
        if environ.get(rank) and (not size or environ.get(size)):
            told = environ.get(size, "")
            text = f"{rank} = {environ[rank]}" + (f", {size} = {told}" if size else "")
            return Evidence(families, text, int(told) if told.isdigit() else None)
    return None


def libraries(evidence: Evidence) -> Iterator[str]:
    """Where the library of that MPI may be: beside its launcher, one of our parents; else as the loader finds it.

    Before another MPI comes the one that pip has put beside this Python, which no loader knows.
    """
    prefix = _prefix(evidence.families)
    for family in evidence.families:
        for name in _SONAMES[family]:
            if prefix is not None:
                for folder in ("lib", "lib64", "lib/release"):
                    if (path := prefix / folder / name).is_file():
                        yield str(path)
    for family in evidence.families:
        yield from _SONAMES[family][:-1]
        yield from (str(path) for name in _SONAMES[family][:1] if (path := Path(sys.prefix, "lib", name)).is_file())


def _prefix(families: tuple[str, ...]) -> Path | None:
    """Where the MPI is installed whose launcher is a parent of this process."""
    for _, executable in _parents():
        if _LAUNCHERS.get(executable.name) in families:
            return executable.parent.parent
    return None


def mpiexec_of_proxy() -> str:
    """`host:port` of the mpiexec whose proxy is a parent of this process: the same for all ranks of a launch.

    No variable of MPICH's tells one launch from another at the same time. Empty where no parent is such a proxy.
    """
    for pid, executable in _parents():
        if executable.name == _PROXY:
            with suppress(OSError):
                words = Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
                return next((after for word, after in pairwise(words) if word == "--control-port"), "")
    return ""


def _parents() -> Iterator[tuple[int, Path]]:
    """This process's parents and their executables, the nearest first; those of other users cannot be read."""
    pid = os.getppid()
    while pid > 1:
        folder = Path("/proc", str(pid))
        try:
            executable = (folder / "exe").readlink()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return
        yield pid, executable
        pid = parent
