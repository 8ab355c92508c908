"""mpirun_words.sh: the mpirun that a job starts, and its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.script.shell.conftest import Run

VERSIONS = {
    "Open MPI 4": "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/",
    "PRRTE": "prterun (PRRTE) 3.0.7",
    "MPICH": "HYDRA build details:\n    Version:                                 4.3.0",
    "Intel MPI": "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20250000",
}


def install_mpirun(folder: Path, version: str) -> Path:
    """Install an mpirun that only prints its version."""
    folder.mkdir()
    program = folder / "mpirun"
    program.write_text(f"#!/bin/bash\n[ \"$1\" = --version ] && cat <<'end'\n{version}\nend\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Open MPI 4", ["--map-by", "ppr:2:node", "--bind-to", "none"]),
        ("PRRTE", ["--map-by", "ppr:2:node", "--bind-to", "none"]),
        ("MPICH", ["-ppn", "2"]),
        ("Intel MPI", ["-ppn", "2"]),
    ],
)
def test_the_version_decides_the_options(run: Run, tmp_path: Path, name: str, options: list[str]) -> None:
    mpirun = install_mpirun(tmp_path / "bin", VERSIONS[name])
    done = run("mpirun_words.sh", "/opt/python", "2", PATH=f"{mpirun.parent}:/usr/bin:/bin")
    assert done.stdout.splitlines() == ["mpirun", *options]


def test_without_ranks_per_node_there_is_no_option_for_them(run: Run, tmp_path: Path) -> None:
    mpirun = install_mpirun(tmp_path / "bin", VERSIONS["MPICH"])
    done = run("mpirun_words.sh", "/opt/python", PATH=f"{mpirun.parent}:/usr/bin:/bin")
    assert done.stdout.splitlines() == ["mpirun"]


@pytest.fixture
def without_mpirun(tmp_path: Path) -> str:
    """A PATH with the programs that the file needs, and without mpirun."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("bash", "uname", "cat"):
        (folder / name).symlink_to(f"/bin/{name}")
    return str(folder)


def test_mpirun_beside_the_interpreter_is_used_if_path_has_none(run: Run, tmp_path: Path, without_mpirun: str) -> None:
    mpirun = install_mpirun(tmp_path / "venv bin", VERSIONS["MPICH"])
    done = run("mpirun_words.sh", str(mpirun.parent / "python"), "2", PATH=without_mpirun)
    assert done.stdout.splitlines() == [str(mpirun), "-ppn", "2"]


def test_without_mpirun_the_package_to_install_is_named(run: Run, without_mpirun: str) -> None:
    done = run("mpirun_words.sh", "/opt/python", "2", PATH=without_mpirun)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.startswith("hpc-kit: there is no mpirun on ")
    assert "apt-get install openmpi-bin" in done.stderr


def test_an_unknown_mpi_is_reported_with_its_version(run: Run, tmp_path: Path) -> None:
    mpirun = install_mpirun(tmp_path / "bin", "SomeMPI 1.0")
    done = run("mpirun_words.sh", "/opt/python", "2", PATH=f"{mpirun.parent}:/usr/bin:/bin")
    assert done.returncode == 2
    assert "found  SomeMPI 1.0\n" in done.stderr
