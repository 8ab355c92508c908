"""Each kind of fault once, on the embedded Slurm; and the checks of the ring notice a job that is not whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import training
from tests.faults.__main__ import choose_kinds, table
from tests.faults.queues import EmbeddedQueue
from tests.faults.ring import EMBEDDED, FaultNotSurvived, Kind, Outcome, Trial, kill_rank


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[EmbeddedQueue]:
    """A queue of the test's own."""
    own = EmbeddedQueue(tmp_path)
    yield own
    own.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", EMBEDDED, ids=lambda kind: kind.name)
def test_a_fault_is_survived(queue: EmbeddedQueue, kind: Kind) -> None:
    Trial(queue, kind, random.Random(1), 1).survive()


def test_a_job_that_is_not_tried_again_is_noticed(queue: EmbeddedQueue) -> None:
    kind = Kind("kill", kill_rank, settings={"restart": {"exit_codes": [75]}})
    with pytest.raises(FaultNotSurvived, match="left out steps"):
        Trial(queue, kind, random.Random(1), 1).survive()


def test_a_job_without_its_checkpoint_is_noticed(queue: EmbeddedQueue) -> None:
    def falsify(trial: Trial) -> None:
        path = trial.newest_save(0)
        saves = trial.saves(0)
        kill_rank(trial, rank=0)
        saves.write(int(path.name.rpartition("-")[2]) + 1, 0.5)

    with pytest.raises(FaultNotSurvived, match="wrong loss"):
        Trial(queue, Kind("false checkpoint", falsify), random.Random(2), 1).survive()


def test_damaged_saves_are_skipped(tmp_path: Path) -> None:
    saves = training.Saves(tmp_path / "saved", 0)
    saves.write(5, 0.25)
    saves.write(10, 0.75)
    saves.files()[-1].write_text("12\n[10, 1]")
    assert saves.read() == (5, 0.25)


def test_the_table_counts_each_kind() -> None:
    kinds = [Kind("a", lambda _: None), Kind("b", lambda _: None)]
    chosen = choose_kinds(kinds, 5, random.Random(1))
    assert [sorted(kind.name for kind in chosen[start : start + 2]) for start in (0, 2)] == [["a", "b"]] * 2
    rows = [(kinds[0], Outcome("a", 2.0, 3), ""), (kinds[0], Outcome("a", 4.0, 1), ""), (kinds[1], None, "why")]
    assert table(rows).splitlines()[2:] == ["| a | 2 | 2 | 3.0 (at most 4.0) | 3 |", "| b | 1 | 0 |  | 0 |"]
