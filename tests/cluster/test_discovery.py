"""`hpc-kit cluster discover` on the real Slurm, with its accounting."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Iterator

import pytest

from . import Cluster
from .project import Project


@pytest.fixture
def project(cluster: Cluster) -> Iterator[Project]:
    with contextlib.closing(Project(cluster, "discover")) as project:
        yield project


def test_the_login_host_describes_its_cluster(project: Project, cluster: Cluster) -> None:
    (project.folder / "found").mkdir()
    done = project.run([".venv/bin/hpc-kit", "cluster", "discover", "--write", "found/real.toml"])
    assert done.returncode == 0, done.stderr
    found = tomllib.loads((project.folder / "found" / "real.toml").read_text())
    settings = cluster.settings
    assert found["slurm"] == "system"
    assert found["max_array_size"] == settings.max_array_size
    assert found["slurm_version"].startswith("22.05")
    assert {"none", "pmi2", "pmix"} <= set(found["mpi"])
    assert found["node"] == {"cpus": settings.cpus, "mem": f"{settings.memory}M", "gpus": settings.gpus}
    limits = {"nodes": len(settings.node_names), "max_time": "1-00:00:00", "default_time": "01:00:00"}
    assert found["partition"]["main"] == {"default": True, **limits}
    assert found["partition"]["high"] == limits


def test_its_limits_refuse_a_job_that_could_never_start(project: Project, cluster: Cluster) -> None:
    (project.folder / "found").mkdir()
    project.run([".venv/bin/hpc-kit", "cluster", "discover", "--write", "found/real.toml"])
    words = [".venv/bin/hpc-kit", "render", "ddp_4node", "--cluster", "found/real.toml", "--set"]
    done = project.run([*words, "resources.nodes=8"])
    assert done.returncode == 2
    assert "8 nodes; the partition has 4" in done.stderr
    assert project.run([*words, "resources.nodes=4"]).returncode == 0


def test_a_job_that_waits_because_of_its_limits_names_them(project: Project) -> None:
    (project.folder / "found").mkdir()
    project.run([".venv/bin/hpc-kit", "cluster", "discover", "--write", "found/real.toml"])
    beyond = {"--time=2-0": ("--time=2-00:00:00; the partition allows 1-00:00:00", "--time=1-00:00:00"),
              "--nodes=5": ("5 nodes; the partition has 4", "--nodes=4")}  # fmt: skip
    for option, (found, remedy) in beyond.items():
        job = project.run(["sbatch", "--parsable", option, "--wrap=true"]).stdout.strip()
        told = project.kit("status", job, "--cluster", "found/real.toml", "--all").stdout
        project.run(["scancel", job])
        assert f"It can never start in partition main: {found}." in told
        assert f"ask for {remedy} or less" in told


def test_a_second_discovery_finds_nothing_new(project: Project) -> None:
    (project.folder / "found").mkdir()
    words = [".venv/bin/hpc-kit", "cluster", "discover"]
    project.run([*words, "--write", "found/real.toml"])
    assert "nothing new" in project.run([*words, "--write", "found/real.toml"]).stdout
    document = json.loads(project.run([*words, "--json"]).stdout)
    assert {"key": "partition.main.default", "value": True, "source": "sinfo"} in document["facts"]
