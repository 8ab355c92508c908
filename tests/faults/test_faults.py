"""Each kind of fault once, on the embedded Slurm; and the checks of the ring notice a job that is not whole."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import training
from tests.faults.__main__ import Result, Tally, choose_kinds, main, run_trial, table
from tests.faults.queues import EmbeddedQueue
from tests.faults.ring import (
    EMBEDDED,
    STEPS,
    FaultNotSurvived,
    KilledBeforeFirstLine,
    Kind,
    Outcome,
    Trial,
    Undisturbed,
    kill_rank,
    time_limits,
)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedQueue]:
    """A queue, on which the job without a fault runs once for all tests."""
    own = EmbeddedQueue(tmp_path_factory.mktemp("faults"))
    yield own
    own.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", EMBEDDED, ids=lambda kind: kind.name)
def test_a_fault_is_survived(queue: EmbeddedQueue, kind: Kind) -> None:
    Trial(queue, kind, random.Random(1), 1).survive()


@pytest.mark.slow
def test_a_job_that_is_not_tried_again_is_noticed(queue: EmbeddedQueue) -> None:
    kind = Kind("kill", kill_rank, settings={"restart": {"exit_codes": [75]}})
    with pytest.raises(FaultNotSurvived, match="left out steps"):
        Trial(queue, kind, random.Random(1), 1).survive()


@pytest.mark.slow
def test_a_job_without_its_checkpoint_is_noticed(queue: EmbeddedQueue) -> None:
    def falsify(trial: Trial) -> None:
        path = trial.newest_save(0)
        saves = trial.saves(0)
        kill_rank(trial, rank=0)
        saves.write(int(path.name.rpartition("-")[2]) + 1, 0.5)

    with pytest.raises(FaultNotSurvived, match="wrong loss"):
        Trial(queue, Kind("false checkpoint", falsify), random.Random(2), 1).survive()


QUICK = {"SECONDS_A_STEP": "0.02"}


@pytest.mark.slow
def test_a_fault_after_the_last_step_is_survived_and_came_too_late(queue: EmbeddedQueue) -> None:
    def kill_late(trial: Trial) -> None:
        trial.wait(lambda: trial.newest_save(0).name == "rank-0-40", "the last step was not reached")
        kill_rank(trial)

    outcome = Trial(queue, Kind("late", kill_late, QUICK), random.Random(1), 1).survive()
    assert outcome.late == (outcome.attempts == 1)


@pytest.mark.slow
def test_a_fault_that_starts_no_attempt_is_noticed(queue: EmbeddedQueue) -> None:
    with pytest.raises(FaultNotSurvived, match="1 attempts instead of 2"):
        Trial(queue, Kind("none", lambda _: None), random.Random(1), 1).survive()


@pytest.mark.slow
def test_a_process_that_is_left_over_is_noticed(queue: EmbeddedQueue) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def leave_process(trial: Trial) -> None:
        started.append(subprocess.Popen(["sleep", "300"], env={"HPC_KIT_RUN": str(trial.run_folder)}))
        kill_rank(trial)

    try:
        with pytest.raises(FaultNotSurvived, match=r"left over: process .* sleep 300"):
            Trial(queue, Kind("process", leave_process), random.Random(1), 1).survive()
    finally:
        started[0].kill()
        started[0].wait()


def test_a_job_with_a_time_limit_has_time_for_a_slow_start_and_needs_two_attempts() -> None:
    limits = time_limits(Undisturbed([], start=15, end=3), minute=2)
    limit, lead = 2 * int(str(limits["resources.time"])), int(str(limits["restart.lead"])) / 30
    assert limit - lead > 5 * 15
    assert lead > 15 + 3
    steps = STEPS * float(str(limits["env.SECONDS_A_STEP"]))
    assert limit - lead < steps < 2 * (limit - lead - 15)


def test_damaged_saves_are_skipped(tmp_path: Path) -> None:
    saves = training.Saves(tmp_path / "saved", 0)
    saves.write(5, 0.25)
    saves.write(10, 0.75)
    saves.files()[-1].write_text("12\n[10, 1]")
    assert saves.read() == (5, 0.25)


KINDS = [Kind("a", lambda _: None), Kind("b", lambda _: None)]


@pytest.mark.parametrize(("killed", "survived"), [(2, True), (99, False)])
def test_a_trial_whose_signal_no_script_can_survive_is_repeated_a_few_times(
    queue: EmbeddedQueue, monkeypatch: pytest.MonkeyPatch, killed: int, survived: bool
) -> None:
    trials = itertools.count()

    def survive(_: Trial) -> Outcome:
        if next(trials) < killed:
            raise KilledBeforeFirstLine
        return Outcome("none", 1.0, 0)

    monkeypatch.setattr(Trial, "survive", survive)
    assert run_trial(queue, Kind("none", lambda _: None), 1, 1).survived == survived


def test_each_kind_comes_before_one_of_them_again() -> None:
    chosen = choose_kinds(KINDS, 5, random.Random(1))
    assert [sorted(kind.name for kind in chosen[start : start + 2]) for start in (0, 2)] == [["a", "b"]] * 2


def test_the_table_counts_each_kind() -> None:
    rows = [Result(0, "a", True, 9.0, 2.0, 3), Result(1, "a", True, 9.0, 4.0, 1, True), Result(2, "b", False, 9.0)]
    assert table(rows).splitlines()[2:] == ["| a | 2 | 2 | 1 | 3.0 (at most 4.0) | 3 |", "| b | 1 | 0 | 0 |  | 0 |"]


def test_a_later_call_goes_on_and_tries_lost_faults_again(tmp_path: Path) -> None:
    path, chosen = tmp_path / "counts" / "embedded-1.jsonl", [KINDS[0], KINDS[1], KINDS[0]]
    first = Tally(path, chosen)
    first.add(Result(0, "a", True, 3.0))
    first.add(Result(1, "b", False, 150.0))
    second = Tally(path, chosen)
    assert second.missing() == [1, 2]
    assert [second.expected_seconds(number, default=60.0) for number in (0, 1)] == [4.5, 60.0]
    second.add(Result(1, "b", True, 4.0))
    assert Tally(path, [*chosen, KINDS[1]]).missing() == [2, 3]
    assert Tally(path, [KINDS[1]]).missing() == [0]


def test_a_finished_seed_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "embedded-1.jsonl"
    Tally(path, KINDS[:1]).add(Result(0, "a", True, 3.0))
    assert Tally(path, KINDS[:1]).missing() == [0]
    assert not path.exists()


def test_no_fault_is_begun_that_would_end_too_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--faults", "3", "--seed", "5", "--minutes", "0.1", "--counts", str(tmp_path)]) == 0
    assert "seed 5: 0 of 3 faults survived, 3 to go; this call: 0 tried" in capsys.readouterr().out
