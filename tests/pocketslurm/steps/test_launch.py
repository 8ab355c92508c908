"""Exported variables, programs of tasks, and the orders that srun receives."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

import pytest

from pocketslurm.queue import messages
from pocketslurm.steps.launch import apply_export

# --export


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        (None, {"A": "1", "B": "2", "SLURM_X": "3"}),
        ("ALL", {"A": "1", "B": "2", "SLURM_X": "3"}),
        ("NONE", {"SLURM_X": "3"}),
        ("A", {"A": "1", "SLURM_X": "3"}),
        ("A,C", {"A": "1", "SLURM_X": "3"}),
        ("A=9", {"A": "9", "SLURM_X": "3"}),
        ("ALL,C=5", {"A": "1", "B": "2", "C": "5", "SLURM_X": "3"}),
        ("ALL,A=5", {"A": "1", "B": "2", "SLURM_X": "3"}),
        ("C='x,y',B", {"B": "2", "C": "x,y", "SLURM_X": "3"}),
        ("C=", {"C": "", "SLURM_X": "3"}),
    ],
)
def test_variables_passed_on_by_export(export: str | None, expected: dict[str, str]) -> None:
    assert apply_export({"A": "1", "B": "2", "SLURM_X": "3"}, export) == expected


# Orders


def test_orders_arrive_in_order_while_the_inbox_is_open(tmp_path: Path) -> None:
    assert not messages.send_to_srun(tmp_path, 12, "0", "kill")
    inbox = messages.SrunInbox(tmp_path, 12, "0")
    assert inbox.read() == []
    assert messages.send_to_srun(tmp_path, 12, "0", "signal 10")
    assert messages.send_to_srun(tmp_path, 12, "0", "cancel TIME LIMIT")
    assert inbox.read() == ["signal 10", "cancel TIME LIMIT"]
    assert select.select([inbox.fd], [], [], 0)[0] == [], "a sender that left must not wake it again"
    assert stat.S_IMODE(os.stat(tmp_path / "orders" / "12.0").st_mode) == 0o600
    inbox.close()
    assert not messages.send_to_srun(tmp_path, 12, "0", "kill")


def test_the_pipe_of_a_dead_srun_has_no_reader(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    os.mkfifo(tmp_path / "orders" / "12.0")
    assert not messages.send_to_srun(tmp_path, 12, "0", "kill")
    inbox = messages.SrunInbox(tmp_path, 12, "0")
    assert messages.send_to_srun(tmp_path, 12, "0", "kill")
    assert inbox.read() == ["kill"]
    inbox.close()
