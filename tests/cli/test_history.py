"""`hpc-kit history` and `hpc-kit resubmit`, on the embedded Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.submission.resubmit import describe_changes
from tests.cli.conftest import Kit
from tests.conftest import ROOT
from tests.pocketslurm.conftest import wait_for

JOB = f"""command = ["python3", "{ROOT}/tests/faults/training.py"]
[resources]
ntasks_per_node = 2
time = 30
[restart]
resume_args = ["--resume"]
progress = "saved"
max_attempts = 2
[env]
STEPS = 12
SECONDS_A_STEP = "0.05"
"""


pytestmark = pytest.mark.usefixtures("own_slurm")


@pytest.fixture(autouse=True)
def _job(project: Path) -> None:
    (project / "jobs" / "count.toml").write_text(JOB)


def run_job(kit: Kit, *words: str) -> int:
    """Submit the job, and return its exit status."""
    return kit("submit", "count", *words).returncode


def shown(kit: Kit, *words: str) -> list[dict[str, Any]]:
    """The histories as JSON."""
    done = kit("history", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def stop(project: Path, job: str) -> None:
    """Stop a job when rank 0 has taken some steps."""
    deadline = time.monotonic() + 60
    while not (project / "losses" / "rank-0").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    scancel = Path(os.environ["HPC_KIT_SLURM_STATE"], "bin", "scancel")
    subprocess.run([scancel, "--signal=USR1", "--batch", job], check=True)


@pytest.mark.slow
def test_the_attempts_of_a_job_are_one_history(kit: Kit, project: Path) -> None:
    assert kit("submit", "count", "--no-wait", "--set", "env.STEPS=60").returncode == 0
    stop(project, "1")
    assert kit("logs", "-f", "1").returncode == 0
    [history] = shown(kit, "1")
    assert [each["decision"] for each in history["attempts"]] == ["requeue", "finished"]
    first, second = history["attempts"]
    assert first["reason"] == "stopped by USR1"
    assert first["nodes"] == second["nodes"] == "127.0.0.1"
    assert first["end"] <= second["start"]
    assert shown(kit) == shown(kit, "count") == [history]
    lines = kit("history", "1").stdout.splitlines()
    assert lines[0].startswith("1 count: 2 attempts, ")
    assert lines[2].endswith("started again: stopped by USR1, exit code 138")
    assert lines[3].endswith("finished")
    [status] = json.loads(kit("status", "1", "--json").stdout)
    assert (status["attempts"], status["lost"]) == (2, history["lost"])
    assert re.search(r"COMPLETED, attempt 2 \(\d+ s lost\)", kit("status", "1").stdout)


@pytest.mark.parametrize("export", ["ALL", pytest.param("NONE", marks=pytest.mark.slow)])
def test_a_job_is_submitted_again_from_its_checkpoint(kit: Kit, project: Path, export: str) -> None:
    (project / "fail").touch()
    path = f"{ROOT}/tests/faults/training.py"
    (project / "once.py").write_text(
        f"import os, runpy, sys\nif os.path.exists('fail'):\n    sys.exit(3)\n"
        f"runpy.run_path({path!r}, run_name='__main__')\n"
    )
    assert run_job(kit, "--set", 'command=["python3", "once.py"]', "--set", f"resources.export={export}") == 3
    (project / "fail").unlink()
    done = kit("resubmit", "1", SLURM_JOB_ID="99")  # typed in an interactive job
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("job     2 count: continues job 1")
    assert kit("logs", "-f", "2").returncode == 0
    [history] = shown(kit, "2")
    assert [(each["number"], each["job_id"], each["decision"]) for each in history["attempts"]] == [
        (1, "1", "failed"),
        (2, "2", "finished"),
    ]
    assert (project / "runs/count/1/script.sbatch").read_text() == (project / "runs/count/2/script.sbatch").read_text()


@pytest.mark.slow
def test_a_resubmission_may_change_values_and_names_changed_files(kit: Kit, project: Path) -> None:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    (project / "train.py").write_text("1\n")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run([*git, *words], cwd=project, check=True)
    assert run_job(kit) == 0
    (project / "train.py").write_text("2\n")
    assert kit("resubmit", "count").stderr.endswith("found  runs of count: 1\n  do     hpc-kit resubmit 1\n")
    done = kit("resubmit", "1", "--set", "resources.time=20", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "job_id": "2", "name": "count", "run": str(project / "runs/count/2"), "continues": "1",
    }  # fmt: skip
    assert "the code has changed since job 1 was submitted" in done.stderr
    assert "train.py | 2 +-" in done.stderr
    assert "#SBATCH --time=20\n" in (project / "runs/count/2/script.sbatch").read_text()


def test_changed_files_may_have_any_name(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        names = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *names, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    name = os.fsdecode(b"\xe9.py")
    (tmp_path / name).write_text("1\n")
    for words in (("init", "-q"), ("config", "core.quotePath", "false"), ("add", "-A"), ("commit", "-qm", "first")):
        git(*words)
    commit = git("rev-parse", "HEAD").strip()
    (tmp_path / name).write_text("2\n")
    assert describe_changes({"commit": commit}, tmp_path).splitlines()[0] == " \N{REPLACEMENT CHARACTER}.py | 2 +-"


@pytest.mark.slow
def test_a_completed_job_is_reported_and_a_running_one_refused(kit: Kit, project: Path) -> None:
    assert run_job(kit) == 0
    # The new job goes on after the last step of the first.
    again = kit("resubmit", "1", "--set", "env.STEPS=1000", "--set", "env.SECONDS_A_STEP=30")
    assert again.returncode == 0, again.stderr
    assert "job 1 has completed: the new job may find nothing left to do" in again.stderr
    wait_for((project / "runs/count/2/history").exists)
    # As while job 2 starts: its history is still that of job 1.
    shutil.copy(project / "runs/count/1/history", project / "runs/count/2/history")
    refused = kit("resubmit", "2")
    assert refused.returncode == 2
    assert "job 2 has not ended, and two jobs must not write the same checkpoints" in refused.stderr
    assert "hpc-kit cancel 2" in refused.stderr


def test_an_unknown_job_and_a_wrong_value_are_refused(kit: Kit, project: Path) -> None:
    assert kit("history", "99").returncode == 1
    assert kit("resubmit", "99").returncode == 1
    record = project / "runs" / "plain" / "7"
    record.mkdir(parents=True)
    (record / "end").write_text("0 1700000001\n")
    assert kit("history", "7").stdout == "7 plain: no attempts: only jobs with [restart] or [preflight] record them\n"
    assert kit("history").stdout == "no attempts in runs: only jobs with [restart] or [preflight] record them\n"
