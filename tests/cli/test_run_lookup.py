"""Without --cluster, commands ask the cluster that the record of a run names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Kit

TINY = ("--no-wait", "--hold", "-j", "1x1")


@pytest.fixture
def clusters(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two embedded clusters besides `local`, the second with a runs folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (project / "env" / "lab.toml").write_text('slurm = "embedded"\n')
    (project / "env" / "other.toml").write_text('slurm = "embedded"\nruns = "elsewhere"\n')


def submit(kit: Kit, cluster: str, name: str) -> str:
    done = kit("submit", *TINY, "--cluster", cluster, "--job-name", name, "--parsable", "--", "true")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.usefixtures("clusters")
def test_the_record_of_a_run_chooses_the_cluster(kit: Kit, project: Path) -> None:
    assert [submit(kit, "lab", "a"), submit(kit, "lab", "a"), submit(kit, "other", "b")] == ["1", "2", "1"]
    [line] = json.loads(kit("status", "2", "--json").stdout)
    assert (line["name"], line["state"], line["reason"]) == ("a", "PENDING", "JobHeldUser")
    assert "hpc-kit embedded run --cluster lab scontrol release 2" in kit("status", "2").stdout
    assert "job 2 has not started" in kit("logs", "2").stderr
    assert "job 2 has not started" in kit("logs", "a").stderr
    # Two clusters have a job 1: that of the latest run in the default folder is taken.
    done = kit("cancel", "1", "2", "--json")
    assert [(job["name"], job["was"]) for job in json.loads(done.stdout)] == [("a", "PENDING")] * 2
    done = kit("status", "1", "--json")
    assert (json.loads(done.stdout)[0]["name"], json.loads(done.stdout)[0]["state"]) == ("a", "CANCELLED")
    assert done.stderr == "hpc-kit: taking job 1 of cluster lab; for that of the other: --cluster other\n"
    (project / "runs").rename(project / "kept")
    assert json.loads(kit("status", "1", "--json").stdout)[0]["name"] == "b"
    assert json.loads(kit("cancel", "1", "--json").stdout) == [{"job_id": "1", "name": "b", "was": "PENDING"}]


@pytest.mark.usefixtures("clusters")
def test_an_id_of_two_clusters_is_that_of_the_default_cluster(kit: Kit) -> None:
    assert [submit(kit, "lab", "a"), submit(kit, "local", "b")] == ["1", "1"]
    done = kit("status", "1", "--json")
    assert json.loads(done.stdout)[0]["name"] == "b"
    assert done.stderr == "hpc-kit: taking job 1 of cluster local; for that of the other: --cluster lab\n"
    assert json.loads(kit("status", "1", "--cluster", "lab", "--json").stdout)[0]["name"] == "a"
    for cluster in ("lab", "local"):
        assert kit("cancel", "1", "--cluster", cluster).returncode == 0


@pytest.mark.usefixtures("clusters")
def test_cancel_does_not_choose_between_a_run_and_a_job_of_the_default_queue(kit: Kit) -> None:
    assert kit("embedded", "run", "--cluster", "local", "sbatch", "--hold", "--wrap", "true").returncode == 0
    assert submit(kit, "lab", "a") == "1"
    done = kit("cancel", "1")
    assert done.returncode == 2
    assert "two clusters have job 1" in done.stderr
    assert "add --cluster lab" in done.stderr
    assert kit("cancel", "1", "--cluster", "lab").returncode == 0
    assert kit("embedded", "run", "--cluster", "local", "scancel", "1").returncode == 0
