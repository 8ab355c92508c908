"""The user's exclusions are kept with reason and expiry, and sbatch gets them as --exclude."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.errors import RecordError
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job import Job
from hpc_kit.spec.load import load
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.submission.exclusions import (
    Exclusion,
    exclude_option,
    read_exclusions,
    write_exclusions,
)

FOREVER = 4e9


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def exclude(*nodes: str, until: float = FOREVER, cluster: str = "real") -> list[Exclusion]:
    new = [Exclusion(node=node, reason=f"{node} is slow", since=0, until=until) for node in nodes]
    write_exclusions(cluster, new)
    return new


def job(**resources: object) -> Resolved:
    loaded = load(
        Job(name="mine", command=("python", "train.py")),
        Cluster(name="real", python="python"),
        set={f"resources.{name}": value for name, value in resources.items()},
    )
    return resolve(loaded)


def test_they_are_read_as_they_were_written_until_they_expire(state: Path) -> None:
    new = exclude("n2", "n1", until=100.0)
    assert read_exclusions("real", now=99.0) == [new[1], new[0]]
    assert read_exclusions("real", now=100.0) == []
    assert read_exclusions("other", now=99.0) == []
    assert (state / "hpc_kit/exclusions/real.json").stat().st_mode & 0o777 == 0o600


def test_without_exclusions_sbatch_gets_no_option() -> None:
    assert exclude_option(job()) == ([], [])


def test_a_job_gets_them_with_its_own() -> None:
    exclude("n2", "n3")
    options, notes = exclude_option(job(exclude="n[1,3]"))
    assert options == ["--exclude=n1,n3,n2"]
    assert len(notes) == 1
    assert notes[0].startswith("excluding n2 until ")
    assert notes[0].endswith(": n2 is slow")


def test_nodes_in_a_file_are_read(tmp_path: Path) -> None:
    exclude("n2")
    (tmp_path / "bad").write_text("n[4-5]\nn7\n")
    assert exclude_option(job(exclude=str(tmp_path / "bad")))[0] == ["--exclude=n4,n5,n7,n2"]


def test_a_node_that_the_job_demands_is_not_excluded() -> None:
    exclude("n2", "n3")
    assert exclude_option(job(nodelist="n[2-3]", nodes=2)) == ([], [])


def test_a_file_that_cannot_be_read_stops_the_submission(state: Path) -> None:
    exclude("n1")
    (state / "hpc_kit/exclusions/real.json").write_text("{")
    with pytest.raises(RecordError, match="the excluded nodes cannot be read") as error:
        exclude_option(job())
    assert "real.json" in str(error.value)
