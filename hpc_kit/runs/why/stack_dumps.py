"""Reads the stacks that faulthandler or `py-spy dump` printed, and finds the ranks that hold up the remaining ones."""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.runs.why.tracebacks import Traceback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.runs.why.log_reader import Line

_THREAD = re.compile(
    r"(?:Stack|(?:Current thread|Thread) 0x[0-9a-fA-F]+.{0,80}) ?\(most recent call first\):|Thread \w+ \([\w+]+\)"
)
"""The line above the stack of a thread: of faulthandler, then of py-spy."""

_FRAME = re.compile(
    r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)'
    r"|    (?P<name2>\S+) \((?P<file2>[^():]+):(?P<line2>\d+)\)$"
)
_NATIVE_FRAME = re.compile(r"    \S.* \((?!lib(?:c|m|pthread|python|stdc\+\+)\b|ld-)(?P<library>[^()\s]+\.so[\d.]*)\)$")
"""A frame of py-spy in a compiled library, other than those of C and Python themselves."""

_STANDARD = sys.stdlib_module_names
_MAX_LINES = 500
"""Lines of a stack that are read."""
_STARTS_PROGRAM = {"<module>", "_run_module_as_main"}
"""Functions at the start of the main thread."""


class Stack(NamedTuple):
    """The stack of the main thread of a rank, in the last dump of the rank."""

    traceback: Traceback
    line: Line
    """The line above it."""
    progress: int
    """Lines of progress before it in its file."""
    is_timeout: bool
    """The program's own timer ran out, or a person called py-spy. A signal may also dump the stacks of a job that only
    ends or is slow at the moment."""
    has_moved: bool = False
    """An earlier dump of the rank shows another place: the rank does not hang."""

    library: str = ""
    """The innermost compiled library that py-spy shows."""

    @property
    def is_worker(self) -> bool:
        """It is that of a worker of a DataLoader, or of another fork."""
        return any(name == "_worker_loop" or "popen_fork" in file for file, _, name in self.traceback.frames)

    @property
    def place(self) -> str:
        """The innermost line of the program itself: `train.py:52, in train`."""
        file, number, name = self.traceback.own_frame or self.traceback.frames[-1]
        return f"{file.rpartition('/')[2]}:{number}, in {name}"

    @property
    def waits(self) -> bool:
        """It is inside a collective, or inside a backward pass, which waits for collectives."""
        return any("torch/distributed/" in file or "torch/autograd/" in file for file, _, _ in self.traceback.frames)


class DumpReader:
    """Collects the last stack of each rank from the lines of a file."""

    def __init__(self) -> None:
        self.last: dict[int, Stack] = {}
        self.crashes: dict[int, Stack] = {}
        """The stacks of threads that crashed, by the lines of faulthandler's messages."""
        self.workers: dict[int, Stack] = {}
        """The stacks of idle workers of DataLoaders that have data to load, by line."""
        self.waits_for_workers = False
        self.is_open = False
        """The last line belonged to a stack."""
        self._stacks: dict[int | None, Stack] = {}
        self._crashed: dict[int | None, int] = {}
        self._timeouts: set[int | None] = set()

    def read(self, line: Line, progress: int) -> bool:
        """Return whether a line belongs to a dump.

        Args:
            line: The line.
            progress: Lines of progress before it.
        """
        body, rank = line.body, line.rank
        if body.startswith("Fatal Python error"):
            self._crashed[rank] = line.number  # the stack below it is that of a crash
        if is_timeout := body.startswith("Timeout ("):
            self._timeouts.add(rank)
        is_crash = rank in self._crashed and body.startswith("Current thread")
        if is_header := (rank not in self._crashed or is_crash) and bool(_THREAD.match(body)):
            self._stacks[rank] = Stack(
                Traceback(lines=[body]), line, progress, rank in self._timeouts or "most recent call first" not in body
            )
            if is_crash:
                self.crashes[self._crashed[rank]] = self._stacks[rank]
        elif rank in self._stacks and not body.startswith("  "):
            del self._stacks[rank]
            if body.strip() and not is_timeout:  # an empty line separates the threads of a dump
                self._timeouts.discard(rank)
        self.is_open = is_header or rank in self._stacks
        if self.is_open and not is_header:
            self._add(self._stacks[rank], body)
        return self.is_open or is_timeout

    def _add(self, stack: Stack, body: str) -> None:
        traceback = stack.traceback
        if not stack.library and (native := _NATIVE_FRAME.match(body)):
            self._stacks[stack.line.rank] = stack._replace(library=native["library"])
        if len(traceback.lines) > _MAX_LINES or not (found := _FRAME.match(body)):
            return
        traceback.lines.append(body)
        name, file = found["name"] or found["name2"], found["file"] or found["file2"]
        traceback.frames.insert(0, (file, int(found["line"] or found["line2"]), name))
        self.waits_for_workers |= name == "_try_get_data"
        # py-spy shows which threads use no processor. Workers without work wait for it outside of `fetch`.
        is_busy = name == "_worker_loop" and any(each == "fetch" for *_, each in traceback.frames)
        is_dump = "most recent call first" in stack.line.body
        self.waits_for_workers |= is_busy and is_dump and stack.is_timeout
        if is_busy and ("(idle)" in stack.line.body or (is_dump and stack.is_timeout)):
            traceback.frames = [(_mark_installed(own, ""), at, call) for own, at, call in traceback.frames]
            self.workers[stack.line.number] = stack
        if name == "<module>":
            traceback.frames = [(_mark_installed(own, file), at, call) for own, at, call in traceback.frames]
        if name not in _STARTS_PROGRAM or stack.line.rank is None or stack.line.rank in self._crashed:
            return
        # A signal also reaches the forks of the rank, such as the workers of a DataLoader.
        if not stack.is_worker:
            before = self.last.get(stack.line.rank)
            has_moved = before is not None and (before.has_moved or before.place != stack.place)
            self.last[stack.line.rank] = stack._replace(has_moved=has_moved)


def _mark_installed(file: str, program: str) -> str:
    """Return the name of a file with the folder of installed packages, which py-spy leaves out.

    Args:
        file: The name, as py-spy or faulthandler printed it.
        program: The name of the file of the program itself.
    """
    top = file.partition("/")[0]
    is_own = top == program.partition("/")[0] or ("/" not in file and top.removesuffix(".py") not in _STANDARD)
    return file if is_own or file.startswith(("/", "site-packages/", "<")) else f"site-packages/{file}"


def find_late_stacks(stacks: Mapping[int, Stack]) -> list[int]:
    """Return the ranks for which the remaining ranks wait, by their stacks. Empty if the stacks do not show it."""
    places = Counter(stack.place for stack in stacks.values())
    usual = max(places, key=lambda place: places[place], default="")
    for late in (
        [rank for rank, stack in stacks.items() if not stack.waits],
        # A rank that waits for its GPU may be in any function that reads a result.
        [rank for rank, stack in stacks.items() if stack.place != usual and places[usual] * 2 > len(stacks)],
    ):
        if 0 < len(late) * 2 <= len(stacks):
            return sorted(late)
    return []
