"""Runs the tests of submitit with our Executor: a plug-in for pytest, which replaces submitit's SlurmExecutor.

    python -m pytest -p tests.submission.submitit_plugin --pyargs submitit.slurm.test_slurm

submitit's tests replace its calls of subprocess. Ours run the commands of a fake Slurm on PATH.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from submitit.core import test_core
from submitit.slurm import slurm, test_slurm

from hpc_kit.submission import job_handles
from hpc_kit.submission.executor import Executor
from tests.runs.fake import FakeSlurm, queue_row

find_program = shutil.which

SQUEUE = f"""#!/bin/bash
for script in "$FAKE"/*.script; do
  id=$(basename "$script" .script)
  last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
  for job in $([ "$last" ] && seq -f "$id"_%g 0 "$last" || echo "$id"); do
    sed "s/@ID/$job/" <<'END'
{queue_row("@ID", "RUNNING").rstrip()}
END
  done
done
"""


class Mock(test_core.MockedSubprocess):
    """submitit's mock, with the commands of a fake Slurm for ours."""

    def which(self, name: str, mode: int = os.X_OK, path: str | None = None) -> str | None:
        return "here" if name in self.known_cmds else find_program(name, mode, path)

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        job_handles._watchers.clear()
        with tempfile.TemporaryDirectory() as folder, super().context():
            fake = FakeSlurm(Path(folder, "slurm"))
            (fake.bin / "squeue").write_text(SQUEUE)
            environ = {**fake.environ(os.environ), "HPC_KIT_CLUSTER": "slurm"}
            with patch.dict(os.environ, environ):
                yield


@contextlib.contextmanager
def mocked_slurm() -> Iterator[Mock]:
    mock = Mock(known_cmds=["srun"])
    with mock.context():
        yield mock


class ExecutorOfFolder(Executor):
    """Takes the folder first, as submitit's executors do; AutoExecutor passes it so."""

    def __init__(self, folder: str | Path, max_num_timeout: int = 3) -> None:
        super().__init__(folder=folder, max_num_timeout=max_num_timeout)


slurm.SlurmExecutor = ExecutorOfFolder  # type: ignore[misc, assignment]
test_slurm.mocked_slurm = mocked_slurm
