"""Input and output of tasks: whole lines, labels, slow readers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketslurm.steps.task_io import CHUNK, OutputFile, TaskInput, TaskOutput, write_all


class Pipe:
    """A pipe, and what has come out of it."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def read_all(self) -> bytes:
        os.set_blocking(self.read_end, False)
        try:
            return os.read(self.read_end, 10 * CHUNK)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        for end in (self.read_end, self.write_end):
            try:
                os.close(end)
            except OSError:
                continue


@pytest.fixture
def out() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture
def task() -> Iterator[Pipe]:
    pipe = Pipe()
    os.set_blocking(pipe.read_end, False)
    yield pipe
    pipe.close()


def test_a_line_is_written_when_it_is_complete(task: Pipe, out: Pipe) -> None:
    task_output = TaskOutput(task.read_end, 0, OutputFile(out.write_end))
    os.write(task.write_end, b"zero\none\ntwo")
    assert (task_output.pump(), out.read_all()) == (True, b"zero\none\n")
    assert (task_output.pump(), out.read_all()) == (True, b"")
    os.write(task.write_end, b" more\n")
    assert (task_output.pump(), out.read_all()) == (True, b"two more\n")
    os.write(task.write_end, b"end")
    os.close(task.write_end)
    assert (task_output.pump(), out.read_all()) == (True, b"")
    assert (task_output.pump(), out.read_all()) == (False, b"end")


def test_unbuffered_output_is_written_immediately(task: Pipe, out: Pipe) -> None:
    task_output = TaskOutput(task.read_end, 0, OutputFile(out.write_end, whole_lines=False))
    os.write(task.write_end, b"50%\r")
    assert (task_output.pump(), out.read_all()) == (True, b"50%\r")


def test_a_line_without_an_end_is_written_in_pieces(task: Pipe, out: Pipe) -> None:
    task_output = TaskOutput(task.read_end, 0, OutputFile(out.write_end))
    os.write(task.write_end, b"x" * (CHUNK - 1))
    task_output.pump()
    assert out.read_all() == b""
    os.write(task.write_end, b"x")
    task_output.pump()
    assert out.read_all() == b"x" * CHUNK


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\nb\n", b" 7: a\n 7: b\n"),
        (b"a", b" 7: a\n"),
        (b"a\rb\n", b" 7: a\rb\n"),
        (b"\n", b" 7: \n"),
    ],
)
def test_labels(out: Pipe, data: bytes, expected: bytes) -> None:
    OutputFile(out.write_end, width=2).write(7, data)
    assert out.read_all() == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=8)), max_size=30))
def test_no_output_is_lost_and_no_line_is_split(pieces: list[tuple[int, bytes]]) -> None:
    """Whatever three tasks write in whatever pieces, each one's lines come out whole and in order."""
    out = Pipe()
    tasks = [Pipe() for _ in range(3)]
    try:
        task_outputs = [
            TaskOutput(pipe.read_end, number, OutputFile(out.write_end, width=1)) for number, pipe in enumerate(tasks)
        ]
        written = [b"", b"", b""]
        for number, data in pieces:
            clean = data.replace(b"\r", b"-")
            written[number] += clean
            if clean:
                os.write(tasks[number].write_end, clean)
                task_outputs[number].pump()
        for number, pipe in enumerate(tasks):
            os.close(pipe.write_end)
            while task_outputs[number].pump():
                pass
        found: list[list[bytes]] = [[], [], []]
        for line in out.read_all().split(b"\n")[:-1]:
            found[int(line[:1])].append(line[3:])
        for number in range(3):
            lines = written[number].split(b"\n")
            assert found[number] == lines[:-1] + ([lines[-1]] if lines[-1] else [])
    finally:
        for pipe in (out, *tasks):
            pipe.close()


def test_input_waits_for_a_slow_task_and_then_ends(task: Pipe) -> None:
    os.set_blocking(task.write_end, False)
    task_input = TaskInput(task.write_end)
    assert not task_input.must_write
    data = os.urandom(5 * CHUNK)
    task_input.feed(data)
    task_input.feed(b"")
    found = b""
    for _ in range(100):
        alive = task_input.pump()
        found += task.read_all()
        if not alive:
            break
    assert found == data
    assert not alive


def test_a_task_that_closed_its_input_gets_no_more(task: Pipe) -> None:
    os.close(task.read_end)
    task_input = TaskInput(task.write_end)
    task_input.feed(b"data")
    assert task_input.pump() is False


def test_large_outputs_are_written_completely(out: Pipe) -> None:
    data = os.urandom(4 * CHUNK)
    child = os.fork()
    if not child:
        write_all(out.write_end, data)
        os._exit(0)
    os.close(out.write_end)
    found = b""
    while piece := os.read(out.read_end, CHUNK):
        found += piece
    os.waitpid(child, 0)
    assert found == data
