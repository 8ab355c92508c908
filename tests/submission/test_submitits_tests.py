"""submitit's own tests pass with our Executor in place of its SlurmExecutor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULES = ("submitit.slurm.test_slurm", "submitit.auto.test_auto", "submitit.core.test_core")


@pytest.mark.slow
def test_the_tests_of_submitit_pass(tmp_path: Path) -> None:
    plugin = ("-p", "tests.submission.submitit_plugin", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "--pyargs", *MODULES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
