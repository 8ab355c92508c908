"""An interrupted training has exactly the losses of an uninterrupted one, however its ranks share the model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.train.ranks_of_a_run import Run
from tests.train.trained import Trained, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = "--layers 4 --width 32 --heads 2 --sequence 16 --global-batch 16 --eval-windows 7 --lr 0.02 --log-every 4"

PROGRAMS = {
    "ddp": ("ddp", 4, "", ""),
    "fsdp": ("fsdp", 4, "", ""),
    "zero1": ("zero1", 2, "", "zero=1"),
    "pipeline": ("pipeline", 2, "--schedule Interleaved1F1B", "pp=2"),
    "tensor": ("tensor", 2, "", "tp=2"),
    "hybrid": ("hybrid", 8, "", "pp=2 dp=2 tp=2 micro_batches=2"),
    "hybrid zero1": ("hybrid", 8, "", "pp=2 tp=2 micro_batches=2 zero=1"),
}


def runs_of(name: str) -> list[Run]:
    """Return an unbroken training, one that is stopped by a signal to one of its ranks, and its second attempt."""
    program, ranks, arguments, layout = PROGRAMS[name]

    def run(kind: str, more: str = "", rank_1: str = "") -> Run:
        words = f"{SMALL} --steps 8 {arguments} {more}".split()
        return Run(name=f"{name} {kind}", program=program, ranks=ranks, arguments=words, layout=layout, rank_1=rank_1)

    folder = f"--checkpoint {name.replace(' ', '-')}"
    return [run("unbroken"), run("stopped", folder, "is told to stop"), run("resumed", folder)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Trained:
    runs = [run for name in PROGRAMS for run in runs_of(name)]
    return train(tmp_path_factory.mktemp("resumed"), runs, source, timeout=800)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_losses_after_a_stop_are_those_of_an_unbroken_training(trained: Trained, name: str) -> None:
    resumed = re.match(r"resume  step (\d+) of ", trained.output(f"{name} resumed"))
    assert resumed, trained.output(f"{name} resumed")
    step = int(resumed[1])
    assert 0 < step < 8
    unbroken, second = trained.result_of(f"{name} unbroken"), trained.result_of(f"{name} resumed")
    assert second["losses"] == unbroken["losses"][step:]
    assert second["norms"] == unbroken["norms"][step:]
    assert second["after"] == unbroken["after"]
