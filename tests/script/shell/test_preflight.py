"""preflight.sh: which jobs with slow nodes are requeued, and how."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.script.shell.conftest import SHELL, environment

COMMANDS = {
    "squeue": """case $* in
  *%T*) echo "${STATE-RUNNING}" ;;
  *%x*) echo "${EXCLUDED-(null)}" ;;
  *%f*) echo "${FEATURES-(null)}" ;;
esac
exit "${SQUEUE-0}"
""",
    "sinfo": """printf '%s\\n' "${NODES-n1 mix 8 100 gpu:4 a}" 'n2 alloc 8 100 gpu:4 a'; exit "${SINFO-0}"\n""",
    "scontrol": """case $1 in
  show) tr , '\\n' <<<"$3" ;;
  *) echo "$@" >>asked; [[ $1 != "${REFUSED-}" ]] || { echo refused && exit 1; }; [ $1 != requeue ] || kill "$SCRIPT" ;;
esac
""",
}
"""Slurm with the nodes n1 and n2 in use, and those that the test adds. A requeue is followed by TERM."""


def exclude_n1(folder: Path, command: Callable[[str, str], None], before: str = ":", **variables: str) -> str:
    """Call exclude_nodes for a job on n1 and n2 in which n1 is slow; returns its messages and the calls of scontrol."""
    for name, body in COMMANDS.items():
        command(name, body)
    (folder / "preflight").mkdir()
    (folder / "preflight" / "excluded").write_text("n1 n1 is slow: disk\n")
    code = f"""set -euo pipefail
. "{SHELL}/history.sh"
. "{SHELL}/preflight.sh"
export SCRIPT=$$ HPC_KIT_ATTEMPT=1
{before}
exclude_nodes 0 1 0
echo goes on"""
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_NODELIST": "n1,n2"}
    environ = environment(folder, **job, **variables)
    done = subprocess.run(["bash", "-c", code], env=environ, cwd=folder, capture_output=True, text=True, timeout=30)
    asked = folder / "asked"
    return done.stdout + done.stderr + (asked.read_text() if asked.exists() else "")


REQUEUED = "requeue 7\nupdate JobId=7 ExcNodeList=n1\n"


@pytest.mark.parametrize(
    ("node", "features", "is_requeued"),
    [
        ("n3 idle 8 100 gpu:4 b", "(null)", True),
        ("n3 idle~ 8 100 gpu:4 a", "a", True),
        ("n3 idle 8 100 gpu:4 b", "a", False),
        ("n3 idle 8 100 (null) a", "(null)", False),
        ("n3 idle 8 50 gpu:4 a", "(null)", False),
        ("n3 down 8 100 gpu:4 a", "(null)", False),
        ("n3 idle* 8 100 gpu:4 a", "(null)", False),
        ("n3 drain 8 100 gpu:4 a", "(null)", False),
        ("n3 resv 8 100 gpu:4 a", "(null)", False),
    ],
)
def test_only_usable_nodes_like_those_of_the_job_allow_a_requeue(
    node: str, features: str, is_requeued: bool, tmp_path: Path, command: Callable[[str, str], None]
) -> None:
    said = exclude_n1(tmp_path, command, NODES=node, FEATURES=features)
    assert (REQUEUED in said) == is_requeued
    assert ("has 1 other usable nodes" in said) != is_requeued


OTHER = "n3 idle 8 100 gpu:4 a"


def test_the_exclusions_of_the_job_stay(tmp_path: Path, command: Callable[[str, str], None]) -> None:
    assert "ExcNodeList=n9,n1\n" in exclude_n1(tmp_path, command, NODES=OTHER, EXCLUDED="n9")


@pytest.mark.parametrize("variables", [{"SQUEUE": "1"}, {"SINFO": "1"}])
def test_without_an_answer_of_slurm_the_job_goes_on(
    variables: dict[str, str], tmp_path: Path, command: Callable[[str, str], None]
) -> None:
    said = exclude_n1(tmp_path, command, NODES=OTHER, **variables)
    assert "goes on with n1: squeue or sinfo gave no answer" in said
    assert "goes on\n" in said
    assert "requeue 7" not in said


@pytest.mark.parametrize(("before", "state"), [("restart_stop=TERM", "RUNNING"), (":", "COMPLETING")])
def test_a_job_that_is_being_stopped_is_not_requeued(
    before: str, state: str, tmp_path: Path, command: Callable[[str, str], None]
) -> None:
    assert exclude_n1(tmp_path, command, before, NODES=OTHER, STATE=state) == "goes on\n"


def test_a_job_in_a_reservation_is_not_requeued(tmp_path: Path, command: Callable[[str, str], None]) -> None:
    said = exclude_n1(tmp_path, command, NODES=OTHER, SLURM_JOB_RESERVATION="mine")
    assert "a job in reservation mine is not requeued" in said
    assert "requeue 7" not in said


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ("requeue", "found  n1 is slow: disk\n         scontrol requeue: refused\n"),
        ("update", "hpc-kit: the job may get the nodes n1 again: scontrol update: refused\n"),
    ],
)
def test_what_scontrol_refuses_is_said(
    refused: str, message: str, tmp_path: Path, command: Callable[[str, str], None]
) -> None:
    said = exclude_n1(tmp_path, command, NODES=OTHER, REFUSED=refused)
    assert message in said


def test_requeues_before_a_resubmission_do_not_count(tmp_path: Path, command: Callable[[str, str], None]) -> None:
    requeue = '{"event": "end", "decision": "requeue", "reason": "preflight: n5 is slow"}\n'
    (tmp_path / "history").write_text(requeue + '{"event": "resubmitted"}\n')
    assert REQUEUED in exclude_n1(tmp_path, command, NODES=OTHER)
