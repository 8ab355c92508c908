"""Several ranks save together, stop at the same step, and continue exactly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_kit.runtime.restart.checkpoint_folder import INFO_FILE
from tests.runtime.restart.ranks_of_a_training import Left, Training, run

pytestmark = pytest.mark.timeout(400)


def run_two(folder: Path, name: str, **more: object) -> list[Left]:
    """Run ten steps on two ranks."""
    training = {"name": name, "folder": str(folder), "ranks": 2, "steps": 10, **more}
    return run(Training(**training))  # type: ignore[typeddict-item]


def losses(ranks: list[Left]) -> list[list[float]]:
    assert [rank["error"] for rank in ranks] == [""] * len(ranks)
    return [rank["losses"] for rank in ranks]


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [
    pytest.param(False, id="synchronous"),
    pytest.param(True, id="asynchronous"),
])  # fmt: skip
def test_a_training_that_a_signal_to_one_rank_stops_continues_exactly(asynchronous: bool, tmp_path: Path) -> None:
    for name in ("unbroken", "broken", "run"):
        (tmp_path / name).mkdir()
    unbroken = losses(run_two(tmp_path / "unbroken", "all"))
    saver = {"every": 2, "asynchronous": asynchronous, "agree_every": 1}
    environ = {"HPC_KIT_RUN": str(tmp_path / "run")}
    stopped = run_two(tmp_path / "broken", "first", saver=saver, signal_at=4, environ=environ)
    steps = len(stopped[0]["losses"])
    assert [len(rank["losses"]) for rank in stopped] == [steps, steps]
    assert 4 < steps < 10
    assert all(rank["stopped"] for rank in stopped)
    assert stopped[0]["lines"][-1].endswith(f"/step-{steps}")
    assert (tmp_path / "run" / "stopped").read_text().startswith(f"{steps} ")

    resumed = run_two(tmp_path / "broken", "second", saver=saver, environ=environ)
    assert resumed[0]["lines"][0].startswith(f"resume  step {steps} of ")
    assert [one + two for one, two in zip(losses(stopped), losses(resumed), strict=True)] == unbroken
    assert not any(rank["stopped"] for rank in resumed)
    assert resumed[1]["lines"] == []
    assert not (tmp_path / "run" / "stopped").exists()


@pytest.mark.slow
def test_a_disk_that_is_full_on_one_rank_keeps_the_old_checkpoint_and_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    first = run_two(tmp_path, "first", steps=4, sharded=True, saver={"every": 4})
    environ = {"HPC_KIT_RUN": str(tmp_path / "run")}
    saver = {"every": 2, "agree_every": 1}
    full = run_two(tmp_path, "full", sharded=True, saver=saver, fault="no space", signal_at=8, environ=environ)
    assert losses(first) and losses(full)
    warnings = [line for line in full[0]["lines"] if line.startswith("warning: step ")]
    assert warnings[0].startswith("warning: step 6 is not saved\nthe checkpoint cannot be written\n")
    assert [rank["stopped"] for rank in full] == [True, True]
    assert (tmp_path / "run" / "stopped").exists()
    assert full[0]["latest"] == f"{tmp_path}/checkpoints/step-4"
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [".lock", "latest", "step-4"]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_skipped_and_the_one_before_is_used(tmp_path: Path) -> None:
    unbroken = losses(run_two(tmp_path, "first", sharded=True, saver={"every": 5}))
    newest = tmp_path / "checkpoints" / "step-10"
    damaged = sorted(newest.glob("*.distcp"))[1]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-9] + bytes([content[-9] ^ 64]) + content[-8:])
    second = run_two(tmp_path, "second", sharded=True, saver={"every": 5})
    assert [rank[5:] for rank in unbroken] == losses(second)
    skipped, resumed, *_ = second[0]["lines"]
    assert skipped.startswith(f"skipped {newest}.damaged, which is damaged: {damaged.name} has checksum ")
    assert resumed == f"resume  step 5 of {tmp_path}/checkpoints/step-5"
    names = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert names == ["step-10", "step-10.damaged", "step-5"]


@pytest.mark.slow
def test_a_state_of_each_rank_needs_the_same_number_of_ranks(tmp_path: Path) -> None:
    assert losses(run_two(tmp_path, "first", saver={"every": 5}, fault="own state"))
    assert losses(run_two(tmp_path, "second", steps=12, fault="own state"))
    (one,) = run_two(tmp_path, "third", ranks=1, steps=12)
    assert one["error"].startswith("the state of position cannot be given to another number of ranks\n")


@pytest.mark.slow
def test_a_state_that_all_ranks_share_is_given_to_any_number_of_ranks(tmp_path: Path) -> None:
    assert losses(run_two(tmp_path, "first", steps=6, sharded=True, saver={"every": 6}))
    (one,) = run_two(tmp_path, "second", ranks=1, steps=8)
    assert (one["error"], len(one["losses"])) == ("", 2)
    assert one["lines"][1] == "note    1 ranks instead of 2: random numbers start from new seeds"


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_refused_on_all_ranks(tmp_path: Path) -> None:
    assert losses(run_two(tmp_path, "first", steps=2, saver={"every": 2}))
    for rank in run_two(tmp_path, "second", width=9):
        assert rank["error"].startswith(
            "the checkpoint belongs to another model\n"
            f"  found  {tmp_path}/checkpoints/step-2: model.0.weight is 16x8 in the checkpoint, 16x9 here\n"
        )


@pytest.mark.slow
def test_an_asynchronous_save_on_a_slow_disk_does_not_stop_the_training(tmp_path: Path) -> None:
    ranks = run_two(tmp_path, "slow", saver={"every": 2, "asynchronous": True, "keep": 9}, fault="slow disk")
    assert losses(ranks)
    notes = [line for line in ranks[0]["lines"] if line.startswith("note    step ")]
    assert [line.partition("is not saved: ")[2] for line in notes] == [
        "the last save still runs; choose a larger every"
    ]
    # A save that still runs at the end of the training is finished.
    steps = sorted(int(path.name.removeprefix("step-")) for path in (tmp_path / "checkpoints").glob("step-*"))
    assert steps[0] == 2
    assert len(steps) < 5
    assert (tmp_path / "checkpoints" / "latest" / INFO_FILE).exists()
