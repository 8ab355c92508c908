"""A rank's own traceback, out of whatever else stands in its log."""

from __future__ import annotations

import re
from typing import NamedTuple

NEAR_END = 60
"""Lines that may follow the traceback a process died of: what libraries say at the exit, not the training going on."""

MAX_MESSAGE = 40
"""Lines of one exception's message that are taken."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK = re.compile(r"^\[rank\d+\]: ?")
_HEAD = re.compile(r"^(?P<indent>[ |+]*)(?:Exception Group )?Traceback \(most recent call last\):$")
_SYNTAX = re.compile(r'^  File ".*", line \d+$')
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::|$)")
_NOT_FATAL = re.compile(
    r"^(Exception ignored |Exception in thread |Error in atexit|--- Logging error ---|Exception in default)"
)
_NOISE = re.compile(
    r"^(srun: |slurmstepd: |\[?[WEIF]\d{4} |\[?[WEIF]\d{3,4}[ \]]|\[rank\d+\]:\[|terminate called|Fatal Python error"
    r"|Exception ignored |Exception in |Error in atexit|Traceback \()"
)


class _Part(NamedTuple):
    """One traceback, or a chain of them: the lines [start, end); `said` is the line behind the exception itself."""

    start: int
    end: int
    said: int


def last_traceback(text: str, most_after: int = NEAR_END) -> str | None:
    """The traceback that ended a process: the last one in its log, whole, with all that led to it.

    Parts joined by "During handling ..." or "... direct cause ..." belong together. What torch puts before each line
    (`[rank5]: `) and colours are taken off. Tracebacks that a program lives on from are not meant: of a thread, of a
    destructor, or with much output behind them.

    Args:
        text: The log, or its end.
        most_after: Lines that may follow the exception, its message's further lines among them.
    """
    lines = [_RANK.sub("", _ANSI.sub("", line)).rstrip() for line in text.splitlines()]
    found: _Part | None = None
    index = 0
    while index < len(lines):
        chain = _chain(lines, index)
        if chain is None:
            index += 1
            continue
        if index == 0 or not _NOT_FATAL.match(lines[index - 1]):
            found = chain
        index = chain.end
    if found is None or len(lines) - found.said > most_after:
        return None
    return "\n".join(lines[found.start : found.end])


def headline(traceback: str) -> str:
    """The exception itself, on one line."""
    lines = traceback.splitlines()
    if "Exception Group" in lines[0]:
        drawn = [line.strip(" |+") for line in lines]
        return next((line for line in drawn[1:] if _EXCEPTION.match(line)), drawn[0])
    part = _chain(lines, 0)
    return lines[part.said - 1 if part else -1].strip()


def _chain(lines: list[str], start: int) -> _Part | None:
    """The chain of tracebacks that begins at a line."""
    part = _one(lines, start)
    while part is not None:
        joint = _after_blanks(lines, part.end)
        if joint >= len(lines) or lines[joint] not in _CHAIN:
            break
        further = _one(lines, _after_blanks(lines, joint + 1))
        if further is None:
            break
        part = further._replace(start=start)
    return part


def _after_blanks(lines: list[str], index: int) -> int:
    while index < len(lines) and not lines[index]:
        index += 1
    return index


def _one(lines: list[str], start: int) -> _Part | None:
    """One traceback: its frames, then the exception and the further lines of its message."""
    head = _HEAD.match(lines[start]) if start < len(lines) else None
    if head and head["indent"]:
        end = _group_end(lines, start)
        return _Part(start, end, end)
    if not head and not _is_syntax_error(lines, start):
        return None
    said = start + 1
    while said < len(lines) and (lines[said].startswith("  ") or not lines[said]):
        said += 1
    said = min(said + 1, len(lines))
    end = said
    # A message goes on without any mark; what a process says while it exits looks otherwise.
    while end < min(len(lines), said + MAX_MESSAGE) and not _NOISE.match(lines[end]) and not _joins(lines, end):
        end += 1
    while not lines[end - 1]:
        end -= 1
    return _Part(start, end, said)


def _joins(lines: list[str], index: int) -> bool:
    return any(line in _CHAIN for line in lines[index : index + 2])


def _is_syntax_error(lines: list[str], start: int) -> bool:
    """A script that cannot be parsed gives its place and the fault alone, without a heading."""
    if start >= len(lines) or not _SYNTAX.match(lines[start]):
        return False
    for line in lines[start + 1 : start + 6]:
        if re.match(r"(SyntaxError|IndentationError|TabError)\b", line):
            return True
        if not line.startswith("  "):
            return False
    return False


def _group_end(lines: list[str], start: int) -> int:
    """An exception group draws its members with bars at the left."""
    index = start + 1
    while index < len(lines) and re.match(r"^ *[|+]", lines[index]):
        index += 1
    return index
