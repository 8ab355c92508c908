"""Job arrays: ids, names, the limit of running tasks, and commands for single tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.slurm.option_values import fold_indices
from pocketslurm.queue.job_ids import array_indices
from tests.pocketslurm.conftest import Slurm, wait_for


@given(st.sets(st.integers(0, 2000), min_size=1, max_size=60))
def test_folded_indices_are_read_back(indices: set[int]) -> None:
    assert array_indices(fold_indices(indices)) == sorted(indices)


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([5], "5"),
        ([1, 3, 5], "1,3,5"),
        (range(10), "0-9"),
        (range(0, 20, 2), "0-18:2"),
        ([0, 9, 18], "0,9,18"),
        ([0, 1, 2, 7, 8], "0-2,7-8"),
    ],
)
def test_indices_are_folded_as_slurm_writes_them(indices: list[int], text: str) -> None:
    assert fold_indices(indices) == text


def test_tasks_know_their_array(slurm: Slurm) -> None:
    names = "ARRAY_JOB_ID ARRAY_TASK_ID ARRAY_TASK_COUNT ARRAY_TASK_MIN ARRAY_TASK_MAX ARRAY_TASK_STEP JOB_ID"
    array = slurm.submit("echo " + " ".join(f"$SLURM_{name}" for name in names.split()), "--array=1-5:2%1")
    wait_for(lambda: not slurm.job(array).active)
    logs = {index: slurm.log(f"slurm-{array}_{index}.out").split() for index in (1, 3, 5)}
    assert {index: log[:-1] for index, log in logs.items()} == {
        index: [str(array), str(index), "3", "1", "5", "2"] for index in (1, 3, 5)
    }
    # Each started task takes the next free number; the last one that is left keeps the array's.
    assert [logs[index][-1] for index in (1, 3, 5)] == [str(array + 1), str(array + 2), str(array)]


def test_waiting_tasks_are_one_line_with_their_limit(slurm: Slurm) -> None:
    array = slurm.submit("sleep 600", "--array=0-5%2")
    wait_for(lambda: slurm.check_output("squeue", "-h", "-t", "R", "-o", "%i").split() == [f"{array}_0", f"{array}_1"])
    assert (
        slurm.check_output("squeue", "-h", "-t", "PD", "-o", "%i|%F|%K|%r")
        == f"{array}_[2-5%2]|{array}|2-5%2|JobArrayTaskLimit\n"
    )
    apart = slurm.check_output("squeue", "-h", "-r", "-t", "PD", "-o", "%i").split()
    assert apart == [f"{array}_{index}" for index in (2, 3, 4, 5)]
    assert slurm.check_output("sacct", "-nPX", "-o", "JobID,State").splitlines() == [
        f"{array}_0|RUNNING", f"{array}_1|RUNNING", f"{array}_[2-5%2]|PENDING",
    ]  # fmt: skip


def test_single_tasks_are_cancelled_waiting_or_running(slurm: Slurm) -> None:
    array = slurm.submit("sleep 600", "--array=0-5%2")
    wait_for(lambda: len(slurm.check_output("squeue", "-h", "-t", "R").splitlines()) == 2)
    slurm.check_output("scancel", f"{array}_3", f"{array}_[4-5]")
    assert slurm.check_output("squeue", "-h", "-t", "PD", "-o", "%i") == f"{array}_[2%2]\n"
    slurm.check_output("scancel", f"{array}_0")
    wait_for(lambda: slurm.check_output("squeue", "-h", "-t", "R", "-o", "%i").split() == [f"{array}_1", f"{array}_2"])
    states = slurm.check_output("sacct", "-nPX", "-o", "JobID,State", "-j", f"{array}_0,{array}_3,{array}_4,{array}_5")
    assert {line.partition(" by ")[0] for line in states.splitlines()} == {
        f"{array}_{i}|CANCELLED" for i in (0, 3, 4, 5)
    }
    slurm.check_output("scancel", str(array))
    assert slurm.check_output("squeue", "-h", "-t", "PD,R") == ""


def test_the_limit_can_be_changed_while_tasks_wait(slurm: Slurm) -> None:
    array = slurm.submit("sleep 600", "--array=0-9%1")
    wait_for(lambda: len(slurm.check_output("squeue", "-h", "-t", "R").splitlines()) == 1)
    slurm.check_output("scontrol", "update", f"JobId={array}", "ArrayTaskThrottle=3")
    wait_for(lambda: len(slurm.check_output("squeue", "-h", "-t", "R").splitlines()) == 3)


def test_one_waiting_task_can_be_held_and_shown_alone(slurm: Slurm) -> None:
    array = slurm.submit("sleep 600", "--array=0-2", "--hold")
    slurm.check_output("scontrol", "release", f"{array}_1")
    wait_for(lambda: slurm.check_output("squeue", "-h", "-t", "R", "-o", "%i") == f"{array}_1\n")
    assert slurm.check_output("squeue", "-h", "-t", "PD", "-o", "%i %r") == f"{array}_[0,2] JobHeldUser\n"
    shown = slurm.check_output("scontrol", "show", "job", f"{array}_2")
    assert shown.startswith(f"JobId={array} ArrayJobId={array} ArrayTaskId=2 JobName=job.sh\n")
    assert f"StdOut={slurm.folder}/slurm-{array}_2.out\n" in shown
    missing = slurm.run("scontrol", "show", "job", f"{array}_7")
    assert (missing.returncode, missing.stdout) == (1, f"Job {array}_7 not found\n")


@pytest.mark.parametrize("indices", ["1001", "0-1001", "x", "3-1"])
def test_an_impossible_array_is_refused(slurm: Slurm, indices: str) -> None:
    message = "sbatch: error: Batch job submission failed: Invalid job array specification\n"
    assert slurm.refused("sbatch", f"--array={indices}", "--wrap", "true") == (1, message)


def test_a_long_list_of_indices_is_shortened_in_listings(slurm: Slurm) -> None:
    text = ",".join(str(i * i) for i in range(2, 32))
    array = slurm.submit("true", f"--array={text}", "--hold")
    assert slurm.check_output("squeue", "-h", "-o", "%i") == f"{array}_[{text[:60]}...]\n"
    assert slurm.check_output("squeue", "-h", "-o", "%K") == f"{text}\n"


def test_a_failed_task_can_be_requeued_alone(slurm: Slurm) -> None:
    array = slurm.submit(
        'echo $SLURM_RESTART_COUNT; test $SLURM_ARRAY_TASK_ID != 1 -o -n "$SLURM_RESTART_COUNT"', "--array=0-1"
    )
    wait_for(lambda: "FAILED" in slurm.check_output("sacct", "-nPX", "-o", "State"))
    wait_for(lambda: not slurm.check_output("squeue", "-h"))
    slurm.check_output("scontrol", "requeue", f"{array}_1")
    wait_for(lambda: slurm.check_output("sacct", "-nPX", "-o", "State").split() == ["COMPLETED", "COMPLETED"])
    assert slurm.log(f"slurm-{array}_1.out") == "1\n"
