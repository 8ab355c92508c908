"""`scontrol update` of a pending job."""

from __future__ import annotations

from tests.pocketslurm.conftest import Slurm


def test_excluded_nodes_of_a_pending_job_can_be_replaced(slurm: Slurm) -> None:
    job = slurm.check_output("sbatch", "--parsable", "--hold", "--exclude=n1", "--nodes=2", "--wrap=true").strip()

    def listed() -> str:
        return slurm.check_output("squeue", "--noheader", f"--jobs={job}", "--format=%x").strip()

    assert listed() == "n1"
    slurm.check_output("scontrol", "update", f"JobId={job}", "ExcNodeList=n[2-3]")
    assert listed() == "n[2-3]"
    slurm.check_output("scontrol", "release", job)
    slurm.until(int(job), "COMPLETED")
    assert slurm.check_output("sacct", "-nPX", f"-j{job}", "-oNodeList").strip() == "n[1,4]"


def test_a_released_job_keeps_its_nice_value(slurm: Slurm) -> None:
    def submit(*options: str) -> str:
        return slurm.check_output("sbatch", "--parsable", "--begin=now+1hour", *options, "--wrap=true").strip()

    def priority(job: str) -> int:
        return int(slurm.check_output("squeue", "--noheader", f"--jobs={job}", "--format=%Q"))

    held, other = submit("--hold", "--nice=500"), submit("--nice=500")
    slurm.check_output("scontrol", "release", held)
    assert priority(held) - priority(other) == int(other) - int(held)
    slurm.check_output("scancel", held, other)
