"""The record of a run names its backend. The command line registers all backends except Slurm's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hpc_kit.cli  # noqa: F401 - registers the backends
from hpc_kit.run_files import RECORD
from hpc_kit.runs.backend import SLURM, backend_of, query_runs
from hpc_kit.runs.run_folders import open_run
from hpc_kit.slurm.client import SlurmClient
from tests.runs.fake import FakeSlurm


def record(folder: Path, slurm: str) -> Path:
    folder.mkdir(parents=True)
    text = f'{{"job_id": "{folder.name}", "job_name": "job", "submitted": "", "slurm": "{slurm}", '
    (folder / RECORD).write_text(text + '"logs": {"batch": "%j.log", "ranks": "%j/rank-%t.log"}}')
    return folder


@pytest.mark.parametrize("slurm", ["system", "embedded", "of a later version"])
def test_slurm_is_the_default_backend_of_a_run(tmp_path: Path, slurm: str) -> None:
    assert open_run(record(tmp_path / "12", slurm)).backend is SLURM
    assert backend_of(None) is SLURM


def test_a_launch_has_no_batch_log(tmp_path: Path) -> None:
    run = open_run(record(tmp_path / "12", "ssh"))
    assert run.backend is not SLURM
    assert run.batch_logs() == ()


def test_each_backend_is_queried_once_for_its_runs(tmp_path: Path, slurm: FakeSlurm) -> None:
    slurm.queue("12 RUNNING", "13 PENDING")
    runs = [open_run(record(tmp_path / job_id, "system")) for job_id in ("12", "13", "14")]
    launch = open_run(record(tmp_path / "15", "ssh"))
    client = SlurmClient(slurm.environ({"PATH": "/usr/bin:/bin"}), embedded=True)
    found = query_runs([*runs, launch], client)
    assert {job_id: str(status.state) for job_id, status in found.items()} == {"12": "RUNNING", "13": "PENDING"}
    assert len(slurm.read("squeue.calls").splitlines()) == 1


def test_the_ssh_backend_is_imported_for_its_first_run_only(tmp_path: Path) -> None:
    folder = record(tmp_path / "12", "ssh")
    program = (
        "import sys, hpc_kit.cli; from pathlib import Path; from hpc_kit.runs import cancel, follow; "
        "from hpc_kit.runs.run_folders import open_run; run = open_run(Path(sys.argv[1])); "
        "before = 'hpc_kit.ssh.backend' in sys.modules; print(before, type(run.backend).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "hpc_kit.ssh.backend"]
