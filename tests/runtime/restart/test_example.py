"""The program that docs/checkpoints.md makes restartable with five more lines."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.conftest import ROOT

EXAMPLES = ROOT / "docs" / "examples"


def run(name: str, folder: Path, number: int = 0, at: str = "") -> list[str]:
    """Run an example, and send it a signal when it prints a line that starts with `at`; returns its lines."""
    environ = {**os.environ, "HPC_KIT_RUN": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, EXAMPLES / name], cwd=folder, env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            if at and line.startswith(at):
                process.send_signal(number)
    assert process.returncode == (-number if number == signal.SIGKILL else 0)
    return lines


def test_the_restartable_program_has_five_more_lines() -> None:
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("train.py", "train_restartable.py"))
    added = [line.removeprefix("+ ") for line in difflib.ndiff(before, after) if line.startswith("+")]
    assert (len(before), len(added)) == (40, 5)
    page = (ROOT / "docs" / "checkpoints.md").read_text()
    assert all(f"{line}\n" in page for line in added)


def test_the_order_of_the_data_continues_although_workers_read_ahead() -> None:
    page = (ROOT / "docs" / "checkpoints.md").read_text()
    names: dict[str, Any] = {"torch": torch, "itertools": itertools}
    exec(re.findall(r"```python\n(class Order.*?)```", page, re.DOTALL)[0], names)

    def batches(rank: int, first: int, last: int) -> list[list[int]]:
        order = names["Order"](size=24, batch=2, rank=rank, ranks=3)
        order.load_state_dict({"done": first})
        found = list[list[int]]()
        for step, batch in enumerate(DataLoader(range(24), batch_sampler=order, num_workers=1), first):  # type: ignore[arg-type]
            if step == last:
                return found
            order.done = step + 1
            found.append(batch.tolist())
            assert order.state_dict() == {"done": step + 1}
        raise AssertionError

    ranks = [batches(rank, 0, 9) for rank in range(3)]
    assert [batches(rank, 0, 3) + batches(rank, 3, 9) for rank in range(3)] == ranks
    for epoch in (slice(0, 4), slice(4, 8)):
        assert sorted(number for rank in ranks for batch in rank[epoch] for number in batch) == list(range(24))


@pytest.mark.slow
@pytest.mark.parametrize("number", [
    pytest.param(signal.SIGUSR1, id="stopped"),
    pytest.param(signal.SIGKILL, id="killed"),
])  # fmt: skip
def test_the_restartable_program_continues_exactly(number: int, tmp_path: Path) -> None:
    def losses(lines: list[str]) -> dict[str, str]:
        return dict(line.strip().split(" loss ") for line in lines if line.startswith("step "))

    unbroken = run("train.py", tmp_path)
    first = run("train_restartable.py", tmp_path, number, "step 170 ")
    assert (tmp_path / "stopped").exists() == (number == signal.SIGUSR1)
    second = run("train_restartable.py", tmp_path)
    assert second[0].startswith("resume  step ")
    assert {**losses(first), **losses(second)} == losses(unbroken)
    assert second[-1] == unbroken[-1]
