"""first_step.py: a phase ends when the last rank is through it; where a mark is missing, its phase is too."""

from __future__ import annotations

import os
import time

import pytest

import first_step


def test_phases_are_consecutive() -> None:
    marks = dict(zip(("submit", *first_step.PHASES), (10.0, 11, 11.5, 14, 14.25, 15, 15.5, 16), strict=True))
    assert list(first_step.compute_phases(marks).values()) == [1, 0.5, 2.5, 0.25, 0.75, 0.5, 0.5]
    del marks["submit"], marks["queue"]
    assert list(first_step.compute_phases(marks)) == ["imports", "rendezvous", "model", "data", "step"]


def test_the_start_of_a_process_is_read() -> None:
    begun = first_step.find_process_start(os.getpid())
    assert begun is not None
    assert begun < first_step.BEGUN <= time.time()
    assert first_step.find_process_start(2**22 + 1) is None


def test_without_a_scheduler_the_first_phase_is_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "HPC_KIT_RUN"):
        monkeypatch.delenv(name, raising=False)
    assert first_step.find_earlier_marks(None) == {}
    assert first_step.find_earlier_marks(5.0) == {"submit": 5.0}
