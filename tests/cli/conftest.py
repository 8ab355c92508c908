"""The command line, run as a process in a project folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs.conftest import slurm

__all__ = ["slurm"]

Kit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kit(project: Path) -> Kit:
    """Run hpc-kit in the project folder."""

    def run(*words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "hpc_kit", *words]
        return subprocess.run(
            argv, cwd=cwd or project, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
        )

    return run
