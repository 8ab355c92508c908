"""A rank's own traceback, found in logs that real interpreters wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.runs.tracebacks import headline, last_traceback


def log_of(program: str, folder: Path) -> str:
    """What Python writes while it runs a program and dies of it."""
    (folder / "train.py").write_text(program)
    done = subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr


PLAIN = "print('step 1')\nraise ValueError('bad sample')"
CAUSE = """
def load():
    try:
        {}['loss']
    except KeyError as error:
        raise RuntimeError('no loss') from error
try:
    load()
except RuntimeError:
    1 / 0
"""
HANDLED = """
import traceback
try:
    raise OSError('tried again')
except OSError:
    traceback.print_exc()
raise ValueError('the end')
"""
GROUP = "raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])"
SYNTAX = "print('x')\nfor\n"
LINES = "raise RuntimeError('shapes differ:\\n  size mismatch for a\\n\\n  size mismatch for b')"
DEEP = "def f(n): return f(n + 1)\nf(0)"


@pytest.mark.parametrize(
    ("program", "start", "end", "line"),
    [
        (PLAIN, "Traceback (most", "ValueError: bad sample", "ValueError: bad sample"),
        (CAUSE, "Traceback (most", "ZeroDivisionError: division by zero", "ZeroDivisionError: division by zero"),
        (HANDLED, "Traceback (most", "ValueError: the end", "ValueError: the end"),
        (GROUP, "  + Exception Group Traceback", "-" * 36, "ExceptionGroup: two (2 sub-exceptions)"),
        (SYNTAX, '  File "', "SyntaxError: invalid syntax", "SyntaxError: invalid syntax"),
        (LINES, "Traceback (most", "  size mismatch for b", "RuntimeError: shapes differ:"),
        (DEEP, "Traceback (most", "depth exceeded", "RecursionError: maximum recursion depth exceeded"),
    ],
)  # fmt: skip
def test_it_is_the_whole_traceback_and_nothing_else(
    tmp_path: Path, program: str, start: str, end: str, line: str
) -> None:
    log = log_of(program, tmp_path)
    found = last_traceback(f"step 0\nTraceback of nothing\n{log}")
    assert found is not None
    assert found.startswith(start)
    assert found.endswith(end)
    assert found in log
    assert headline(found) == line


def test_what_led_to_it_belongs_to_it(tmp_path: Path) -> None:
    found = last_traceback(log_of(CAUSE, tmp_path))
    assert found is not None
    assert found.count("Traceback (most recent call last):") == 3
    assert found.count("direct cause") == 1
    assert found.count("During handling") == 1


def test_an_exception_that_was_survived_does_not(tmp_path: Path) -> None:
    found = last_traceback(log_of(HANDLED, tmp_path))
    assert found is not None
    assert "tried again" not in found


TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 2, in <module>
    raise ValueError("bad")
ValueError: bad"""


@pytest.mark.parametrize(
    "after",
    [
        "srun: error: n3: task 5: Exited with exit code 1",
        "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-01-01T12:00:00 ***",
        "[rank5]:[W1121 10:00:00.1 ProcessGroupGloo.cpp:1] Warning: destroy_process_group() was not called",
        "[W1121 10:00:00.1 socket.cpp:1] [c10d] The client socket has failed",
        "Exception ignored in: <function Pool.__del__ at 0x7f>\n" + TRACEBACK.replace("bad", "late"),
        "Exception in thread Thread-1:\n" + TRACEBACK.replace("bad", "late"),
    ],
)
def test_what_comes_behind_it_is_cut_off(after: str) -> None:
    assert last_traceback(f"{TRACEBACK}\n{after}\n") == TRACEBACK


def test_torchs_prefix_and_colours_are_taken_off() -> None:
    log = "\n".join(f"[rank5]: {line}" for line in TRACEBACK.splitlines()).replace(
        "ValueError:", "\x1b[1;35mValueError\x1b[0m:"
    )
    assert last_traceback(log) == TRACEBACK


def test_an_attempt_before_this_one_is_not_the_cause() -> None:
    later = "\n".join(f"step {number}" for number in range(100))
    assert last_traceback(f"{TRACEBACK}\n{later}") is None


@pytest.mark.parametrize("log", ["", "step 1\n", "Traceback: none\n", "error: no such file\n"])
def test_a_log_without_one_gives_none(log: str) -> None:
    assert last_traceback(log) is None


def test_a_traceback_that_was_cut_short_is_given_as_far_as_it_goes() -> None:
    cut = "\n".join(TRACEBACK.splitlines()[:-1])
    assert last_traceback(cut) == cut


@given(st.text(alphabet="T \n|+", max_size=60), st.text(max_size=60))
def test_nothing_in_a_log_makes_it_fail(before: str, after: str) -> None:
    found = last_traceback(f"{before}\n{TRACEBACK}\n{after}")
    assert found is None or headline(found)
