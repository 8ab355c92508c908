"""Job ids that users write."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pocketslurm.queue.database import connect
from pocketslurm.queue.job_ids import JobSelector, find_selected, recent_jobs
from pocketslurm.queue.state import StateDirectory
from pocketslurm.settings import STATE_VARIABLE


def test_a_job_id_is_found_without_a_scan_of_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []

    def traced(directory: Path, *, make: bool = True) -> sqlite3.Connection:
        db = connect(directory, make=make)
        db.set_trace_callback(statements.append)
        return db

    monkeypatch.setattr("pocketslurm.queue.state.connect", traced)
    state = StateDirectory.open({STATE_VARIABLE: str(tmp_path)})
    find_selected(state, JobSelector("7", 7), *recent_jobs(state))
    (query,) = [each for each in statements if each.startswith("SELECT * FROM jobs")]
    plan = [row["detail"] for row in state.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert any(line.startswith("SEARCH jobs") for line in plan)
    assert not any(line.startswith("SCAN") for line in plan)
