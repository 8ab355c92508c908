"""Every shipped training job as `make submit` starts it, on the embedded Slurm; a function of one's own on a layout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_kit.spec import load, search_path
from tests.conftest import ROOT, require_installed
from tests.train.trained import TOLERANCE

RECORDED = json.loads(Path(__file__).with_name("losses.json").read_text())
"""Losses by job. To record them anew after a change of the model or the data:

    HPC_KIT_RECORD_LOSSES=1 make test-slow ARGS="tests/train/test_jobs.py -n 1"
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LOADED = {name: load.load_job(name, root=ROOT) for name in search_path.file_names("jobs", ROOT)}
JOBS = [name for name, job in LOADED.items() if "--steps" in job.command]
"""Those that train; tests/cluster starts all on a real one."""

FUNCTION = """
import hpc_kit


def train(config: dict[str, int]) -> list[int]:
    with hpc_kit.distributed() as world:
        mesh = world.mesh()
        sizes = [mesh[name].size() for name in ("pp", "dp", "tp")]
        return [world.rank, config["seed"], *sizes, mesh.get_local_rank("tp")]


if __name__ == "__main__":
    executor = hpc_kit.Executor(job="hybrid_3d_4node", cluster="local", folder="runs/mine")
    print(sorted(executor.submit(train, {"seed": 7}).results()))
"""


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state")), "PYTHONPATH": str(ROOT)}


def run(folder: Path, environ: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("job", JOBS)
def test_a_submitted_job_has_the_recorded_losses(
    job: str, tmp_path: Path, environ: dict[str, str], source: Path
) -> None:
    require_installed(job)
    run(tmp_path, environ, "-m", "hpc_kit", "init", "--job", job)
    words = ["--steps", str(RECORDED["steps"]), "--data", str(source)]
    if job == "horovod_4node":  # the mpirun of the MPI that Horovod is built with
        environ = {**environ, "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}
    output = run(tmp_path, environ, "-m", "hpc_kit", "submit", job, "--cluster", "local", "--wait", "--", *words)
    assert "RUNNING -> COMPLETED" in output
    losses = losses_of(tmp_path / "runs" / job / "latest")
    if os.environ.get("HPC_KIT_RECORD_LOSSES"):
        RECORDED["losses"][job] = losses
        Path(__file__).with_name("losses.json").write_text(json.dumps(RECORDED, indent=1) + "\n")
    assert losses == pytest.approx(RECORDED["losses"][job], rel=TOLERANCE)


def losses_of(folder: Path) -> list[float]:
    """The losses of all steps; of a parameter server the last one, of a plain program those that it prints."""
    if (folder / "steps.json").exists():
        return [float(loss) for loss in json.loads((folder / "steps.json").read_text())["loss"]]
    if (folder / "summary.json").exists():
        return [float(json.loads((folder / "summary.json").read_text())["loss_last"])]
    return [float(loss) for loss in re.findall(r"   loss (\S+)", (folder / "rank-0.log").read_text())]


def test_a_users_function_gets_the_layout_of_the_job(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    last = run(tmp_path, environ, "mine.py").splitlines()[-1]
    assert json.loads(last) == [[rank, 7, 2, 2, 2, rank % 2] for rank in range(8)]
