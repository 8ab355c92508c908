"""Status and cancel: one question for all jobs, also where Slurm has forgotten some."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_kit.errors import SlurmUnavailable, UnknownJob
from hpc_kit.submit.access import Access
from hpc_kit.submit.listing import Line, cancel, statuses
from hpc_kit.submit.runs import Runs, known_runs
from hpc_kit.submit.submission import submit
from tests.submit.fake import FakeSlurm


@pytest.fixture
def access(slurm: FakeSlurm) -> Access:
    return slurm.access(os.environ)


@pytest.fixture
def runs(project: Path) -> Path:
    return project / "runs"


def short(lines: list[Line]) -> list[tuple[str, str, str]]:
    return [(line.job_id, str(line.state), line.sentence) for line in lines]


def test_the_queue_and_the_latest_runs_are_listed(slurm: FakeSlurm, runs: Path, access: Access) -> None:
    for _ in range(3):
        submit("job", "fake")
    (runs / "job/12/end").write_text("0 1700000000\n")
    slurm.queue("13 RUNNING", "14 PENDING Dependency", "99 RUNNING")
    assert short(statuses(None, runs, access)) == [
        ("99", "RUNNING", "It is running."),
        ("14", "PENDING", "It waits for other jobs."),
        ("13", "RUNNING", "It is running."),
        (
            "12",
            "COMPLETED",
            "It ended, and its script returned 0. Slurm no longer knows it: this is what its own files say.",
        ),
    ]
    pending = statuses(["14"], runs, access)[0]
    assert pending.next_step == "Look at what it waits for: squeue --job=14 --format='%i %E'"


def test_a_failed_job_says_who_and_how_also_from_its_record(slurm: FakeSlurm, runs: Path, access: Access) -> None:
    run = submit("job", "fake").run
    (run.folder / "first-failure").write_text("5 n3 1 100.0\n")
    run.rank_log(5).write_text("Traceback (most recent call last):\nValueError: bad\n")
    slurm.queue("12 FAILED")
    expected = [("12", "FAILED", "rank 5 on n3: ValueError: bad")]
    assert short(statuses(["12"], runs, access)) == expected
    slurm.queue()
    run.rank_log(5).unlink()
    assert short(statuses(["12"], runs, access)) == expected
    assert short(statuses(None, runs, access)) == expected


def test_an_unknown_id_is_refused_with_those_that_there_are(slurm: FakeSlurm, runs: Path, access: Access) -> None:
    submit("job", "fake")
    with pytest.raises(UnknownJob) as error:
        statuses(["77"], runs, access)
    assert str(error.value) == (
        f"no job 77\n  found  Slurm does not know it, and {runs}/ has no record of it\n  do     the latest here: 12 job"
    )


def test_without_any_run_the_queue_is_named(slurm: FakeSlurm, runs: Path, access: Access) -> None:
    with pytest.raises(UnknownJob, match="squeue --me"):
        cancel(["77"], runs, access)
    assert statuses(None, runs, access) == []


def test_an_arrays_elements_are_listed_each(slurm: FakeSlurm, runs: Path, access: Access) -> None:
    submit("job", "fake", set={"resources.array": "0-3"})
    slurm.queue("12 PENDING", "12_0 COMPLETED", "12_1 RUNNING", "12_[2-3] PENDING")
    found = statuses(["12"], runs, access)
    assert [(line.job_id, str(line.state)) for line in found] == [
        ("12_0", "COMPLETED"), ("12_1", "RUNNING"), ("12_2", "PENDING"), ("12_3", "PENDING"),
    ]  # fmt: skip
    assert [line.name for line in found] == ["job"] * 4
    assert short(statuses(["12_1"], runs, access)) == [("12_1", "RUNNING", "It is running.")]


def test_many_jobs_are_asked_for_once(slurm: FakeSlurm, runs: Path, access: Access) -> None:
    slurm.queue(*(f"{number} RUNNING" for number in range(1000, 1500)))
    assert len(statuses([str(number) for number in range(1000, 1500)], runs, access)) == 500
    assert len(slurm.told("squeue.calls").splitlines()) == 1
    assert not (slurm.folder / "sacct.calls").exists()


def test_cancelling_tells_what_each_was(slurm: FakeSlurm, runs: Path, access: Access) -> None:
    for _ in range(2):
        submit("job", "fake")
    slurm.queue("12 RUNNING", "13 COMPLETED")
    before = cancel(["12", "13"], runs, access)
    assert [(line.job_id, str(line.state)) for line in before] == [("12", "RUNNING"), ("13", "COMPLETED")]
    assert slurm.told("scancel.calls") == "12\n"


def test_an_element_is_cancelled_alone(slurm: FakeSlurm, runs: Path, access: Access) -> None:
    slurm.queue("12_1 RUNNING", "12_2 RUNNING")
    cancel(["12_1"], runs, access)
    assert slurm.told("scancel.calls") == "12_1\n"


def test_a_refused_scancel_is_an_error(slurm: FakeSlurm, runs: Path, access: Access) -> None:
    slurm.queue("12 RUNNING")
    (slurm.bin / "scancel").write_text("#!/bin/bash\necho 'scancel: error: Access/permission denied' >&2; exit 1\n")
    with pytest.raises(SlurmUnavailable, match="scancel did not end 12"):
        cancel(["12"], runs, access)


def test_a_squeue_that_fails_is_an_error_not_an_empty_list(slurm: FakeSlurm, runs: Path, access: Access) -> None:
    slurm.says("squeue.error", "squeue: error: Unable to contact slurm controller\n")
    with pytest.raises(SlurmUnavailable):
        statuses(None, runs, access)


def test_of_two_runs_with_one_id_the_later_counts(slurm: FakeSlurm, runs: Path, project: Path) -> None:
    (project / "jobs/other.toml").write_text('extends = "job"\n')
    submit("job", "fake")
    slurm.says("last", "11")
    submit("other", "fake")
    found = Runs(runs).need("12")
    assert found.name == "other"
    assert [run.name for run in known_runs(runs)] == ["other", "job"]


def test_a_run_without_a_record_is_found_by_its_folder(runs: Path) -> None:
    (runs / "byhand" / "40_2").mkdir(parents=True)
    found = Runs(runs).find("40_2")
    assert found is not None
    assert (found.name, found.batch_log) == ("byhand", runs / "byhand" / "40_2.log")
    assert Runs(runs).recent() == []


def test_a_record_that_cannot_be_read_is_none(slurm: FakeSlurm, runs: Path) -> None:
    run = submit("job", "fake").run
    (run.folder / "record.json").write_text("{")
    found = Runs(runs).need("12")
    assert (found.known, found.name, found.rank_log(0)) == (None, "job", run.rank_log(0))
