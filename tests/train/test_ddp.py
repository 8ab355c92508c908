"""Real ranks, real collectives over gloo: what the curve of a training depends on, and what it does not."""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_kit.runtime.restart.checkpoint_folder import INFO_FILE, LATEST
from tests.train.conftest import TRAIN
from tests.train.ranks_of_a_run import Run
from tests.train.trained import TOLERANCE, Left, Trained, train

SMALL = "--layers 2 --width 32 --heads 2 --sequence 16 --global-batch 16 --eval-windows 7 --lr 0.02 --log-every 4"


def run(name: str, ranks: int, arguments: str, rank_1: str = "") -> Run:
    return Run(name=name, ranks=ranks, arguments=f"{SMALL} {arguments}".split(), rank_1=rank_1)


RUNS = [
    run("one", 1, "--steps 10"),
    run("two", 2, "--steps 10 --accumulate 2 --eval-every 4"),
    run("half", 2, "--steps 5 --checkpoint half"),
    run("nothing left", 2, "--steps 5 --resume half"),
    run("indivisible", 2, "--steps 10 --global-batch 7"),
    run("unlike", 2, "--steps 10", "--seed 5"),
    run("another text", 2, "--steps 10", "another text"),
    run("blind", 2, "--steps 10 --resume half", "blind"),
    run("apart", 2, "--steps 4 --checkpoint apart", "elsewhere"),
    run("diverged", 2, "--steps 10 --lr 1e38 --warmup 0"),
    run("poisoned", 2, "--steps 10 --checkpoint-every 1 --checkpoint poisoned", "poisons"),
]

