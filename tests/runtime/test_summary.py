"""The summary files that a training writes at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_kit.runtime import write_steps, write_summary


def test_rank_0_writes_a_flat_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    write_summary(loss=2.5, note="well", steps=60, peak=None)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "loss": 2.5,
        "note": "well",
        "steps": 60,
        "peak": None,
    }


def test_the_steps_are_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    write_steps(loss=(2.5, 2.0), seconds=[0.1, 0.2], tokens=64, busy=[(0.1, 0.2, 0.3)])
    assert json.loads((tmp_path / "steps.json").read_text()) == {
        "loss": [2.5, 2.0],
        "seconds": [0.1, 0.2],
        "tokens": 64,
        "busy": [[0.1, 0.2, 0.3]],
    }


def test_other_ranks_and_programs_outside_of_a_run_write_no_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_summary(loss=2.5)
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "12345"}.items():
        monkeypatch.setenv(name, value)
    write_summary(loss=2.5)
    assert list(tmp_path.iterdir()) == []
