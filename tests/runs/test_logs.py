"""Reading a log while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.runs.logs import LogFollower


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def add(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def test_a_file_may_appear_later(log: Path) -> None:
    tail = LogFollower(log)
    assert list(tail.read()) == []
    add(log, b"one\n")
    assert list(tail.read()) == ["one"]
    assert list(tail.read()) == []


def test_an_unfinished_line_waits_for_its_rest(log: Path) -> None:
    tail = LogFollower(log)
    add(log, "grö".encode()[:-1])
    assert list(tail.read()) == []
    add(log, "ö".encode()[1:] + b"\nx")
    assert list(tail.read()) == ["grö"]
    assert list(tail.read(end=True)) == ["x"]
    assert list(tail.read(end=True)) == []


def test_a_file_cut_or_replaced_is_read_from_its_start(log: Path) -> None:
    tail = LogFollower(log)
    add(log, b"old line\n")
    assert list(tail.read()) == ["old line"]
    log.write_bytes(b"new\n")
    assert list(tail.read()) == ["new"]
    log.unlink()
    assert list(tail.read()) == []
    log.with_name("other").write_bytes(b"of the same size as before\n")
    log.with_name("other").rename(log)
    assert list(tail.read()) == ["of the same size as before"]


def test_a_progress_bar_gives_its_last_state(log: Path) -> None:
    add(log, b"\r10 %\r50 %\r100 %\nwindows\r\n")
    assert list(LogFollower(log).read()) == ["100 %", "windows"]


def test_a_line_without_end_does_not_fill_the_memory(log: Path) -> None:
    tail = LogFollower(log)
    add(log, b"x" * 100_000)
    assert [len(line) for line in list(tail.read())] == [100_000]


def test_bytes_that_are_not_text_are_escaped(log: Path) -> None:
    add(log, b"a\xffb\n")
    assert list(LogFollower(log).read()) == ["a\ufffdb"]


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_lines_do_not_depend_on_how_the_file_is_written(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    log = tmp_path_factory.mktemp("tail") / "log"
    tail, found = LogFollower(log), list[str]()
    for part in parts:
        add(log, part)
        found += list(tail.read())
    found += list(tail.read(end=True))
    assert found == (list(LogFollower(log).read(end=True)) if parts else [])
