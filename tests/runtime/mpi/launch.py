"""Starts ranks under the installed MPIs: Debian's Open MPI, and the MPICH wheel of requirements-dev.txt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"

_BESIDE_PYTHON = Path(sys.executable).parent

MPIS = {
    "Open MPI": ("mpirun.openmpi", ["--oversubscribe"]),
    "MPICH": (str(_BESIDE_PYTHON / "mpiexec.hydra"), []),
}
"""Launchers, with the options that allow more ranks than CPUs."""

both = pytest.mark.parametrize("mpi", list(MPIS))


def run_ranks(
    mpi: str, count: int, program: str, *words: str, timeout: float = 150, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a program of this folder, or `-m MODULE`, with this number of ranks."""
    process = start_ranks(mpi, count, program, *words, **environ)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def start_ranks(mpi: str, count: int, program: str, *words: str, **environ: str) -> subprocess.Popen[str]:
    """Like `run_ranks`, but do not wait.

    Without this MPI the test is skipped, or fails if CI requires it.
    """
    launcher, options = MPIS[mpi]
    found = shutil.which(launcher)
    if found is None:
        text = f"needs {launcher} of {mpi} (Debian: apt-get install openmpi-bin; pip install mpich)"
        if os.environ.get("HPC_KIT_REQUIRE_ORACLES"):
            pytest.fail(text)
        pytest.skip(text)
    what = [program] if program.startswith("-") else [str(PROGRAMS / program)]
    return subprocess.Popen(
        [found, *options, "-n", str(count), sys.executable, *what, *words],
        env=os.environ
        | {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_output(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of ranks, which must all succeed."""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
