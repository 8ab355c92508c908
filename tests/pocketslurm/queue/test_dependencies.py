"""--dependency, --begin and --hold: the time when a job may start, and the reason shown until then."""

from __future__ import annotations

import pytest

from tests.pocketslurm.conftest import Slurm, wait_for

FAILS = "exit 1"
WAITS = "while [ ! -e go ]; do sleep 0.05; done"


def reason(slurm: Slurm, job_id: int) -> str:
    job = slurm.job(job_id)
    return f"{job.state} {job.reason}"


@pytest.mark.parametrize(
    ("kind", "body", "outcome"),
    [
        ("afterok", "true", "COMPLETED"),
        ("afterok", FAILS, "DependencyNeverSatisfied"),
        ("afterany", "true", "COMPLETED"),
        ("afterany", FAILS, "COMPLETED"),
        ("afternotok", "true", "DependencyNeverSatisfied"),
        ("afternotok", FAILS, "COMPLETED"),
        ("aftercorr", "true", "COMPLETED"),
    ],
)
def test_a_job_waits_for_the_end_of_another(slurm: Slurm, kind: str, body: str, outcome: str) -> None:
    first = slurm.submit(f"{WAITS}\n{body}")
    second = slurm.submit("true", f"--dependency={kind}:{first}")
    wait_for(lambda: reason(slurm, second) == "PENDING Dependency")
    shown = slurm.check_output("squeue", "-h", "-j", str(second), "-o", "%E")
    assert shown == f"{kind}:{first}(unfulfilled)\n"
    (slurm.folder / "go").touch()
    if outcome == "COMPLETED":
        slurm.until(second, outcome)
    else:
        wait_for(lambda: reason(slurm, second) == f"PENDING {outcome}")
        assert slurm.check_output("squeue", "-h", "-j", str(second), "-o", "%E") == f"{kind}:{first}(failed)\n"


def test_after_waits_for_the_start_only(slurm: Slurm) -> None:
    first = slurm.submit("sleep 600", "--begin=now+1hour")
    second = slurm.submit("true", f"--dependency=after:{first}")
    wait_for(lambda: reason(slurm, first) == "PENDING BeginTime")
    wait_for(lambda: reason(slurm, second) == "PENDING Dependency")
    slurm.check_output("scontrol", "update", f"JobId={first}", "StartTime=now")
    slurm.until(second, "COMPLETED")
    assert slurm.job(first).state == "RUNNING"


def test_a_dependency_that_cannot_be_met_cancels_the_job_if_wished(slurm: Slurm) -> None:
    first = slurm.submit(FAILS)
    second = slurm.submit("true", f"--dependency=afterok:{first}", "--kill-on-invalid-dep=yes")
    assert slurm.until(second, "CANCELLED").start_time == 0


def test_a_job_waits_for_all_of_several_dependencies_or_for_any(slurm: Slurm) -> None:
    good, bad = slurm.submit("true"), slurm.submit(FAILS)
    held = slurm.submit("true", "--hold")
    both = slurm.submit("true", f"--dependency=afterok:{good},afterok:{held}")
    either = slurm.submit("true", f"--dependency=afterok:{bad}?afterok:{good}")
    neither = slurm.submit("true", f"--dependency=afterok:{bad}?afternotok:{good}")
    slurm.until(either, "COMPLETED")
    wait_for(lambda: reason(slurm, neither) == "PENDING DependencyNeverSatisfied")
    assert reason(slurm, both) == "PENDING Dependency"
    slurm.check_output("scontrol", "release", str(held))
    slurm.until(both, "COMPLETED")


def test_a_job_waits_for_a_whole_array(slurm: Slurm) -> None:
    array = slurm.submit("test $SLURM_ARRAY_TASK_ID != 1", "--array=0-2")
    any_of_it = slurm.submit("true", f"--dependency=afterany:{array}")
    all_good = slurm.submit("true", f"--dependency=afterok:{array}")
    one_good = slurm.submit("true", f"--dependency=afterok:{array}_2")
    slurm.until(any_of_it, "COMPLETED")
    slurm.until(one_good, "COMPLETED")
    wait_for(lambda: reason(slurm, all_good) == "PENDING DependencyNeverSatisfied")


def test_tasks_wait_for_their_counterparts(slurm: Slurm) -> None:
    first = slurm.submit("while [ ! -e go$SLURM_ARRAY_TASK_ID ]; do sleep 0.05; done", "--array=0-1")
    second = slurm.submit("true", "--array=0-1", f"--dependency=aftercorr:{first}")
    (slurm.folder / "go1").touch()
    wait_for(lambda: slurm.check_output("sacct", "-nPX", "-o", "State", "-j", f"{second}_1") == "COMPLETED\n")
    assert slurm.check_output("squeue", "-h", "-j", str(second), "-o", "%i %r") == f"{second}_[0] Dependency\n"
    (slurm.folder / "go0").touch()
    wait_for(lambda: slurm.check_output("squeue", "-h") == "")


def test_singletons_with_the_same_name_run_one_after_another(slurm: Slurm) -> None:
    options = ("-J", "one", "--dependency=singleton")
    first = slurm.submit(WAITS, *options)
    second = slurm.submit("true", *options)
    other = slurm.submit("true", "-J", "other", "--dependency=singleton")
    slurm.until(other, "COMPLETED")
    assert reason(slurm, second) == "PENDING Dependency"
    (slurm.folder / "go").touch()
    assert slurm.until(second, "COMPLETED").start_time >= slurm.job(first).end_time


def test_an_unknown_job_counts_as_ended(slurm: Slurm) -> None:
    slurm.until(slurm.submit("true", "--dependency=afterok:99999"), "COMPLETED")


@pytest.mark.parametrize("text", ["bogus:1", "afterok:x", "afterok"])
def test_a_malformed_dependency_is_refused(slurm: Slurm, text: str) -> None:
    message = "sbatch: error: Batch job submission failed: Job dependency problem\n"
    assert slurm.refused("sbatch", f"--dependency={text}", "--wrap", "true") == (1, message)


def test_a_held_job_waits_for_its_release(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--hold")
    wait_for(lambda: reason(slurm, job_id) == "PENDING JobHeldUser")
    assert slurm.check_output("sacct", "-nPX", "-o", "State,Reason", "-j", str(job_id)) == "PENDING|JobHeldUser\n"
    slurm.check_output("scontrol", "release", str(job_id))
    slurm.until(job_id, "COMPLETED")


def test_a_waiting_job_can_be_held(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--begin=now+1hour")
    slurm.check_output("scontrol", "uhold", str(job_id))
    assert reason(slurm, job_id) == "PENDING JobHeldUser"
    slurm.check_output("scontrol", "update", f"JobId={job_id}", "StartTime=now")
    slurm.check_output("scontrol", "release", str(job_id))
    slurm.until(job_id, "COMPLETED")


def test_a_job_past_its_deadline_is_not_started(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--hold", "--deadline=now+1seconds")
    assert slurm.until(job_id, "DEADLINE").start_time == 0
