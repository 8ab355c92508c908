"""CPU time and memory in sacct."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from pocketslurm import resources
from pocketslurm.queue.records import Step
from tests.pocketslurm.conftest import Slurm

WORK = "x = bytearray(300 << 20)\nwhile sum(__import__('os').times()[:2]) < 0.5: pass"


def cells(slurm: Slurm, job_id: int, columns: str) -> dict[str, list[str]]:
    """The columns of a job's lines, by their ids."""
    lines = slurm.check_output("sacct", "-nP", "-j", str(job_id), "-o", f"JobID,{columns}").splitlines()
    return {name: rest for name, *rest in (line.split("|") for line in lines)}


def seconds(text: str) -> float:
    minutes, second = text.split(":")[-2:]
    return int(minutes) * 60 + float(second)


def test_a_step_accounts_for_its_tasks_and_the_script_for_itself(slurm: Slurm) -> None:
    (slurm.folder / "work.py").write_text(WORK)
    large = bytearray(400 << 20)  # the controller and the supervisor are copies of this process
    job = slurm.ended(slurm.submit(f"srun {shlex.quote(sys.executable)} work.py", "-N2", "-o", "/dev/null")).job_id
    del large
    printed = cells(slurm, job, "UserCPU,SystemCPU,TotalCPU,MaxRSS")
    step, batch, whole = printed[f"{job}.0"], printed[f"{job}.batch"], printed[f"{job}"]
    assert seconds(step[2]) >= 1
    assert seconds(batch[2]) < seconds(step[2])
    assert seconds(whole[2]) == pytest.approx(seconds(step[2]) + seconds(batch[2]), abs=0.002)
    assert seconds(step[2]) == pytest.approx(seconds(step[0]) + seconds(step[1]), abs=0.002)
    assert 300 << 10 <= int(step[3].removesuffix("K")) < 600 << 10
    assert (batch[3], whole[3]) == ("", "")
    assert cells(slurm, job, "MaxRSS")[f"{job}.0"][0].endswith("K")


def test_a_script_without_steps_accounts_for_its_own_processes(slurm: Slurm) -> None:
    (slurm.folder / "work.py").write_text(WORK)
    # By the real command: this process, whose copies the daemons would be, may be as large as the work.
    command = ["sbatch", "--parsable", "-o", "/dev/null", "--wrap", f"{shlex.quote(sys.executable)} work.py"]
    output = subprocess.run(command, cwd=slurm.folder, env=slurm.environ, capture_output=True, text=True, check=True)
    job = slurm.ended(int(output.stdout)).job_id
    total, memory = cells(slurm, job, "TotalCPU,MaxRSS")[f"{job}.batch"]
    assert seconds(total) >= 0.5
    assert 300 << 10 <= int(memory.removesuffix("K")) < 600 << 10


def test_memory_is_unknown_before_the_end(slurm: Slurm) -> None:
    job = slurm.submit("sleep 600", "-o", "/dev/null")
    slurm.until(job, "RUNNING")
    assert cells(slurm, job, "TotalCPU,MaxRSS")[str(job)] == ["00:00:00", ""]


@pytest.mark.parametrize(
    ("used", "text"),
    [(0, "00:00:00"), (0.0014, "00:00.001"), (59.5, "00:59.500"), (60, "00:01:00"), (3599.9999, "59:59.999"),
     (3600.5, "01:00:00"), (90061.25, "1-01:01:01")],
)  # fmt: skip
def test_cpu_seconds_are_written_as_slurm_does(used: float, text: str) -> None:
    assert resources.format_cpu_time(used) == text


def test_the_use_beside_steps_is_never_negative() -> None:
    step = Step(1, 0, 0, "a", ["n1"], user_cpu=1e9, system_cpu=1e9, peak_memory=1 << 40)
    assert resources.children_usage([step]) == resources.ResourceUsage()
