"""The command line in a project folder of its own."""

from __future__ import annotations

import io
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, closing, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

import hpc_kit.cli
from tests.runs.conftest import slurm

__all__ = ["slurm"]

PROGRAM = str(Path(hpc_kit.cli.__file__).parents[1] / "__main__.py")

NEEDS_PROCESS = frozenset({"bench", "embedded", "launch"})
"""Commands that replace their process, or write to its files without Python's."""


class Kit:
    """Runs hpc-kit in the project folder."""

    def __init__(self, project: Path) -> None:
        self.project = project

    def __call__(self, *words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command in this process: a new one takes longer than most commands."""
        if words and words[0] in NEEDS_PROCESS:
            return self.process(*words, cwd=cwd, **variables)
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with (
            chdir(cwd or self.project),
            mock.patch.dict(os.environ, variables),
            mock.patch.object(sys, "argv", [PROGRAM, *words]),
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            hpc_kit.cli.main()
        code = end.value.code
        assert isinstance(code, int)
        texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
        return subprocess.CompletedProcess(words, code, *texts)

    def process(self, *words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own."""
        argv = [sys.executable, "-m", "hpc_kit", *words]
        return subprocess.run(
            argv, cwd=cwd or self.project, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
        )


@pytest.fixture
def kit(project: Path) -> Kit:
    """Run hpc-kit in the project folder."""
    return Kit(project)


@pytest.fixture
def own_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An embedded Slurm of the test's own. At the end its queue is empty, so no process of it is left."""
    state = tmp_path / "slurm"
    monkeypatch.setenv("HPC_KIT_SLURM_STATE", str(state))
    monkeypatch.setenv("HPC_KIT_CLUSTER", "local")
    yield
    if not count_jobs(state):
        return
    for words in (("--user", str(os.getuid()), "--signal=KILL", "--full"), ("--me",)):
        subprocess.run([state / "bin" / "scancel", *words], check=False)
    deadline = time.monotonic() + 60
    while subprocess.run([state / "bin" / "squeue", "--noheader"], capture_output=True, check=False).stdout.strip():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def count_jobs(state: Path) -> int:
    """Return the number of jobs that were ever submitted to a queue."""
    if not (state / "slurm.db").exists():
        return 0
    with closing(sqlite3.connect(state / "slurm.db")) as queue:
        return int(queue.execute("select count(*) from jobs").fetchone()[0])
