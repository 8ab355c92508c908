"""Every shipped job renders, and `check` finds no fault in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.planner.target import resolve_target
from hpc_kit.spec import search_path
from hpc_kit.spec.load import load_cluster
from tests.conftest import ROOT
from tests.golden import render_job

JOBS = search_path.file_names("jobs", ROOT)


@pytest.mark.parametrize("cluster", ["local", "slurm", "example-gpu"])
@pytest.mark.parametrize("job", JOBS)
def test_a_shipped_job_fits_every_kind_of_cluster(job: str, cluster: str) -> None:
    script = render_job(job, cluster, {})
    assert f"#SBATCH --job-name={job}\n" in script
    assert "spans" not in script.partition("set -euo")[0]


SYSTEMS = sorted((ROOT / "env" / "systems").glob("*.toml"))


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda path: path.stem)
def test_a_profile_of_a_public_system_renders_the_main_job(system: Path) -> None:
    cluster = load_cluster(system.stem, root=ROOT)
    assert cluster.node.gpus in {4, 8}
    script = render_job("ddp_4node", system.stem, {"resources.ntasks_per_node": cluster.node.gpus})
    assert f"#SBATCH --gpus-per-node={cluster.node.gpus}\n" in script
    assert f"#SBATCH --ntasks={4 * cluster.node.gpus}\n" in script


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda path: path.stem)
def test_a_profile_of_a_public_system_names_its_source(system: Path) -> None:
    text = system.read_text()
    assert "# https://" in text
    assert "not run there" in load_cluster(system.stem, root=ROOT).description


def test_there_are_profiles_of_six_public_systems() -> None:
    assert len(SYSTEMS) >= 6


def test_the_planner_knows_the_gpus_of_the_systems() -> None:
    for system in SYSTEMS:
        machine = resolve_target(system.stem, ROOT, framework="torch").machine
        assert machine.gpus_per_node in {4, 8}
