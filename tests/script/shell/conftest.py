"""Runs the files of templates/shell alone, as in a task of a step."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

SHELL = ROOT / "templates" / "shell"

Run = Callable[..., subprocess.CompletedProcess[str]]


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return the variables of rank 0 on node n1, with `folder`/bin first in PATH."""
    own = {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7"}
    own |= {"HPC_KIT_RUN": str(folder), "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    return {**os.environ, **own, **variables}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a file with arguments, and with these variables."""

    def start(file: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        argv = ["bash", str(SHELL / file), *arguments]
        environ = environment(tmp_path, **variables)
        return subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    return start


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str, str], None]:
    """Install a command that precedes those of the machine."""
    (tmp_path / "bin").mkdir()

    def add(name: str, body: str) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    return add


def await_file(path: Path) -> None:
    """Wait for a file."""
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def await_state(pid: int, wanted: str) -> None:
    """Wait for a process to be in a state of /proc."""
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.01)
