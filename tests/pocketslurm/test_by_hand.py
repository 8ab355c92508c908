"""Batch scripts as people write them: by_hand/NAME.sh runs unchanged, and NAME.out lists the lines of its logs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pocketslurm.queue.records import Job
from tests.pocketslurm.conftest import Slurm, wait_for

pytestmark = pytest.mark.waits

FOLDER = Path(__file__).parent / "by_hand"
SCRIPTS = sorted(FOLDER.glob("*.sh"))

LAUNCHER = """#!/bin/sh
echo "$SLURMD_NODENAME: $(echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | wc -l) gpus, torchrun $*"
"""

TRAIN = """
import os, sys
rank, size, local, node = (os.environ[f"SLURM_{name}"] for name in ("PROCID", "NTASKS", "LOCALID", "NODEID"))
there = f"local {local} of {os.environ['SLURM_NTASKS_PER_NODE']}, node {node} of {os.environ['SLURM_NNODES']}"
words = " ".join(f'"{word}"' if " " in word else word for word in sys.argv[1:])
print(f"rank {rank} of {size}, {there} on {os.environ['SLURMD_NODENAME']}: {words}", flush=True)
"""


def submit(slurm: Slurm, path: Path) -> int:
    """Submit a script from its folder, as a person does."""
    folder = slurm.folder / path.stem
    folder.mkdir()
    shutil.copy(path, folder)
    (folder / "activateEnvironment.sh").write_text("export ACTIVATED=yes\n")
    (folder / "params.txt").write_text("".join(f"--lr 0.{index}\n" for index in range(1, 10)))
    (folder / "train.py").write_text(TRAIN)
    (folder / "torchrun").write_text(LAUNCHER)
    (folder / "torchrun").chmod(0o755)
    process = slurm.start("sbatch", "--parsable", path.name, env={"PROJECT_DIR": "/project"}, folder=folder)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return int(out.partition(";")[0])


def jobs_of(slurm: Slurm, job_id: int) -> list[Job]:
    """Return all jobs with the name of a job, such as the tasks of its array."""
    state = slurm.state()
    found = state.jobs("name = (SELECT name FROM jobs WHERE job_id = ?)", (job_id,))
    state.close()
    return found


def logs(folder: Path) -> dict[str, list[str]]:
    """The lines of each log, in order."""
    known = {"activateEnvironment.sh", "params.txt", "train.py", "torchrun", "hostfile", f"{folder.name}.sh"}
    found = [path for path in sorted(folder.iterdir()) if path.name not in known and path.stat().st_size]
    return {path.name: sorted(path.read_text().splitlines()) for path in found}


def expected(path: Path, job_id: int) -> dict[str, list[str]]:
    """Return the expected lines of NAME.out with the id of the job."""
    parts = re.split(
        r"^== (.*)\n", path.with_suffix(".out").read_text().replace("{id}", str(job_id)), flags=re.MULTILINE
    )
    return {name: sorted(text.splitlines()) for name, text in zip(parts[1::2], parts[2::2], strict=True) if text}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs_unchanged(path: Path, make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(cpus=512, gpus=8, strict=False)
    job_id = submit(slurm, path)
    wait_for(lambda: not any(job.active for job in jobs_of(slurm, job_id)), seconds=120)
    found = logs(slurm.folder / path.stem)
    script = rf"{re.escape(str(slurm.directory))}/jobs/\w+/slurm_script"
    output = {log: [re.sub(script, "{script}", line) for line in lines] for log, lines in found.items()}
    assert output == expected(path, job_id)
    assert {job.state for job in jobs_of(slurm, job_id)} == {"COMPLETED"}
