"""The smaller parts of srun: programs of a file, hosts of a file, exported variables, orders."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

import pytest

from pocketslurm.errors import CommandError
from pocketslurm.queue import messages
from pocketslurm.steps import launch, request
from pocketslurm.steps.launch import exported_environ


def said(refused: CommandError) -> list[str]:
    return [line.removeprefix("error: ") for line in refused.lines]


# --multi-prog


def multi(folder: Path, text: str, ntasks: int | None) -> list[tuple[str, ...]]:
    (folder / "multi").write_text(text)
    return launch.read_multi_prog(str(folder / "multi"), ntasks)


@pytest.mark.parametrize(
    ("text", "ntasks", "commands"),
    [
        ("0 a\n1-2 b\n", 3, [("a",), ("b",), ("b",)]),
        ("# comment\n\n0,2 a x\n1 b\n", 3, [("a", "x"), ("b",), ("a", "x")]),
        ("0 a\n* b\n", 3, [("a",), ("b",), ("b",)]),
        ("0-2 a t%t o%o\n", 3, [("a", "t0", "o0"), ("a", "t1", "o1"), ("a", "t2", "o2")]),
        ("2,0 a %t:%o\n1 b\n", 3, [("a", "0:1"), ("b",), ("a", "2:0")]),
        ("0 a 'b c' \"d e\" f\\ g\n", 1, [("a", "b c", "d e", "f g")]),
        ("0 a \\\n  b\n", 1, [("a", "b")]),
        ("0-3 a\n", None, [("a",)] * 4),
        ("0 a\n1 b\n", None, [("a",), ("b",)]),
    ],
)
def test_programs_of_tasks(tmp_path: Path, text: str, ntasks: int | None, commands: list[tuple[str, ...]]) -> None:
    assert multi(tmp_path, text, ntasks) == commands


@pytest.mark.parametrize(
    ("text", "ntasks", "first"),
    [
        ("0 a\n", 2, "Configuration file {} invalid, no record for task id 1"),
        ("0-2 a\n", 2, "Invalid task id, 2 >= ntasks"),
        ("0-1 a\n1 b\n", 2, "Duplicate record for task 1"),
        ("x a\n", 2, "Invalid task range specification (x)"),
        ("1-0 a\n", 2, "Invalid task range, 1-0"),
        ("0\n", 1, "Line 1 of configuration file {} invalid"),
    ],
)
def test_a_file_of_programs_that_is_wrong(tmp_path: Path, text: str, ntasks: int, first: str) -> None:
    with pytest.raises(CommandError) as caught:
        multi(tmp_path, text, ntasks)
    assert said(caught.value)[0] == first.format(tmp_path / "multi")


def test_a_missing_file_of_programs(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="Could not open multi_prog config file"):
        launch.read_multi_prog(str(tmp_path / "missing"), 1)


# Hosts


def test_hosts_of_a_list_or_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("n[1-2]\n\n# n9\nn3 # n8\nn1*2,n4\n")
    assert request.expand_hosts("n[1-2],n4") == ["n1", "n2", "n4"]
    assert request.expand_hosts(str(path)) == ["n1", "n2", "n3", "n1", "n1", "n4"]
    assert request.read_host_file(str(path), 3) == ["n1", "n2", "n3"]


def test_an_empty_file_of_hosts(tmp_path: Path) -> None:
    (tmp_path / "hosts").touch()
    with pytest.raises(CommandError, match="Hostlist is empty!"):
        request.read_host_file(str(tmp_path / "hosts"))


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
def test_what_export_lets_through(export: str | None, expected: dict[str, str]) -> None:
    assert exported_environ({"A": "1", "B": "2", "SLURM_X": "3"}, export) == expected


# Orders


def test_orders_come_in_their_order_and_only_while_somebody_listens(tmp_path: Path) -> None:
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


def test_what_a_dead_srun_left_is_no_listener(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    os.mkfifo(tmp_path / "orders" / "12.0")
    assert not messages.send_to_srun(tmp_path, 12, "0", "kill")
    inbox = messages.SrunInbox(tmp_path, 12, "0")
    assert messages.send_to_srun(tmp_path, 12, "0", "kill")
    assert inbox.read() == ["kill"]
    inbox.close()
