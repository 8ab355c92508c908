"""Reads the stacks that faulthandler or `py-spy dump` printed, and finds the ranks that hold up the remaining ones."""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hpc_kit.runs.why.tracebacks import Traceback, is_own_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.runs.why.log_reader import Line

Key = TypeVar("Key", bound=int | str)

_THREAD = re.compile(
    r"(?:Stack|(?:Current thread|Thread) 0x[0-9a-fA-F]+.{0,80}) ?\(most recent call first\):|Thread \w+ \([\w+]+\)"
)
"""The line above the stack of a thread: of faulthandler, then of py-spy."""

_FRAME = re.compile(
    r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)'
    r"|    (?P<name2>\S+) \((?P<file2>[^():]+):(?P<line2>\d+)\)$"
)
_PROCESS = re.compile(r"Process (?P<pid>\d+): \S")
"""py-spy names the process above its stacks."""

_THREAD_ID = re.compile(r"(?:Current thread|Thread) (0x[0-9a-fA-F]+|\d+)")
_NATIVE_FRAME = re.compile(r"    \S.* \((?!lib(?:c|m|pthread|python|stdc\+\+)\b|ld-)(?P<library>[^()\s]+\.so[\d.]*)\)$")
"""A frame of py-spy in a compiled library, other than those of C and Python themselves."""

_STANDARD = sys.stdlib_module_names
_MAX_LINES = 500
"""Lines of a stack that are read."""
_STARTS_PROGRAM = {"<module>", "_run_module_as_main"}
"""Functions at the start of the main thread."""

_HELPERS = re.compile(
    r"popen_fork|: _worker_loop$|/torch/distributed/(?:elastic/agent|launcher)/|/accelerate/commands/"
    r"|/deepspeed/launcher/"
    r"|/torch/multiprocessing/spawn\.py: join$|multiprocessing/pool\.py: worker$|: _process_worker$"
    r"|multiprocessing/(?:resource_tracker|forkserver)\.py: main$|: serve_forever$|/_inductor/compile_worker/"
)
"""Frames of processes that are no ranks: launchers, workers of a DataLoader, other forks."""

_WAITS = re.compile(r"torch/distributed/(?!elastic/|launcher/|run\.py)|torch/autograd/")


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

    process: int | None = None
    """The id of the process, if py-spy states it."""

    @property
    def is_helper(self) -> bool:
        """It is that of a process that is no rank."""
        return any(_HELPERS.search(f"{file}: {name}") for file, _, name in self.traceback.frames)

    @property
    def program(self) -> str:
        """The file of the program itself that is outermost on the stack."""
        return next((file for file, _, _ in self.traceback.frames if is_own_file(file)), "")

    @property
    def place(self) -> str:
        """The innermost line of the program itself: `train.py:52, in train`."""
        file, number, name = self.traceback.own_frame or self.traceback.frames[-1]
        return f"{file.rpartition('/')[2]}:{number}, in {name}"

    @property
    def waits(self) -> bool:
        """It is inside a collective, or inside a backward pass, which waits for collectives."""
        return any(_WAITS.search(file) for file, _, _ in self.traceback.frames)


class DumpReader:
    """Collects the last stack of each rank from the lines of a file."""

    def __init__(self) -> None:
        self.last: dict[int | str, Stack] = {}
        """By rank; without labels, by the id of the process or of its main thread, which differ between processes."""
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
        self._process: int | None = None
        """The process that py-spy has named last."""

    def read(self, line: Line, progress: int) -> bool:
        """Return whether a line belongs to a dump.

        Args:
            line: The line.
            progress: Lines of progress before it.
        """
        body, rank = line.body, line.rank
        if body.startswith("Fatal Python error"):
            self._crashed[rank] = line.number  # the stack below it is that of a crash
        if is_process := _PROCESS.match(body):
            self._process = int(is_process["pid"])
        if is_timeout := body.startswith("Timeout ("):
            self._timeouts.add(rank)
        is_crash = rank in self._crashed and body.startswith("Current thread")
        if is_header := (rank not in self._crashed or is_crash) and bool(_THREAD.match(body)):
            is_dump = "most recent call first" in body
            self._stacks[rank] = Stack(
                Traceback(lines=[body]),
                line,
                progress,
                rank in self._timeouts or not is_dump,
                process=None if is_dump else self._process,
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
        return self.is_open or is_timeout or bool(is_process)

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
        rank = stack.line.rank
        key = rank if rank is not None else _process_label(stack)
        # A signal also reaches the forks of the rank, such as the workers of a DataLoader.
        if name in _STARTS_PROGRAM and key is not None and rank not in self._crashed and not stack.is_helper:
            before = self.last.get(key)
            has_moved = before is not None and (before.has_moved or before.place != stack.place)
            self.last[key] = stack._replace(has_moved=has_moved)


def _process_label(stack: Stack) -> str | None:
    """Return a name that differs between the processes that write to a file; None if the stack does not show one."""
    thread = _THREAD_ID.match(stack.line.body)
    name = f"process {stack.process}" if stack.process is not None else thread and f"thread {thread[1]}"
    return f"{stack.line.file}: {name}" if name else None


def _mark_installed(file: str, program: str) -> str:
    """Return the name of a file with the folder of installed packages, which py-spy leaves out.

    Args:
        file: The name, as py-spy or faulthandler printed it.
        program: The name of the file of the program itself.
    """
    top = file.partition("/")[0]
    is_own = top == program.partition("/")[0] or ("/" not in file and top.removesuffix(".py") not in _STANDARD)
    return file if is_own or file.startswith(("/", "site-packages/", "<")) else f"site-packages/{file}"


def find_late_stacks(stacks: Mapping[Key, Stack]) -> list[Key]:
    """Return the ranks for which the remaining ranks wait, by their stacks. Empty if the stacks do not show it."""
    late = [rank for rank, stack in stacks.items() if not stack.waits]
    if len(late) * 2 > len(stacks):
        # A rank that waits for its GPU may be in any function that reads a result.
        places = Counter(stack.place for stack in stacks.values())
        usual, count = places.most_common(1)[0]
        late = [rank for rank, stack in stacks.items() if stack.place != usual] if count * 2 > len(stacks) else []
    return late if len(late) * 2 <= len(stacks) else []
