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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("clusters")
def test_an_id_of_two_clusters_is_that_of_the_default_cluster(kit: Kit) -> None:
    assert [submit(kit, "lab", "a"), submit(kit, "local", "b")] == ["1", "1"]
    done = kit("status", "1", "--json")
    assert json.loads(done.stdout)[0]["name"] == "b"
    assert done.stderr == "hpc-kit: taking job 1 of cluster local; for that of the other: --cluster lab\n"
    assert json.loads(kit("status", "1", "--cluster", "lab", "--json").stdout)[0]["name"] == "a"
    for cluster in ("lab", "local"):
        assert kit("cancel", "1", "--cluster", cluster).returncode == 0


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("clusters")
def test_ids_of_several_clusters(kit: Kit) -> None:
    submitted = [submit(kit, *each) for each in (("local", "a"), ("lab", "b"), ("lab", "b"), *[("other", "c")] * 3)]
    assert submitted == ["1", "1", "2", "1", "2", "3"]
    states = json.loads(kit("status", "1", "2", "3", "--json").stdout)
    assert [(job["job_id"], job["name"], job["state"]) for job in states] == [
        (str(number), name, "PENDING") for number, name in ((1, "a"), (2, "b"), (3, "c"))
    ]
    assert [run["name"] for run in json.loads(kit("history", "1", "2", "--json").stdout)] == ["a", "b"]
    for command in ("cancel", "watch"):
        done = kit(command, "1", "2")
        assert done.returncode == 2
        assert "1 to local; 2 to lab" in done.stderr
        assert f"hpc-kit {command} 1; hpc-kit {command} 2 --cluster lab" in done.stderr
    # No cluster but `other` has both.
    assert [job["name"] for job in json.loads(kit("cancel", "2", "3", "--json").stdout)] == ["c", "c"]
    for words in (("1",), ("1", "2", "--cluster", "lab"), ("1", "--cluster", "other")):
        assert kit("cancel", *words).returncode == 0


@pytest.mark.slow
@pytest.mark.usefixtures("clusters")
def test_the_list_shows_the_runs_of_all_clusters(kit: Kit) -> None:
    assert [submit(kit, *each) for each in (("local", "a"), ("lab", "b"), ("lab", "b"))] == ["1", "1", "2"]
    listed = json.loads(kit("status", "--json").stdout)
    assert [(job["job_id"], job["name"], job["state"]) for job in listed] == [
        ("2", "b", "UNKNOWN"), ("1", "a", "PENDING"), ("1", "b", "UNKNOWN"),
    ]  # fmt: skip
    table = kit("status").stdout
    assert "       1  a " in table
    assert "       1  b " in table
    for words in (("1",), ("1", "2", "--cluster", "lab")):
        assert kit("cancel", *words).returncode == 0


@pytest.mark.slow
def test_runs_are_read_without_a_state_directory(
    kit: Kit, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user, or on a full or read-only disk."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = kit("submit", "-j", "1x1", "--job-name", "a", "--wait", "--", "sh", "-c", "echo hello; exit 3")
    assert done.returncode == 3, done.stderr
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(file))
    error = "the embedded Slurm's state directory cannot be used"
    for words, status, out in (
        (["logs"], 0, "hello\n"),
        (["logs", "1"], 0, "hello\n"),
        (["why"], 1, "exit code 3"),
        (["status", "1"], 1, "FAILED: "),
        (["status"], 1, "FAILED: "),
        (["history", "1"], 0, "1 a: no attempts"),
        (["report", "--out", str(tmp_path / "report.html")], 0, "report.html"),
    ):
        done = kit(*words)
        assert (done.returncode, out in done.stdout) == (status, True), f"{words}: {done.stdout}{done.stderr}"
        assert words[0] == "history" or error in done.stderr + done.stdout, words
    for words in (
        ["logs", "-f"],
        ["cancel", "1"],
        ["watch", "1"],
        ["resubmit", "1"],
        ["clean", "--older-than", "0h", "--yes"],
    ):
        done = kit(*words)
        assert done.returncode == 1, words
        assert done.stderr == (
            f"hpc-kit: {error}\n  found  {file}/hpc_kit/slurm: Not a directory\n"
            "  do     set HPC_KIT_SLURM_STATE to a directory that only you may write\n"
        )
    assert (project / "runs" / "a" / "1").is_dir()
