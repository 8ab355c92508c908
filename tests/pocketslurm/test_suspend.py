"""scontrol suspend and resume: a job's processes and its clock stand still; notify: a line in its log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pocketslurm.queue.records import Job
from pocketslurm.queue.supervisor import end_of_time
from tests.pocketslurm.conftest import wait_for

if TYPE_CHECKING:
    from tests.pocketslurm.conftest import Slurm

BODY = "srun -n2 bash -c 'echo $$ >> pids; while sleep 0.02; do echo >> beats; done'"


def _states(slurm: Slurm) -> set[str]:
    """The kernel's letters for the state of the tasks."""
    return {Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] for pid in slurm.log("pids").split()}


def _run(slurm: Slurm, *options: str) -> int:
    job_id = slurm.submit(BODY, "-n2", *options)
    beats = slurm.folder / "beats"
    wait_for(lambda: beats.exists() and len(slurm.log("pids").split()) == 2)
    return job_id


def test_a_suspended_job_stands_still_until_it_is_resumed(slurm: Slurm) -> None:
    job_id = _run(slurm)
    assert slurm.said("scontrol", "suspend", str(job_id)) == ""
    wait_for(lambda: _states(slurm) == {"T"})
    assert slurm.said("squeue", "-h", "-o", "%t %T") == "S SUSPENDED\n"
    assert slurm.said("squeue", "-h", "-t", "R") == ""
    assert slurm.said("sacct", "-nXP", "-s", "S", "-o", "State") == "SUSPENDED\n"
    assert "JobState=SUSPENDED" in slurm.said("scontrol", "show", "job", str(job_id))
    assert slurm.said("scontrol", "suspend", str(job_id)) == ""
    wait_for(lambda: slurm.said("sacct", "-nXP", "-o", "Suspended") >= "00:00:02")
    length = len(slurm.log("beats"))
    slurm.said("scontrol", "resume", str(job_id))
    wait_for(lambda: len(slurm.log("beats")) > length and "T" not in _states(slurm))
    assert slurm.said("squeue", "-h", "-o", "%t") == "R\n"
    again = slurm.run("scontrol", "resume", str(job_id))
    assert (again.returncode, again.stderr) == (1, f"Job is not suspended for job {job_id}\n")
    slurm.said("scancel", str(job_id))
    slurm.until(job_id, "CANCELLED")


def test_the_time_of_a_suspended_job_does_not_run_on() -> None:
    job = Job(1, "a", "ada", 1000, "users", 1000, "local", state="RUNNING", start_time=100, time_limit=120)
    assert [end_of_time(job, 60), end_of_time(job._replace(suspended=7), 60)] == [220, 227]
    stands_still = job._replace(suspended=7, suspended_at=150)
    assert (end_of_time(stands_still, 60), stands_still.suspended_for(155)) == (0, 12)
    assert stands_still._replace(end_time=153).suspended_for(155) == 10


def test_a_suspended_job_is_cancelled_at_once(slurm: Slurm) -> None:
    job_id = _run(slurm)
    slurm.said("scontrol", "suspend", str(job_id))
    wait_for(lambda: _states(slurm) == {"T"})
    slurm.said("scancel", str(job_id))
    slurm.until(job_id, "CANCELLED")
    wait_for(lambda: not slurm.processes())


def test_what_does_not_run_is_neither_suspended_nor_notified(slurm: Slurm) -> None:
    held = slurm.submit("true", "--hold")
    for verb in ("suspend", "resume"):
        assert slurm.refused("scontrol", verb, str(held)) == (1, f"Job is pending execution for job {held}\n")
    why = "job notify failure: Requested operation is presently disabled\n"
    assert slurm.refused("scontrol", "notify", str(held), "hello") == (1, why)
    over = slurm.submit("true")
    slurm.until(over, "COMPLETED")
    done = "Job/step already completing or completed"
    assert slurm.refused("scontrol", "suspend", str(over)) == (1, f"{done} for job {over}\n")
    assert slurm.refused("scontrol", "notify", str(over), "hello") == (1, f"job notify failure: {done}\n")


def test_a_notice_stands_in_the_log(slurm: Slurm) -> None:
    job_id = _run(slurm, "-o", "log")
    slurm.said("scontrol", "notify", str(job_id), "hello", "there world")
    wait_for(lambda: slurm.log("log") == "slurmstepd: error: hello there world\n")
