"""A project with a job, and the fake Slurm of its cluster `fake`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.runs.fake import FakeSlurm


@pytest.fixture
def slurm(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "slurm")
    for name, value in fake.environ(os.environ).items():
        monkeypatch.setenv(name, value)
    (project / "env" / "fake.toml").write_text(f'slurm = "system"\npython = "{sys.executable}"\n')
    (project / "train.py").touch()
    (project / "jobs" / "job.toml").write_text(
        'command = ["python", "train.py"]\n[resources]\nnodes = 2\nntasks_per_node = 2\ntime = "00:10:00"\n'
    )
    return fake
