"""Runs of the programs under jobs/train, and what their ranks have left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypedDict, cast

from tests import preloaded
from tests.train.conftest import ROOT, TRAIN
from tests.train.ranks_of_a_run import Run

TOLERANCE = 1e-5
"""Largest relative deviation from the losses of one rank, over ten steps in float32.

Ranks add up the same numbers in another order, which moves a gradient by some 1e-7 of itself; the steps let it grow.
The default warm-up of ten steps makes the rate of a step the same in a training of five steps as in one of ten.
"""


class Left(TypedDict):
    """What a rank left behind."""

    losses: list[float]
    norms: list[float]
    before: float
    after: float
    communication: float
    waiting: float
    data: float
    slowest: int
    kept: dict[str, int]
    error: str
    exit_status: int


class Trained:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def output(self, name: str, rank: int = 0) -> str:
        return (self.folder / f"{name}-{rank}.out").read_text()

    def result_of(self, name: str, rank: int = 0) -> Left:
        result = json.loads((self.folder / f"{name}-{rank}.json").read_text())
        assert result is not None, (self.folder / f"{name}-{rank}.err").read_text()
        return cast("Left", result)

    def error_of(self, name: str, rank: int) -> str:
        """What a rank has failed of: in its result, or, where it could not leave one, on standard error."""
        result = json.loads((self.folder / f"{name}-{rank}.json").read_text())
        return str(result["error"]) if result else (self.folder / f"{name}-{rank}.err").read_text()

    def errors_of(self, name: str) -> list[str]:
        """Of rank 0 and of rank 1."""
        return [self.result_of(name, rank)["error"] for rank in (0, 1)]


def train(folder: Path, runs: list[Run], source: Path, *, timeout: float) -> Trained:
    """Run one after the other, each rank a process; on that text."""
    for each in runs:
        if not each.get("plain"):
            each["arguments"] += ["--data", str(source)]
    (folder / "runs.json").write_text(json.dumps(runs))
    words = ["-m", "tests.train.ranks_of_a_run", str(folder)]
    done = preloaded.run(words, folder, timeout, PYTHONPATH=f"{ROOT}{os.pathsep}{TRAIN}")
    assert done.returncode == 0, done.stderr
    return Trained(folder)
