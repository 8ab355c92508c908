"""Programs that know nothing of hpc_kit survive a stop signal, with unchanged source."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from hpc_kit.run_files import END
from hpc_kit.script.render import render
from tests.pocketslurm.conftest import Slurm, wait_for

PROGRAMS = Path(__file__).parent / "foreign"
PYTHON = os.environ.get("FOREIGN_PYTHON", sys.executable)
"""An interpreter with Lightning, accelerate and transformers, if this one has none."""

LOST = 10
"""Steps between two saves of a program without a signal handler."""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    """A queue whose work folder is the project."""
    own = Slurm(tmp_path, nodes="127.0.0.[1-2]", gpus=0)
    (own.folder / "runs" / "job").mkdir(parents=True)
    try:
        yield own
    finally:
        own.clear()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("program", "package", "ranks", "lost"),
    [
        ("plain", "json", 1, 0),
        pytest.param("lightning_trainer", "lightning", 2, 1, marks=pytest.mark.slow),
        pytest.param("accelerate_script", "accelerate", 2, LOST, marks=pytest.mark.slow),
        pytest.param("hf_trainer", "transformers", 2, LOST, marks=pytest.mark.slow),
    ],
)
def test_a_foreign_program_survives_a_stop(slurm: Slurm, program: str, package: str, ranks: int, lost: int) -> None:
    require(package)
    settings = {**job_settings(program, ranks), "restart.lead": 60, "resources.time": "10"}
    (slurm.folder / "job.sbatch").write_text(render("single", "local", set=settings, root=slurm.folder))
    job = slurm.check_output("sbatch", "--parsable", "job.sbatch").strip()
    run, steps = slurm.folder / "runs" / "job" / job, slurm.folder / "steps"
    wait_for(lambda: steps.exists() and len(steps.read_text().split()) >= 15, seconds=120)
    slurm.check_output("scancel", "--signal=USR1", "--batch", job)
    wait_for(lambda: len(starts(run)) == 2, seconds=60)
    wait_for(lambda: (run / END).exists() and (run / END).read_text().split(), seconds=120)
    log = run.with_name(f"{job}.log").read_text() + (run / "rank-0.log").read_text()
    assert (run / END).read_text().split()[0] == "0", log
    assert count_repeated(steps) <= lost, log
    assert [event["attempt"] for event in starts(run)] == [1, 2]


def require(package: str) -> None:
    """Skip the test without a package that its program needs."""
    if sys.executable == PYTHON and find_spec(package) is None:
        pytest.skip(f"needs {package}: set FOREIGN_PYTHON to an interpreter that has it")


def job_settings(program: str, ranks: int) -> dict[str, object]:
    """Values of the job of a program."""
    restart = {"resume_args": ["--resume"], "progress": "saved" if ranks > 1 else "state.json"}
    return {
        "name": "job", "command": [PYTHON, str(PROGRAMS / f"{program}.py")], "restart": restart,
        "resources.ntasks_per_node": ranks, "launch.bootstrap": ranks > 1,
    }  # fmt: skip


def count_repeated(steps: Path) -> int:
    """Return the number of steps that were computed again, after a check that none of the 40 steps is missing."""
    taken = [int(step) for step in steps.read_text().split()]
    assert sorted(set(taken)) == list(range(40))
    return len(taken) - 40


def starts(run: Path) -> list[dict[str, object]]:
    """The events of the starts of a job."""
    path = run / "history"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [event for event in events if event["event"] == "start"]
