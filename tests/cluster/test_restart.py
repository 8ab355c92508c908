"""Jobs with [restart] on the real Slurm: the faults that the embedded one does not have."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_kit.run_files import END
from hpc_kit.script.render import render
from tests.faults.queues import RealQueue
from tests.faults.ring import ANYWHERE, REAL, Kind, Trial
from tests.faults.test_foreign import LOST, count_repeated, job_settings, require, starts

from . import Cluster
from .project import Project

pytestmark = pytest.mark.timeout(400)

QUICK = {"torchrun in a standalone script: kill -9 of a rank"}
"""A fault of both Slurms that depends on how the real one ends the processes of a step."""

LIMITED_SECONDS = 1800
"""Time for a trial whose time limit follows the speed of the machine. A trial without progress ends earlier."""


def marks(kind: Kind) -> list[pytest.MarkDecorator]:
    slow = kind in ANYWHERE and kind.name not in QUICK
    return [pytest.mark.slow] * slow + [pytest.mark.timeout(LIMITED_SECONDS)] * kind.limited


KINDS = [pytest.param(kind, id=kind.name, marks=marks(kind)) for kind in REAL]


@pytest.fixture
def queue(faulty: Cluster) -> Iterator[RealQueue]:
    own = RealQueue(faulty, Path(tempfile.mkdtemp(prefix="restart-", dir=faulty.settings.work)))
    yield own
    own.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_survives(queue: RealQueue, kind: Kind) -> None:
    Trial(queue, kind, random.Random(1), 1).survive()


@pytest.fixture
def project(faulty: Cluster) -> Iterator[Project]:
    with contextlib.closing(Project(faulty, "restart")) as project:
        yield project


def await_file(path: Path, text: str = "") -> None:
    deadline = time.monotonic() + 120
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, f"no {text!r} in {path}"
        time.sleep(0.2)


SLEEPING = """
import os, pathlib, time
rank = os.environ["RANK"]
pathlib.Path(f"new-{rank}").write_text(str(os.getpid()))
pathlib.Path(f"new-{rank}").rename(f"process-{rank}")
time.sleep(200)
"""


RANKS = {
    "srun": ("-j", "2x2"),
    "torchrun": ("-j", "2x1", "--set=launch.launcher=torchrun", "--set=launch.nproc_per_node=2"),
}
"""Options of `submit` for two ranks on each of two nodes."""


@pytest.mark.parametrize("launcher", RANKS)
def test_a_standalone_script_without_restart_names_the_rank_that_was_killed(project: Project, launcher: str) -> None:
    project.program("train.py", SLEEPING)
    job = project.submit(*RANKS[launcher], "--standalone", "--", "python", "train.py")
    for rank in range(4):
        await_file(project.folder / f"process-{rank}")
    os.kill(int((project.folder / "process-3").read_text()), signal.SIGKILL)
    assert project.await_end(job, patience=60) == "FAILED"
    [line] = project.status(job)
    assert "rank 3 on n2" in line["sentence"]
    assert "failed  rank 3 on n2 was killed by SIGKILL" in project.kit("logs", job).stdout


SAVING = """
import os, sys, time, torch, hpc_kit
model = torch.nn.Linear(4, 4)
with hpc_kit.distributed():
    saver = hpc_kit.Checkpointer(sys.argv[1], every=1)
    first = saver.restore(model=model)
    saver.step(first)
    open(f"process-{os.environ['SLURM_JOB_ID']}", "w").write(f"{os.getpid()}\\n")
    time.sleep(float(sys.argv[2]))
"""


def test_a_folder_of_checkpoints_belongs_to_one_job_until_that_is_killed(project: Project) -> None:
    project.program("train.py", SAVING)
    first = project.submit("-j", "1x1", "-w", "n1", "--", "python", "train.py", "saved", "200")
    process = project.folder / f"process-{first}"
    await_file(process, "\n")
    command = ("-j", "1x1", "-w", "n2", "--", "python", "train.py", "saved", "0")
    second = project.submit(*command)
    assert project.await_end(second) == "FAILED"
    told = (project.folder / f"runs/train/{second}/rank-0.log").read_text()
    assert f"saved: job {first} ({project.folder}/runs/train/{first}) on n1\n  do     choose another folder" in told
    os.kill(int(process.read_text()), signal.SIGKILL)
    assert project.await_end(first) == "FAILED"
    third = project.submit(*command)
    assert project.await_end(third) == "COMPLETED"
    assert "resume  step 1 of saved/step-1" in (project.folder / f"runs/train/{third}/rank-0.log").read_text()


def test_checkpoints_on_the_disk_of_a_node_are_refused_in_a_job_of_two(project: Project) -> None:
    project.program("train.py", SAVING)
    job = project.submit("-j", "2x1", "--", "python", "train.py", "/tmp/saved", "0")
    assert project.await_end(job) == "FAILED"
    told = (project.folder / f"runs/train/{job}/rank-0.log").read_text()
    assert "found  /tmp/saved: n2 cannot see what rank 0 writes there" in told


FOREIGN = {
    "lightning_trainer": ("lightning", 2),
    "accelerate_script": ("accelerate", LOST),
    "hf_trainer": ("transformers", LOST),
}
"""Programs with their packages, and the steps that an attempt may compute again."""


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_foreign_trainers_survive_their_time_limit(queue: RealQueue) -> None:
    runs: dict[str, Path] = {}
    for program, (package, _) in FOREIGN.items():
        require(package)
        folder = queue.folder / program
        (folder / "runs" / "job").mkdir(parents=True)
        settings = {**job_settings(program, 2), "restart.lead": 60, "resources.time": "3", "env.SECONDS_A_STEP": "3"}
        text = render("single", "slurm", set={**settings, "resources.chdir": str(folder)}, root=folder)
        (folder / "job.sbatch").write_text(text)
        done = queue.call("sbatch", "--parsable", str(folder / "job.sbatch"))
        runs[program] = folder / "runs" / "job" / done.stdout.strip()
    deadline = time.monotonic() + 430
    while time.monotonic() < deadline and not all((run / END).exists() for run in runs.values()):
        time.sleep(1)
    for program, run in runs.items():
        log = (
            (run / "history").read_text()
            + run.with_name(f"{run.name}.log").read_text()
            + (run / "rank-0.log").read_text()
        )
        assert (run / END).exists(), log
        assert (run / END).read_text().split()[0] == "0", log
        attempts = len(starts(run))
        assert attempts > 1, log
        assert count_repeated(run.parents[2] / "steps") <= FOREIGN[program][1] * (attempts - 1), log
