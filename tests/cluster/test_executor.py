"""Pickled functions on the real Slurm: an `Executor` on the login host returns results and exceptions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from . import Cluster
from .project import Project
from .sweep import ELEMENTS, MAPPED


@pytest.fixture(scope="module")
def sweep(cluster: Cluster) -> dict[str, Any]:
    """Return the output of `sweep.py`, whose jobs were all in the queue together."""
    project = Project(cluster, "sweep")
    shutil.copy(Path(__file__).with_name("sweep.py"), project.folder)
    done = project.run(["python", "sweep.py", str(project.folder / "pickles")], timeout=590)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


pytestmark = pytest.mark.timeout(600)


def test_a_function_returns_one_result_per_rank(sweep: dict[str, Any]) -> None:
    assert [rank for _, rank, _ in sweep["ranks"]] == [0, 1, 2, 3]
    assert {word for word, _, _ in sweep["ranks"]} == {"hello"}
    hosts = [host for _, _, host in sweep["ranks"]]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]


def test_four_hosts_communicate_over_their_own_addresses(sweep: dict[str, Any]) -> None:
    totals, addresses, devices = zip(*sweep["torch"], strict=True)
    assert totals == (6, 6, 6, 6)
    assert set(addresses) <= {"n1", "10.77.0.11"}, addresses
    # A ring sends each number 1.5 times. Nothing goes over a loopback interface, which is private to each host.
    for sent in devices:
        assert sent["eth0"] > 1.5 * 4 * ELEMENTS
        assert sent["lo"] < 100_000, devices


def test_a_map_beyond_the_greatest_index_is_split_into_arrays(sweep: dict[str, Any]) -> None:
    assert sweep["mapped"] == [number * number for number in range(MAPPED)]
    arrays = [job_id.partition("_")[0] for job_id in sweep["ids"]]
    assert [arrays.count(array) for array in dict.fromkeys(arrays)] == [20, 5]


def test_one_table_lists_the_arguments_of_each_element(sweep: dict[str, Any]) -> None:
    assert [(row["job_id"], row["args"]) for row in sweep["table"]] == [
        (job_id, [str(number)]) for number, job_id in enumerate(sweep["ids"])
    ]


def test_a_batch_is_one_array(sweep: dict[str, Any]) -> None:
    (greeting, rank, _), number = sweep["batch"]
    assert (greeting, rank, number) == ("one", 0, 49)
    array, first = sweep["batch ids"][0].split("_")
    assert (first, sweep["batch ids"][1]) == ("0", f"{array}_1")


def test_the_exception_of_the_first_failed_rank_is_raised(sweep: dict[str, Any]) -> None:
    failing = sweep["failing"]
    assert failing["type"] == "ScriptFailed"
    assert failing["state"] == "FAILED"
    assert "rank 2 on n" in failing["what"]
    assert "ValueError: bad sample on rank 2" in failing["what"]
    assert failing["found"].count("Traceback (most recent call last)") == 1
    assert 'raise ValueError(f"bad sample on rank {bad}")' in failing["found"]


@pytest.mark.parametrize("job", ["cancelled", "waiting"])
def test_a_cancelled_job_is_reported_as_cancelled(sweep: dict[str, Any], job: str) -> None:
    assert (sweep[job]["type"], sweep[job]["state"]) == ("ScriptFailed", "CANCELLED")


def test_a_job_with_a_checkpoint_is_requeued_and_resumes(sweep: dict[str, Any]) -> None:
    assert sweep["counter"] == [[2, "1"]]
    assert sweep["counter stdout"].count("Starting with JobEnvironment") == 2
