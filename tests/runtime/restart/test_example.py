"""The program that docs/checkpoints.md makes restartable with five more lines."""

from __future__ import annotations

import difflib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
    texts = [(EXAMPLES / name).read_text().splitlines() for name in ("train.py", "train_restartable.py")]
    added = [line for line in difflib.ndiff(*texts) if line.startswith("+")]
    assert len(texts[0]) == 40
    assert len(added) == 5


@pytest.mark.parametrize("number", [
    pytest.param(signal.SIGUSR1, id="stopped"),
    pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.slow),
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
