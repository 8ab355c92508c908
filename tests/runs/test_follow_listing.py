"""Watching the queue: changes between two listings, the number of queries, a controller that restarts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_kit.errors import UnknownJob
from hpc_kit.runs.follow import ListingUpdate, follow_listing
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.submission.submit import submit
from tests.runs.fake import FakeSlurm

Step = Callable[[], object]


@pytest.fixture
def client(slurm: FakeSlurm) -> SlurmClient:
    return slurm.client(os.environ)


def follow(client: SlurmClient, project: Path, *steps: Step, words: tuple[str, ...] = ()) -> list[ListingUpdate]:
    """A look, a step, a look, ... to the end."""
    left = list(steps)

    def sleep(seconds: float) -> None:
        assert seconds == 10
        left.pop(0)()

    return list(follow_listing(words, project / "runs", client, interval=10, sleep=sleep))


def list_changes(found: list[ListingUpdate]) -> list[list[str]]:
    return [[f"{each.line.job_id} {each.old} {each.line.state}" for each in look.changes] for look in found]


def test_the_queue_is_watched_to_its_end(slurm: FakeSlurm, project: Path, client: SlurmClient) -> None:
    for _ in range(2):
        submit("job", "fake")
    slurm.queue("11 COMPLETED", "12 PENDING Priority", "13 RUNNING")
    found = follow(
        client,
        project,
        lambda: slurm.queue("12 PENDING Resources", "13 COMPLETING", "14 PENDING Dependency"),
        lambda: slurm.queue("12 RUNNING", "13 COMPLETED", "14 PENDING DependencyNeverSatisfied"),
        lambda: slurm.queue("12 COMPLETED", "14 CANCELLED"),
    )
    assert list_changes(found) == [
        ["13 None RUNNING", "12 None PENDING"],
        ["14 None PENDING"],
        ["13 RUNNING COMPLETED", "12 PENDING RUNNING", "14 PENDING PENDING"],
        ["12 RUNNING COMPLETED", "14 PENDING CANCELLED"],
    ]
    assert [(look.is_last, look.all_completed) for look in found] == [(False, False)] * 3 + [(True, False)]
    assert len(slurm.read("squeue.calls").splitlines()) == 4


def test_an_empty_queue_ends_the_listing_immediately(slurm: FakeSlurm, project: Path, client: SlurmClient) -> None:
    (found,) = follow(client, project)
    assert (found.lines, found.is_last, found.all_completed) == ([], True, True)


def test_a_restarted_controller_is_queried_again(slurm: FakeSlurm, project: Path, client: SlurmClient) -> None:
    submit("job", "fake")
    slurm.queue("12 RUNNING")

    def back() -> None:
        (slurm.folder / "squeue.error").unlink()
        slurm.queue("12 COMPLETED")

    found = follow(
        client,
        project,
        lambda: slurm.write("squeue.error", "squeue: error: Unable to contact slurm controller\n"),
        lambda: None,
        back,
        words=("job",),
    )
    assert [look.unreachable is not None for look in found] == [False, True, True, False]
    assert [str(look.lines[0].state) for look in found] == ["RUNNING"] * 3 + ["COMPLETED"]
    assert (found[-1].is_last, found[-1].all_completed) == (True, True)


def test_a_controller_that_is_down_at_first_is_waited_for(slurm: FakeSlurm, project: Path, client: SlurmClient) -> None:
    slurm.write("squeue.error", "squeue: error: Unable to contact slurm controller\n")

    def back() -> None:
        (slurm.folder / "squeue.error").unlink()
        slurm.queue("12 FAILED")

    assert list_changes(follow(client, project, back, words=("12",))) == [[], ["12 None FAILED"]]


def test_a_job_missing_from_several_queries_has_ended(slurm: FakeSlurm, project: Path, client: SlurmClient) -> None:
    slurm.queue("12 RUNNING")
    found = follow(client, project, slurm.queue, lambda: None, lambda: None, words=("12",))
    assert list_changes(found) == [["12 None RUNNING"], [], [], ["12 RUNNING UNKNOWN"]]


def test_an_array_missing_from_several_queries_has_ended(slurm: FakeSlurm, project: Path, client: SlurmClient) -> None:
    slurm.queue("12_1 RUNNING", "12_2 COMPLETED")
    found = follow(client, project, slurm.queue, lambda: None, lambda: None, words=("12",))
    assert [look.is_last for look in found] == [False, False, False, True]
    assert list_changes(found)[3] == ["12_1 RUNNING UNKNOWN"]
    assert [line.job_id for line in found[3].lines] == ["12_1", "12_2"]


def test_a_job_that_ended_between_queries_ends_with_its_end_file(
    slurm: FakeSlurm, project: Path, client: SlurmClient
) -> None:
    run = submit("job", "fake").run
    slurm.queue("12 RUNNING")

    def gone() -> None:
        slurm.queue()
        (run.folder / "end").write_text("0 1700000000\n")

    assert list_changes(follow(client, project, gone, words=("12",))) == [["12 None RUNNING"], ["12 RUNNING COMPLETED"]]


def test_an_unknown_job_is_refused(slurm: FakeSlurm, project: Path, client: SlurmClient) -> None:
    with pytest.raises(UnknownJob):
        follow(client, project, words=("77",))
