"""Every shipped training job as `make submit` starts it, on the embedded Slurm; a function of one's own on a layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_kit.spec import load, search_path
from tests.conftest import ROOT, need_library

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LOADED = {name: load.load_job(name, root=ROOT) for name in search_path.names("jobs", ROOT)}
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
def test_a_job_is_submitted_and_trains(job: str, tmp_path: Path, environ: dict[str, str]) -> None:
    need_library(job)
    run(tmp_path, environ, "-m", "hpc_kit", "init", "--job", job)
    output = run(
        tmp_path, environ, "-m", "hpc_kit", "submit", job, "--cluster", "local", "--wait", "--", "--steps", "2"
    )
    assert "RUNNING -> COMPLETED" in output
    if not job.startswith("plain_"):
        summary = json.loads((tmp_path / "runs" / job / "latest" / "summary.json").read_text())
        assert summary["loss_last"] < 5.56
        assert summary["tokens_per_second"] > 0


def test_a_function_of_ones_own_gets_the_jobs_layout(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    last = run(tmp_path, environ, "mine.py").splitlines()[-1]
    assert json.loads(last) == [[rank, 7, 2, 2, 2, rank % 2] for rank in range(8)]
