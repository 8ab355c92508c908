"""Following jobs: the lines, their order, and the number of queries."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.runs import record
from hpc_kit.runs.follow import Ended, Event, RankLine, StateChanged, Unreachable, Waiting, follow
from hpc_kit.runs.run_folders import Run, RunIndex, open_run
from hpc_kit.slurm.client import Completed, SlurmClient
from hpc_kit.slurm.states import JobState
from hpc_kit.submission.submit import submit
from tests.runs.fake import FakeSlurm

Step = Callable[[], object]


class Time:
    """A clock that only sleeping moves; at each given second something happens."""

    def __init__(self, *steps: tuple[float, Step]) -> None:
        self.now = 0.0
        self.steps = sorted(steps, key=lambda step: step[0])

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.steps and self.steps[0][0] <= self.now:
            self.steps.pop(0)[1]()
        assert self.now < 1000, "nothing ends it"


@pytest.fixture
def run(slurm: FakeSlurm) -> Run:
    return submit("job", "fake").run


@pytest.fixture
def client(slurm: FakeSlurm) -> SlurmClient:
    return slurm.client(os.environ)


def write(run: Run, text: str, rank: int = 0) -> Step:
    def append() -> None:
        with run.rank_log(rank).open("a") as log:
            log.write(text)

    return append


def write_end(run: Run, code: int) -> Step:
    return lambda: (run.folder / "end").write_text(f"{code} 1700000000\n")


def events(run: Run, client: SlurmClient, time: Time) -> list[Event]:
    return list(follow([run], client, sleep=time.sleep, clock=time.clock))


def summarize(found: list[Event]) -> list[str]:
    """The events in short."""
    short = []
    for event in found:
        match event:
            case StateChanged(_, old, new, _):
                short.append(f"{old} -> {new}")
            case Waiting(_, reason, _):
                short.append(f"waits: {reason}")
            case RankLine(_, rank, text):
                short.append(f"{rank}: {text}")
            case Unreachable(_):
                short.append("unreachable")
            case Ended(_, outcome):
                short.append(f"ended {outcome.exit_status}")
    return short


def test_a_job_is_followed_from_the_queue_to_its_end(slurm: FakeSlurm, run: Run, client: SlurmClient) -> None:
    slurm.queue("12 PENDING Priority")
    time = Time(
        (1, lambda: slurm.queue("12 RUNNING")),
        (2, write(run, "step 1\nste")),
        (3, write(run, "p 2\n")),
        (4, write(run, "done")),
        (5, write_end(run, 0)),
        (5, lambda: (run.folder / "summary.json").write_text('{"loss": 2.5}')),
        (5, lambda: slurm.queue("12 COMPLETED")),
    )
    found = events(run, client, time)
    assert summarize(found) == [
        "None -> PENDING",
        "PENDING -> RUNNING",
        "0: step 1",
        "0: step 2",
        "0: done",
        "RUNNING -> COMPLETED",
        "ended 0",
    ]
    last = found[-1]
    assert isinstance(last, Ended)
    assert last.outcome.summary == {"loss": 2.5}
    assert last.outcome.record == run.folder / "record.json"
    changes = [event.elapsed for event in found if isinstance(event, StateChanged)]
    assert changes == [pytest.approx(0), pytest.approx(1, abs=0.3), pytest.approx(4, abs=1)]


def test_the_end_is_written_into_the_record(slurm: FakeSlurm, run: Run, client: SlurmClient) -> None:
    slurm.queue("12 FAILED")
    slurm.job("12", "FAILED", "3:0")
    (run.folder / "first-failure").write_text("1 n1 3 100.0\n")
    run.rank_log(1).write_text("no such file\n")
    assert summarize(events(run, client, Time()))[-1] == "ended 3"
    known = record.read_record(run.folder)
    assert known is not None
    assert known.end == record.RecordedOutcome(
        state="FAILED",
        exit_status=3,
        start="2026-01-01T12:00:01",
        end="2026-01-01T12:00:11",
        nodes="n[1-2]",
        first_failure=record.RecordedFailure(
            rank=1,
            host="n1",
            exit_code=3,
            headline="rank 1 on n1 ended with exit code 3 after it had printed: no such file",
        ),
    )


def test_the_reason_of_a_waiting_job_is_printed_once(slurm: FakeSlurm, run: Run, client: SlurmClient) -> None:
    slurm.queue("12 PENDING JobHeldUser")
    slurm.job("12", "CANCELLED", "0:15")
    time = Time((3, lambda: slurm.queue("12 PENDING Priority")), (6, lambda: slurm.queue("12 CANCELLED")))
    assert summarize(events(run, client, time)) == [
        "None -> PENDING",
        "waits: JobHeldUser",
        "PENDING -> CANCELLED",
        "ended 1",
    ]


def test_following_survives_a_controller_outage(slurm: FakeSlurm, run: Run, client: SlurmClient) -> None:
    slurm.queue("12 RUNNING")

    def back() -> None:
        (slurm.folder / "squeue.error").unlink()
        slurm.queue("12 COMPLETED")

    time = Time(
        (2, lambda: slurm.write("squeue.error", "squeue: error: Unable to contact slurm controller\n")), (9, back)
    )
    assert summarize(events(run, client, time)) == [
        "None -> RUNNING",
        "unreachable",
        "RUNNING -> COMPLETED",
        "ended 0",
    ]


def test_a_requeued_job_is_followed_on(slurm: FakeSlurm, run: Run, client: SlurmClient) -> None:
    slurm.queue("12 RUNNING")
    write(run, "first attempt\n")()

    def again() -> None:
        run.rank_log(0).unlink()
        write(run, "second attempt\n")()
        slurm.queue("12 RUNNING")

    time = Time((2, lambda: slurm.queue("12 PENDING BeginTime")), (5, again), (8, lambda: slurm.queue("12 COMPLETED")))
    assert summarize(events(run, client, time)) == [
        "0: first attempt",
        "None -> RUNNING",
        "RUNNING -> PENDING",
        "waits: BeginTime",
        "0: second attempt",
        "PENDING -> RUNNING",
        "RUNNING -> COMPLETED",
        "ended 0",
    ]


def test_a_real_slurm_is_queried_every_ten_seconds_and_more_often_when_the_script_has_ended(
    slurm: FakeSlurm, run: Run, client: SlurmClient
) -> None:
    slurm.queue("12 RUNNING")
    steps = [(float(second), write(run, f"step {second}\n")) for second in range(1, 60)]
    time = Time(*steps, (55, write_end(run, 0)), (60, lambda: slurm.queue("12 COMPLETED")))
    found = summarize(events(run, client._replace(embedded=False), time))
    assert found[-1] == "ended 0"
    assert len(slurm.read("squeue.calls").splitlines()) == 6 + 6
    assert [line for line in found if line.startswith("0:")] == [f"0: step {second}" for second in range(1, 60)]


def test_a_job_missing_from_slurm_ends_with_its_end_file(run: Run, slurm: FakeSlurm, client: SlurmClient) -> None:
    write_end(run, 3)()
    assert summarize(events(run, client, Time())) == ["None -> FAILED", "ended 3"]


def test_a_job_missing_from_slurm_without_an_end_file_is_lost(run: Run, client: SlurmClient) -> None:
    found = events(run, client, Time())
    assert summarize(found) == ["ended 1"]
    last = found[-1]
    assert isinstance(last, Ended)
    assert last.outcome.sentence == "Slurm no longer knows the job, and its script did not reach its end."


def test_the_elements_of_an_array_are_followed_by_one_query(slurm: FakeSlurm, client: SlurmClient) -> None:
    job = submit("job", "fake", set={"resources.array": "0-2"})
    runs = [element.run for element in job.elements()]
    assert [run.folder.name for run in runs] == ["12_0", "12_1", "12_2"]
    slurm.queue("12_0 COMPLETED", "12_1 RUNNING", "12_[2] PENDING")
    time = Time((5, lambda: slurm.queue("12_0 COMPLETED", "12_1 COMPLETED", "12_2 COMPLETED")))
    found = list(follow(runs, client._replace(embedded=False), sleep=time.sleep, clock=time.clock))
    assert sorted(event.job_id for event in found if isinstance(event, Ended)) == ["12_0", "12_1", "12_2"]
    calls = slurm.read("squeue.calls").split()
    assert [word for word in calls if word.startswith("--jobs")] == ["--jobs=12_0,12_1,12_2", "--jobs=12_1,12_2"]
    known = record.read_record(job.run.folder)
    assert known is not None
    assert sorted(known.elements) == ["0", "1", "2"]


def test_ctrl_c_does_not_cancel_the_job(slurm: FakeSlurm, run: Run, client: SlurmClient) -> None:
    slurm.queue("12 RUNNING")

    def raise_interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(follow([run], client, sleep=raise_interrupt))
    assert not (slurm.folder / "scancel.calls").exists()


def test_a_runs_folder_is_found_by_id(run: Run, project: Path) -> None:
    runs = RunIndex(project / "runs")
    assert runs.find("12") == open_run(project / "runs/job/12")
    assert runs.find("13") is None


def test_a_slow_squeue_delays_no_output(run: Run, client: SlurmClient, slurm: FakeSlurm) -> None:
    slurm.job("12", "RUNNING")
    asked, seen = threading.Event(), threading.Event()

    def slow(argv: Sequence[str], **options: Any) -> Completed:
        asked.set()
        assert seen.wait(30), "the line did not come while squeue was asked"
        return client.runner(argv, **options)

    def late() -> None:
        asked.wait(30)
        write(run, "step 1\n")()

    run.folder.mkdir(exist_ok=True)
    threading.Thread(target=late, daemon=True).start()
    found = follow([run], client._replace(runner=slow))
    assert next(found) == RankLine("12", 0, "step 1")
    seen.set()
    assert next(event for event in found if isinstance(event, StateChanged)).new is JobState.RUNNING
