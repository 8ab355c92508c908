"""The user's exclusions are kept with reason and expiry, and sbatch gets them as --exclude."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc_kit.errors import RecordError
from hpc_kit.slurm.client import Completed, SlurmClient
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job import Job
from hpc_kit.spec.load import load
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.submission.exclusions import (
    Exclusion,
    changed_exclusions,
    cluster_key,
    exclude_option,
    read_exclusions,
)
from hpc_kit.submission.sbatch import refusal_error

FOREVER = 4e9


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def exclude(*nodes: str, until: float = FOREVER, cluster: str = "own") -> list[Exclusion]:
    new = [Exclusion(node=node, reason=f"{node} is slow", since=0, until=until) for node in nodes]
    with changed_exclusions(cluster) as exclusions:
        exclusions[:] = new
    return new


def answer(argv: Sequence[str], *_: object, **__: object) -> Completed:
    """A Slurm with the nodes n1 to n8."""
    return Completed(tuple(argv), 0, "".join(f"n{number}\n" for number in range(1, 9)), "")


SLURM = SlurmClient({"SLURM_CLUSTERS": "Own"}, embedded=False, runner=answer)


def job(**resources: object) -> Resolved:
    loaded = load(
        Job(name="mine", command=("python", "train.py")),
        Cluster(name="real", python="python"),
        set={f"resources.{name}": value for name, value in resources.items()},
    )
    return resolve(loaded)


def test_they_are_read_as_they_were_written_until_they_expire(state: Path) -> None:
    new = exclude("n2", "n1", until=100.0)
    assert read_exclusions("own", now=99.0) == [new[1], new[0]]
    assert read_exclusions("own", now=100.0) == []
    assert read_exclusions("other", now=99.0) == []
    assert (state / "hpc_kit/exclusions/own.json").stat().st_mode & 0o777 == 0o600


def test_without_exclusions_sbatch_gets_no_option() -> None:
    assert exclude_option(job(), SLURM) == ([], [])


def test_a_job_gets_them_with_its_own() -> None:
    exclude("n2", "n3")
    options, notes = exclude_option(job(exclude="n[1,3]"), SLURM)
    assert options == ["--exclude=n1,n3,n2"]
    assert len(notes) == 1
    assert notes[0].startswith("excluding n2 until ")
    assert notes[0].endswith(": n2 is slow")


def test_nodes_in_a_file_are_read(tmp_path: Path) -> None:
    exclude("n2")
    (tmp_path / "bad").write_text("n[4-5]\nn7\n")
    assert exclude_option(job(exclude=str(tmp_path / "bad")), SLURM)[0] == ["--exclude=n4,n5,n7,n2"]


def test_a_node_that_the_job_demands_is_not_excluded() -> None:
    exclude("n2", "n3")
    assert exclude_option(job(nodelist="n[2-3]", nodes=2), SLURM) == ([], [])


def test_a_node_that_the_jobs_file_demands_is_not_excluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exclude("n2", "n3")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("n2\nn3\n")
    assert exclude_option(job(nodefile="mine", nodes=2), SLURM) == ([], [])


def test_a_node_that_slurm_does_not_know_is_left_out_with_a_note() -> None:
    exclude("n2", "n9")
    options, notes = exclude_option(job(), SLURM)
    assert options == ["--exclude=n2"]
    assert notes[1] == "excluded node n9 is not in this cluster: hpc-kit cluster include n9"
    silent = SLURM._replace(runner=lambda argv, **_: Completed(tuple(argv), 1, "", "no answer"))
    assert exclude_option(job(), silent)[0] == ["--exclude=n2,n9"]


def test_two_clusters_with_cluster_files_of_one_name_have_lists_of_their_own() -> None:
    exclude("n2")
    other = SLURM._replace(environ={"SLURM_CLUSTERS": "other"})
    assert exclude_option(job(), other) == ([], [])
    assert exclude_option(job(clusters="own"), other)[0] == ["--exclude=n2"]
    assert cluster_key(Cluster(name="real"), SLURM._replace(embedded=True)) == "real"


def test_changes_at_the_same_time_are_all_kept() -> None:
    def add(node: str) -> None:
        with changed_exclusions("own") as exclusions:
            exclusions.append(Exclusion(node=node, reason="slow", since=0, until=FOREVER))

    nodes = [f"n{number}" for number in range(10, 40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, nodes))
    assert [each.node for each in read_exclusions("own")] == nodes


def test_a_file_that_cannot_be_read_stops_the_submission(state: Path) -> None:
    exclude("n1")
    (state / "hpc_kit/exclusions/own.json").write_text("{")
    with pytest.raises(RecordError, match="the excluded nodes cannot be read") as error:
        exclude_option(job(), SLURM)
    assert "own.json" in str(error.value)


def test_a_state_folder_that_is_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(RecordError, match="Not a directory") as error:
        read_exclusions("local")
    assert "XDG_STATE_HOME" in str(error.value)


def test_a_refusal_names_the_exclusions() -> None:
    exclude("n2", "n77")
    refusal = "sbatch: error: Batch job submission failed: Requested node configuration is not available\n"
    error = refusal_error(job(nodes=8), SLURM, Completed(("sbatch",), 1, "", refusal))
    assert "\n         excluding n2 until 2096-10-02 " in str(error)
    assert "use a node again: hpc-kit cluster include NODE" in str(error)
    exclude()
    assert "exclu" not in str(refusal_error(job(nodes=8), SLURM, Completed(("sbatch",), 1, "", refusal)))
