"""Launches over ssh in the listing commands, which read only the folders of launches."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import hpc_kit.cli  # noqa: F401 - registers the backends
from hpc_kit.errors import LaunchError
from hpc_kit.run_files import END, RECORD
from hpc_kit.runs.known_jobs import JobSelection
from hpc_kit.runs.outcome import record_outcome, record_outcomes
from hpc_kit.runs.run_folders import Run, RunIndex, open_run
from hpc_kit.runs.status import list_jobs
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.states import JobState
from hpc_kit.ssh import backend

ID = "20261123070121"


def no_slurm(*_: object, **__: object) -> None:
    """Fail if a command of Slurm is called."""
    raise AssertionError


NOWHERE = SlurmClient({}, embedded=False, runner=no_slurm)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a launch that has started."""
    found = tmp_path / "runs" / "j" / ID
    found.mkdir(parents=True)
    logs = {"batch": "%j.log", "ranks": "%j/rank-%t.log"}
    record = {"job_id": ID, "job_name": "j", "submitted": "2026-11-23T07:01:21+00:00", "logs": logs, "slurm": "ssh"}
    (found / RECORD).write_text(json.dumps(record | {"cluster": "hosts", "hosts": {"a": 1, "b": 1}}))
    return found


def find_status(folder: Path) -> tuple[JobState, str]:
    """Return the output of `hpc-kit status`."""
    (line,) = list_jobs(JobSelection.from_words([ID]), RunIndex(folder.parents[1]), NOWHERE, cluster="local").lines
    return line.state, line.sentence


def launcher(folder: Path, pid: int, host: str = os.uname().nodename) -> Run:
    """Record this process as the launcher."""
    (folder / backend.LAUNCHER_FILE).write_text(f"{pid} {backend._start_time(pid) or 1} {host}\n")
    return open_run(folder)


def test_a_launch_is_running_as_long_as_its_launcher(folder: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    run = launcher(folder, process.pid)
    state, sentence = find_status(folder)
    assert (state, "so far, no limit on a,b" in sentence) == (JobState.RUNNING, True)
    run.backend.cancel({ID: run}, NOWHERE)
    assert process.wait() == -15
    assert find_status(folder) == (JobState.FAILED, "Its launcher ended without recording an outcome.")


def test_a_launch_on_another_machine_is_running_while_it_is_locked(folder: Path) -> None:
    run = launcher(folder, 1, "login7")
    assert find_status(folder) == (
        JobState.UNKNOWN,
        "It was launched on login7. Only that host can show whether it still runs.",
    )
    (folder / backend.LAUNCHER_FILE).unlink()
    backend.lock_run(folder)
    launcher(folder, 1, "login7")
    assert find_status(folder)[0] is JobState.RUNNING
    with pytest.raises(LaunchError, match="cannot be cancelled from here") as refused:
        run.backend.cancel({ID: run}, NOWHERE)
    assert refused.value.remedy == "press Ctrl-C where it was typed, or run there: kill -TERM 1"


@pytest.mark.parametrize(("problem", "sentence"), [("b is lost\n  found  x", "b is lost"), (None, "another status")])
def test_the_end_of_a_launch_is_shown_without_slurm(folder: Path, problem: str | None, sentence: str) -> None:
    (folder / END).write_text("1 1\n")
    record = json.loads((folder / RECORD).read_text())
    end = {"state": "FAILED", "exit_status": 130, "problem": problem}
    (folder / RECORD).write_text(json.dumps(record | {"end": end}))
    assert sentence in find_status(folder)[1]
    outcome = record_outcome(open_run(folder), None)
    assert (outcome.failure, outcome.batch_log, sentence in outcome.sentence) == (None, None, True)


def test_an_end_file_written_in_the_meantime_is_kept(folder: Path) -> None:
    before = open_run(folder)
    (folder / END).write_text("1 1\n")
    record = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(
        json.dumps(record | {"end": {"state": "FAILED", "exit_status": 1, "problem": "b is lost"}})
    )
    assert record_outcomes([(before, None)])[0].sentence == "b is lost"
    assert json.loads((folder / RECORD).read_text())["end"]["problem"] == "b is lost"
