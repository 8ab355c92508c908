"""The MPI libraries whose launches are captured: Debian's and PyPI's, each with mpi4py in a separate environment.

`python -m tests.cluster.mpis` installs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

VERSIONS = {"openmpi": "5.0.11", "mpich": "5.0.2", "impi-rt": "2021.18.1", "mpi4py": "4.1.2"}

_DEBIAN = ["openmpi-bin", "libopenmpi3", "mpich", "libmpich12"]
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_ALLOW_RUN_AS_ROOT": "1",
            "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # fmt: skip


@dataclass(frozen=True)
class Mpi:
    """One MPI: its launcher, and the Python whose mpi4py uses its library."""

    package: str | None
    """Name on PyPI; None for Debian's MPI."""
    launcher: str
    """File below bin/ of the environment, or an absolute path."""
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """Return its environment, outside of /tmp, which is private on the nodes."""
        base = Path(os.environ.get("HPC_KIT_CLUSTER_BASE", "/var/tmp"))
        return base / f"hpc_kit-mpi-{self.package or 'debian'}"

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def mpirun(self) -> Path:
        return self.home / "bin" / self.launcher  # an absolute launcher is unchanged

    def missing(self) -> str | None:
        """Return the missing file, or None if the MPI is installed."""
        absent = [str(path) for path in (self.python, self.mpirun) if not path.exists()]
        return f"{', '.join(absent)}: python -m tests.cluster.mpis installs it" if absent else None


_OWN_NAMES = Path(os.environ.get("HPC_KIT_CLUSTER_BASE", "/var/tmp")) / "hpc_kit-mpi-debian" / "names"
"""Folder with a link to libmpich.so.12 under the name that mpi4py's wheel loads."""

MPIS = {
    "openmpi4": Mpi(None, "/usr/bin/mpirun.openmpi", _AS_ROOT | {"MPI4PY_MPIABI": "openmpi"}),
    "mpich4": Mpi(None, "/usr/bin/mpiexec.mpich", {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(_OWN_NAMES)}),
    "openmpi5": Mpi("openmpi", "mpirun", _AS_ROOT),
    "mpich5": Mpi("mpich", "mpiexec"),
    "impi": Mpi("impi-rt", "mpiexec"),
}


def install() -> None:
    """Install missing libraries: Debian's with apt, PyPI's with pip."""
    if any(mpi.missing() for mpi in MPIS.values() if mpi.package is None) and os.geteuid() == 0:
        options = ["-o", "DPkg::Lock::Timeout=300", "install", "--quiet", "--yes", "--no-install-recommends"]
        subprocess.run(["apt-get", *options, *_DEBIAN], check=True, env=os.environ | {"RUNLEVEL": "1"})
    _OWN_NAMES.mkdir(parents=True, exist_ok=True)
    for library in Path("/usr/lib").glob("*/libmpich.so.12"):
        (_OWN_NAMES / "libmpi.so.12").unlink(missing_ok=True)
        (_OWN_NAMES / "libmpi.so.12").symlink_to(library)
    for mpi in MPIS.values():
        if mpi.python.exists():
            continue
        subprocess.run([sys.executable, "-m", "venv", str(mpi.home)], check=True)
        wanted = [name for name in (mpi.package, "mpi4py") if name]
        pins = [f"{name}=={VERSIONS[name]}" for name in wanted]
        subprocess.run([str(mpi.python), "-m", "pip", "install", "--quiet", *pins], check=True)


if __name__ == "__main__":
    install()
