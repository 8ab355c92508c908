"""Jobs with [restart] on the real Slurm: the faults that the embedded one does not have."""

from __future__ import annotations

import random
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

pytestmark = pytest.mark.timeout(400)

KINDS = [pytest.param(kind, id=kind.name, marks=[pytest.mark.slow] * (kind in ANYWHERE)) for kind in REAL]


@pytest.fixture
def queue(faulty: Cluster) -> Iterator[RealQueue]:
    own = RealQueue(faulty, Path(tempfile.mkdtemp(prefix="restart-", dir=faulty.settings.work)))
    yield own
    own.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_survives(queue: RealQueue, kind: Kind) -> None:
    Trial(queue, kind, random.Random(1), 1).survive()


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
