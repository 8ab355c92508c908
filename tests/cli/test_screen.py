"""Standard output of commands: a reader that is gone, and text of programs that must not reach the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpc_kit.cli.launch import LineWriter
from hpc_kit.cli.terminal import clean_text

TITLE = "\x1b]0;owned\x07"
CLEAR = "\x1b[2J\x1b[H"
RED, PLAIN = "\x1b[1;31m", "\x1b[0m"


def output_in_terminal(folder: Path, *words: str) -> str:
    """Return what a command writes to a terminal."""
    ours, theirs = os.openpty()
    environ = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_kit", *words], cwd=folder, env=environ, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # Linux: the other side is closed
            break
        if not data:
            break
        output += data
    process.wait(60)
    os.close(ours)
    return output.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"{RED}loss{PLAIN} 1.0\t2\n", f"{RED}loss{PLAIN} 1.0\t2\n"),
        (f"a{TITLE}b{CLEAR}c", "abc"),
        ("\x1b]52;c;aGVsbG8=\x1b\\x", "x"),
        ("\x1b]unfinished\nnext", "\nnext"),
        ("\x1bPpayload\x1b\\ \x1bc\x1b(0\x9b2J\x08\x7f", " 2J"),
        ("50 %\r100 %", "50 %\r100 %"),
        ("end\x1b", "end"),
        ("a\u202eb\u2066c", "abc"),
    ],
)
def test_only_colours_are_left_of_escape_sequences(text: str, clean: str) -> None:
    assert clean_text(text) == clean


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"{RED}Error 1\nline 2\n{PLAIN}", f"{RED}Error 1\nline 2\n{PLAIN}"),
        (f"{RED}one\ntwo\n", f"{RED}one\ntwo{PLAIN}\n"),
        (f"one\n{RED}\r\n", f"one\n{RED}{PLAIN}\r\n"),
        ("\x1b[38;5;0mblack", f"\x1b[38;5;0mblack{PLAIN}"),
        (f"{RED}one", f"{RED}one{PLAIN}"),
        (f"{RED}one{PLAIN} two", f"{RED}one{PLAIN} two"),
        (f"{RED}one\x1b[m two", f"{RED}one\x1b[m two"),
        (f"{RED}one\x1b[1;0m two\x1b[3", f"{RED}one\x1b[1;0m two"),
        (f"{RED}a\x1b[32mb\n", f"{RED}a\x1b[32mb{PLAIN}\n"),
    ],
)
def test_a_colour_ends_with_the_text(text: str, clean: str) -> None:
    assert clean_text(text) == clean


@pytest.mark.slow
def test_a_log_changes_no_title_and_erases_nothing(project: Path) -> None:
    run = project / "runs" / "job" / "12"
    run.mkdir(parents=True)
    (run / "rank-0.log").write_text(f"{TITLE}{RED}one{PLAIN}{CLEAR}\n")
    (run / "end").write_text("0 1.0\n")
    for words in (["logs", "12"], ["logs", "12", "--all"]):
        output = output_in_terminal(project, *words)
        assert f"{RED}one{PLAIN}\n" in output
        assert TITLE not in output
        assert CLEAR not in output


def test_a_log_keeps_a_colour_over_several_lines(project: Path) -> None:
    run = project / "runs" / "job" / "12"
    run.mkdir(parents=True)
    (run / "rank-0.log").write_text(f"{RED}Error 1\nline 2{PLAIN}\n{RED}killed\n")
    (run / "end").write_text("0 1.0\n")
    output = output_in_terminal(project, "logs", "12")
    assert f"{RED}Error 1\nline 2{PLAIN}\n{RED}killed{PLAIN}\n" in output


def test_an_error_message_changes_no_title(project: Path) -> None:
    assert TITLE not in output_in_terminal(project, "render", f"{TITLE}name")


def test_a_rendered_script_keeps_every_byte_in_a_file(project: Path) -> None:
    words = ["render", "-j", "1x1", "--set", f"env.PS1={RED}", "--", "true"]
    done = subprocess.run([sys.executable, "-m", "hpc_kit", *words], cwd=project, capture_output=True, check=True)
    assert RED.encode() in done.stdout


def test_without_standard_output_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    screen = LineWriter(threading.Event())
    screen.show("text")
    assert screen.incomplete