LONG_RUNS = [
    run("four", 4, "--steps 10 --accumulate 4"),
    run("eight", 8, "--steps 10 --eval-every 4"),
    run("unwatched", 2, "--steps 10 --accumulate 2 --unwatched"),
    run("resumed", 4, "--steps 10 --resume half"),
    run("unbroken", 1, "--steps 12 --warmup 2"),
    run("cut short", 2, "--steps 12 --warmup 2 --checkpoint-every 6 --checkpoint cut", "dies"),
    run("gone on", 4, "--steps 12 --warmup 2 --resume cut"),
    run("stopped", 2, "--steps 12 --warmup 2 --checkpoint stopped", "is told to stop"),
    run("after the stop", 4, "--steps 12 --warmup 2 --resume stopped"),
    run("late", 2, "--steps 4", "late"),
    Run(name="plain", ranks=2, arguments=["--steps", "2", "--global-batch", "4"], plain=True),
]
"""Runs of the slow tests, with more ranks or several trainings one after the other."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Trained:
    return train(tmp_path_factory.mktemp("trained"), RUNS, source, timeout=240)


@pytest.fixture(scope="module")
def trained_long(trained: Trained, source: Path) -> Trained:
    return train(trained.folder, LONG_RUNS, source, timeout=240)


def assert_same_curve(one: Left, many: Left) -> None:
    assert len(one["losses"]) == 10
    assert one["losses"][-1] < one["losses"][0] - 0.5
    assert many["losses"] == pytest.approx(one["losses"], rel=TOLERANCE)
    assert many["norms"] == pytest.approx(one["norms"], rel=100 * TOLERANCE)  # not averaged: 10^-5 shows sooner
    # 7 windows: unequally many on 2 and 4 ranks, and none at all on the last of 8.
    assert many["before"] == pytest.approx(one["before"], rel=TOLERANCE)
    assert many["after"] == pytest.approx(one["after"], rel=TOLERANCE)


@pytest.mark.slow
def test_the_loss_curve_of_two_ranks_is_that_of_one(trained: Trained) -> None:
    assert_same_curve(trained.result_of("one"), trained.result_of("two"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["four", "eight", "unwatched"])
def test_the_loss_curve_does_not_depend_on_the_ranks(trained_long: Trained, name: str) -> None:
    assert_same_curve(trained_long.result_of("one"), trained_long.result_of(name))


def test_all_ranks_have_the_same_losses(trained: Trained) -> None:
    assert trained.result_of("two", 1) == trained.result_of("two", 0)


@pytest.mark.slow
def test_a_resumed_training_has_the_losses_of_an_uninterrupted_one(trained_long: Trained) -> None:
    one, half, resumed = (trained_long.result_of(name) for name in ("one", "half", "resumed"))
    assert resumed["before"] == pytest.approx(half["after"], rel=1e-6)
    assert "\nsaved   half/step-5\n" in trained_long.output("half")
    assert half["losses"] + resumed["losses"] == pytest.approx(one["losses"], rel=TOLERANCE)


@pytest.mark.slow
def test_an_interrupted_training_resumes_from_its_last_saved_step(trained_long: Trained) -> None:
    unbroken, gone_on = trained_long.result_of("unbroken"), trained_long.result_of("gone on")
    assert "\nsaved   cut/step-6\n" in trained_long.output("cut short")
    assert trained_long.output("gone on").startswith("resume  step 6 of cut/step-6\nnote    4 ranks instead of 2: ")
    assert gone_on["losses"] == pytest.approx(unbroken["losses"][6:], rel=TOLERANCE)


def test_nan_gradients_do_not_replace_a_good_checkpoint(trained: Trained) -> None:
    first, second = trained.errors_of("poisoned")
    assert second.startswith("the training diverged\n  found  norm of the gradients in step 3 of 10 is nan; ")
    assert re.match(r"rank 1 cannot go on\n  found  \S+: the training diverged\n", first)
    assert [trained.result_of("poisoned", rank)["exit_status"] for rank in (0, 1)] == [1, 1]
    assert json.loads((trained.folder / "poisoned" / LATEST / INFO_FILE).read_text())["step"] == 2
    assert not list(trained.folder.glob("poisoned/.step*"))


@pytest.mark.slow
def test_a_stop_signal_to_one_rank_saves_and_ends_the_training_which_can_resume(trained_long: Trained) -> None:
    unbroken, gone_on = trained_long.result_of("unbroken"), trained_long.result_of("after the stop")
    for rank in (0, 1):
        left = trained_long.result_of("stopped", rank)
        assert left["exit_status"] == 128 + signal.SIGUSR1
        stopped = re.fullmatch(
            r"the training stopped because of SIGUSR1\n"
            r"  found  step (\d+) of 12; the newest checkpoint is stopped/step-\1\n  do     --resume stopped/step-\1",
            left["error"],
        )
        assert stopped
        step = int(stopped[1])
    assert 2 <= step < 12
    assert trained_long.output("stopped").endswith(f"saved   stopped/step-{step}\n")
    assert gone_on["losses"] == pytest.approx(unbroken["losses"][step:], rel=TOLERANCE)


@pytest.mark.slow
def test_a_resumed_training_with_other_arguments_prints_a_note(trained_long: Trained) -> None:
    note = "note    the checkpoint was made with --steps 5: an unbroken training would differ\n"
    assert note in trained_long.output("resumed")


def test_only_rank_0_prints(trained: Trained) -> None:
    first, *lines, time, memory, last = trained.output("two").splitlines()
    assert re.fullmatch(r"start   ranks 2, parameters 41 632, text 60 files, \d+ bytes, crc [0-9a-f]{8}", first)
    number = r"\d[\d ]*"
    step = rf"   loss \d\.\d\d   {number} tokens/s   \d+ % communication"
    validation = r"   validation loss \d\.\d\d"
    expected = [f"step 4/10{step}", f"step 4/10{validation}", f"step 8/10{step}", f"step 8/10{validation}"]
    for line, pattern in zip(lines, [*expected, f"step 10/10{step}"], strict=True):
        assert re.fullmatch(pattern, line)
    share = r"\d+(\.\d)?%"
    waits = rf"communication {share}, waiting for ranks {share}, for data {share}"
    assert re.fullmatch(rf"time    step \d+ ms, 95 % within \d+ ms; {waits}; slowest: rank \d on \S+, [+-]\d+%", time)
    assert memory == "memory  most on a rank, MiB: parameters 0.16, gradients 0.16, optimizer 0.32"
    assert re.fullmatch(rf"done    validation loss \d\.\d\d -> \d\.\d\d, {number} tokens/s, peak \d+ MiB a rank", last)
    assert trained.output("two", 1) == ""


@pytest.mark.slow
def test_a_late_rank_is_named_and_waited_for(trained_long: Trained) -> None:
    left = trained_long.result_of("late")
    assert left["waiting"] > 0
    assert left["slowest"] == 1


@pytest.mark.slow
def test_values_that_are_not_measured_are_not_printed(trained_long: Trained) -> None:
    output = trained_long.output("unwatched")
    assert re.search(r"\nstep 10/10   loss \d\.\d\d   \d[\d ]* tokens/s\n", output)
    assert re.search(r"\ntime    step \d+ ms, 95 % within \d+ ms; waiting for data \d+\.\d%\n", output)
    assert "communication" not in output and "slowest" not in output


def test_shares_of_a_step_add_up_to_less_than_one(trained: Trained) -> None:
    for name in ("one", "two"):
        left = trained.result_of(name)
        assert 0 <= left["communication"] <= left["communication"] + left["waiting"] < 1
    assert trained.result_of("one")["waiting"] == 0


def test_a_batch_that_does_not_divide_stops_every_rank(trained: Trained) -> None:
    first, second = trained.errors_of("indivisible")
    assert first == second
    assert first.startswith("the global batch cannot be divided among the ranks\n")


@pytest.mark.slow
def test_ranks_with_different_arguments_stop_every_rank(trained: Trained) -> None:
    first, second = trained.errors_of("unlike")
    assert first == second
    assert re.match(
        r"rank 0 and rank 1 do not run with the same options\n"
        r"  found  rank 0 on .*: Options\(.* seed=1, .*\n"
        r"         rank 1 on .*: Options\(.* seed=5, ",
        first,
    )


def test_a_rank_with_another_text_stops_every_rank(trained: Trained) -> None:
    first, second = trained.errors_of("another text")
    assert first == second
    assert first.startswith("rank 0 and rank 1 do not run with the same text\n")
    assert re.search(r"crc 00000bad\n  do     the same files on every node, in \S+$", first)


def test_a_checkpoint_missing_on_one_rank_stops_every_rank(trained: Trained) -> None:
    first, second = trained.errors_of("blind")
    assert first == second
    assert re.match(
        r"the checkpoint is damaged\n  found  half/step-5: __0_0.distcp: No such file or directory on \S+\n", first
    )


def test_a_checkpoint_on_two_disks_is_refused_before_the_training(trained: Trained) -> None:
    for error in trained.errors_of("apart"):
        assert re.fullmatch(
            r"the hosts do not share the folder of the checkpoints\n"
            r"  found  apart: \S+ cannot see what rank 0 writes there\n"
            r"  do     choose a folder that all hosts see",
            error,
        )
    assert not list(trained.folder.glob("apart/.????????"))  # the mark


def test_a_checkpoint_at_the_last_step_is_refused_with_both_numbers(trained: Trained) -> None:
    first, second = trained.errors_of("nothing left")
    assert first == second
    assert first == (
        "the checkpoint leaves nothing to train\n"
        "  found  --resume half is at step 5; --steps 5\n"
        "  do     --steps 10: it counts from the first start"
    )


def test_a_diverging_training_stops_with_exit_code_1(trained: Trained) -> None:
    for rank in (0, 1):
        left = trained.result_of("diverged", rank)
        assert left["exit_status"] == 1
        assert re.fullmatch(
            r"the training diverged\n"
            r"  found  loss in step \d of 10 is (nan|inf); --lr 1e\+38 --warmup 0\n"
            r"  do     a smaller --lr or a longer --warmup",
            left["error"],
        )


@pytest.mark.slow
def test_the_plain_program_trains_with_torchs_variables(trained_long: Trained) -> None:
    assert re.fullmatch(r"rank 0 of 2 on cpu\nstep 2/2   loss \d\.\d\d\n", trained_long.output("plain"))
    assert trained_long.output("plain", 1) == "rank 1 of 2 on cpu\n"


@pytest.mark.parametrize("name", ["plain_ddp.py", "model.py", "data.py"])
def test_the_plain_program_does_not_import_hpc_kit(name: str) -> None:
    allowed = {*sys.stdlib_module_names, "torch", "model", "data"}
    for node in ast.walk(ast.parse((TRAIN / name).read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert {module.partition(".")[0] for module in modules} <= allowed


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["plain_ddp.py"], ["ddp.py", "--layers", "1"]], ids=lambda command: str(command[0])
)
def test_started_alone_the_plain_program_has_one_rank(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TRAIN / command[0]), *command[1:], "--steps", "2", "--global-batch", "4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = done.stdout.splitlines()
    assert first.startswith(("rank 0 of 1 on ", "start   ranks 1, "))
    assert last.startswith(("step 2/2   loss 5.", "done    validation loss 5.55 -> 5."))
