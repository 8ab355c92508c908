"""Exported variables, programs of tasks, and the orders that srun receives."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

import pytest

from pocketslurm.errors import CommandError
from pocketslurm.queue import messages
from pocketslurm.steps.launch import exported_environ, read_multi_prog

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
    assert exported_environ({"A": "1", "B": "2", "SLURM_X": "3"}, export) == expected


# --multi-prog


def programs(folder: Path, text: str, ntasks: int | None) -> list[tuple[str, ...]]:
    (folder / "programs").write_text(text)
    return read_multi_prog(str(folder / "programs"), ntasks)


@pytest.mark.parametrize(
    ("text", "ntasks", "commands"),
    [
        ("0 a\n1-2 b\n", 3, [("a",), ("b",), ("b",)]),
        ("# comment\n\n0,2 a x\n1 b\n", 3, [("a", "x"), ("b",), ("a", "x")]),
        ("0 a\n* b\n", 3, [("a",), ("b",), ("b",)]),
        ("2,0 a %t:%o\n1 b\n", 3, [("a", "0:1"), ("b",), ("a", "2:0")]),
        ("0 a 'b c' \\\n d\n", 1, [("a", "b c", "d")]),
        ("0-3 a\n", None, [("a",)] * 4),
    ],
)
def test_the_program_of_each_task(
    tmp_path: Path, text: str, ntasks: int | None, commands: list[tuple[str, ...]]
) -> None:
    assert programs(tmp_path, text, ntasks) == commands


@pytest.mark.parametrize(
    ("text", "ntasks", "message"),
    [
        ("0 a\n", 2, "Configuration file {} invalid, no record for task id 1"),
        ("0-2 a\n", 2, "Line 1 of configuration file {} invalid"),
        ("0-1 a\n1 b\n", 2, "Line 2 of configuration file {} invalid"),
        ("x a\n", 1, "Line 1 of configuration file {} invalid"),
        ("0\n", 1, "Line 1 of configuration file {} invalid"),
        ("0 'a\n", 1, "Line 1 of configuration file {} invalid"),
    ],
)
def test_a_malformed_file_of_programs_is_refused(tmp_path: Path, text: str, ntasks: int, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        programs(tmp_path, text, ntasks)
    assert caught.value.lines == (f"error: {message.format(tmp_path / 'programs')}",)


def test_a_missing_file_of_programs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="Could not open multi_prog config file"):
        read_multi_prog(str(tmp_path / "missing"), 1)


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
