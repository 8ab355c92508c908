"""The pytest plug-in: its fixture, and its use in the test run of another project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from pocketslurm.pytest_plugin import PocketSlurm, find_processes
from tests.conftest import ROOT
from tests.pocketslurm.conftest import wait_for

PLUGIN = "pocketslurm.pytest_plugin"
ARGV = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN]
ENVIRON = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Without the other plug-ins, which take longer to load than the tests."""


@pytest.mark.slow
def test_the_example_of_the_readme(tmp_path: Path) -> None:
    text = (ROOT / "pocketslurm/README.md").read_text()
    script, test = (re.search(rf"```{kind}\n(# )?{name}.*?\n(.*?)```", text, re.DOTALL) for kind, name in FILES)
    assert script is not None
    assert test is not None
    (tmp_path / "train.sh").write_text(script[2])
    (tmp_path / "test_train.py").write_text(test[2])
    assert len(test[2].splitlines()) <= 15
    done = subprocess.run([*ARGV, "-p", "xdist", "-n2"], env=ENVIRON, capture_output=True, text=True, cwd=tmp_path)
    assert "2 passed" in done.stdout, done.stdout


FILES = (("bash", "train.sh"), ("python", "test_train.py"))


@pytest.mark.pocketslurm(nodes=3, cpus=2, gpus=1)
def test_the_marker_chooses_the_nodes(pocketslurm: PocketSlurm) -> None:
    printed = subprocess.run(["sinfo", "-hN", "-o%N %c %G"], capture_output=True, text=True).stdout
    assert printed.splitlines() == [f"127.0.0.{node} 2 gpu:1" for node in (1, 2, 3)]
    pocketslurm(nodes="a[1-2]")
    printed = subprocess.run(["sinfo", "-hN", "-o%N %c %G"], capture_output=True, text=True).stdout
    assert printed.splitlines() == ["a1 2 gpu:1", "a2 2 gpu:1"]


@pytest.mark.slow
def test_a_job_that_fails(pocketslurm: PocketSlurm, tmp_path: Path) -> None:
    job = pocketslurm.run("--output", tmp_path / "%j.log", "--wrap", "echo $SLURM_JOB_NUM_NODES; exit 3")
    assert (job.id, job.state, job.exit_code, job.output, job.error) == (1, "FAILED", 3, "1\n", "1\n")


@pytest.mark.slow
def test_the_exit_code_of_a_script(pocketslurm: PocketSlurm, tmp_path: Path) -> None:
    codes = {"exit 137": 137, "kill -TERM $$": 143, "sleep 60": 143, "true": 0}
    jobs = {command: pocketslurm.submit("--output", tmp_path / "%j", "--wrap", command) for command in codes}
    subprocess.run(["scancel", str(jobs["sleep 60"].id)], check=True)
    assert {command: job.wait().exit_code for command, job in jobs.items()} == codes


@pytest.mark.slow
def test_an_array(pocketslurm: PocketSlurm, tmp_path: Path) -> None:
    job = pocketslurm.run("--array=0-2", "-o", tmp_path / "%a.log", "--wrap", "echo $SLURM_ARRAY_TASK_ID")
    assert (job.state, job.output) == ("COMPLETED", "0\n1\n2\n")


def test_a_process_without_standard_error_belongs_to_the_queue(pocketslurm: PocketSlurm, tmp_path: Path) -> None:
    pocketslurm.submit("--output=/dev/null", "--wrap", f"exec 2>&-; echo $$ >{tmp_path}/pid; exec sleep 60")
    pid = wait_for(lambda: (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else "")
    assert int(pid) in find_processes(pocketslurm.folder)


@pytest.mark.slow
def test_a_job_that_waits_forever_fails_the_test_with_the_reason(pocketslurm: PocketSlurm) -> None:
    job = pocketslurm.submit("--begin=now+1hour", "--wrap=true")
    wait_for(lambda: "BeginTime" in subprocess.run(["squeue"], capture_output=True, text=True).stdout)
    with pytest.raises(pytest.fail.Exception, match=r"job 1 is PENDING \(BeginTime\) after 0 s"):
        job.wait(timeout=0)


def test_a_job_that_sbatch_refuses_fails_the_test(pocketslurm: PocketSlurm) -> None:
    with pytest.raises(pytest.fail.Exception, match="sbatch: error"):
        pocketslurm.submit("--nodes=0", "--wrap=true")


def test_a_job_that_does_not_end_fails_the_test(pocketslurm: PocketSlurm, tmp_path: Path) -> None:
    job = pocketslurm.submit("-o", tmp_path / "log", "--wrap", "echo begun; sleep 60")
    while not job.output:
        time.sleep(0.1)
    with pytest.raises(pytest.fail.Exception, match=r"job 1 is RUNNING \(None\) after 0.2 s; its output:\nbegun"):
        job.wait(timeout=0.2)


@pytest.mark.slow
def test_everything_ends_after_a_test_that_failed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(pocketslurm):\n"
        "    job = pocketslurm.submit('--output=log', '--wrap', 'trap \"\" TERM; srun sleep 600 & echo begun; wait')\n"
        "    while not job.output: pass\n"
        "    open('folder', 'w').write(str(pocketslurm.folder))\n"
        "    assert 0\n"
    )
    done = subprocess.run(ARGV, env=ENVIRON, capture_output=True, text=True, cwd=tmp_path)
    assert "1 failed" in done.stdout, done.stdout
    folder = Path((tmp_path / "folder").read_text())
    assert not folder.exists()
    assert find_processes(folder) == []


def test_the_plugin_costs_little_if_it_is_not_used() -> None:
    program = "import pytest, sys; before = set(sys.modules); import pocketslurm.pytest_plugin\n"
    program += "print(sorted(name for name in set(sys.modules) - before if 'slurm' in name or 'hpc_kit' in name))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "['pocketslurm', 'pocketslurm.pytest_plugin']\n"


def test_pytest_finds_the_plugin_of_the_installed_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # With the module as its name, pytest does not load it a second time for `-p`.
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
