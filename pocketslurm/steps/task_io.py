"""Input and output of a step: opens files and pipes for tasks, labels lines, and moves the data."""

from __future__ import annotations

import os
import re
import selectors
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.errors import CommandError
from pocketslurm.log_paths import PatternValues, StreamTarget, expand, stream_target
from pocketslurm.steps.task_process import TaskStreams

if TYPE_CHECKING:
    from collections.abc import Callable

    from pocketslurm.steps.options import StepOptions
    from pocketslurm.steps.terminal import Terminal


_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class TaskPosition(NamedTuple):
    """The number of a task, and the name and index of its node; `in_names` is its number in file names (`%t`)."""

    task: int
    node: str
    node_id: int
    in_names: int


class StepStreams:
    """All streams of one step, or of one part of it.

    Args:
        options: The options of the step.
        names: The values of patterns in file names.
        ntasks: Tasks of the whole step.
        folder: The folder in which it runs.
        previous: The part before this one, with the same files and input.

    Attributes:
        outlets: Outputs of tasks that srun reads; `inlets` are inputs that it writes.
        source: The file from which it fills the inputs; None without input.
        sinks: Files that tasks share, by name; `opened` are the names of other files.
    """

    def __init__(
        self, options: StepOptions, names: PatternValues, ntasks: int, folder: str, previous: StepStreams | None = None
    ) -> None:
        self.outlets: list[TaskOutput] = previous.outlets if previous else []
        self.inlets: list[TaskInput] = previous.inlets if previous else []
        self._names = names
        self._folder = folder
        self._flags = _APPEND | (0 if options.get("open-mode").lower().startswith("a") else os.O_TRUNC)
        self._unbuffered = options.has("unbuffered")
        self._width = len(str(ntasks - 1)) if options.has("label") else None
        # The lines of several tasks must not be mixed, and a label stands before a whole line.
        self._whole_lines = not self._unbuffered and (ntasks > 1 or self._width is not None)
        self._targets = [stream_target(options.values.get(name), ntasks) for name in ("input", "output", "error")]
        self.sinks: dict[str, OutputFile] = previous.sinks if previous else {}
        self.opened: set[str] = previous.opened if previous else set()
        self._task_side: list[int] = []
        stdin, out, err = self._targets
        if not options.has("error"):
            err = self._targets[2] = out
        self._shared = {1: self._open_shared(out, 1, "stdout"), 2: self._open_shared(err, 2, "stderr")}
        self.source: int | None = previous.source if previous else self._open_source(stdin)

    def _open_shared(self, target: StreamTarget, default_fd: int, name: str) -> OutputFile:
        if target.path is None or target.per_task:
            return OutputFile(default_fd, self._width, self._whole_lines)
        return self._sink(expand(target.path, self._names), 0o644, name)

    def _sink(self, path: str, mode: int, name: str) -> OutputFile:
        """Return the shared sink of a file."""
        if path not in self.sinks:
            try:
                file = os.open(path, self._flags, mode)
            except OSError as error:
                raise CommandError(f"error: Could not open {name} file: {error.strerror}") from None
            self.sinks[path] = OutputFile(file, self._width, self._whole_lines)
        return self.sinks[path]

    def _open_source(self, target: StreamTarget) -> int | None:
        if target.per_task:
            return None
        if target.path is not None:
            try:
                return os.open(expand(target.path, self._names), os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise CommandError(f"error: Could not open stdin file: {error.strerror}") from None
        return None if _is_null(0) else 0

    def connect(self, place: TaskPosition) -> TaskStreams:
        """Open one task's streams; `started` closes what is the task's alone.

        Raises:
            OSError: A file of its own cannot be opened.
        """
        return TaskStreams(self._stdin(place), self._stdout(place, 1), self._stdout(place, 2))

    def connect_terminal(self, place: TaskPosition, terminal: Terminal) -> TaskStreams:
        """Give the first task a terminal, and further tasks /dev/null, as srun does for --pty."""
        if place.task:
            null = self._keep(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
            return TaskStreams(null, null, null)
        os.set_blocking(terminal.own_end, False)
        self.outlets.append(TaskOutput(terminal.own_end, place.task, OutputFile(1, whole_lines=False)))
        self.inlets.append(TaskInput(os.dup(terminal.own_end)))
        task_end = self._keep(terminal.task_end)
        return TaskStreams(task_end, task_end, task_end, is_terminal=True)

    def started(self) -> None:
        """Close the ends that belong to the started task: srun would never see the end of a stream otherwise."""
        for each in self._task_side:
            os.close(each)
        self._task_side.clear()

    def _keep(self, fd: int) -> int:
        self._task_side.append(fd)
        return fd

    def _stdin(self, place: TaskPosition) -> int:
        target = self._targets[0]
        if target.per_task and target.path is not None:
            return self._keep(os.open(self._path(target.path, place), os.O_RDONLY | os.O_CLOEXEC))
        if self.source is None or (target.task is not None and target.task != place.task):
            return self._keep(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        task_end, own_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(own_end, False)
        self.inlets.append(TaskInput(own_end))
        return self._keep(task_end)

    def _stdout(self, place: TaskPosition, number: int) -> int:
        target, sink = self._targets[number], self._shared[number]
        if target.task is not None and target.task != place.task:
            return self._keep(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        if target.per_task and target.path is not None:
            path = self._path(target.path, place)
            if self._width is None or path == os.devnull:
                # Tasks that share a file must not truncate it.
                flags = self._flags & ~os.O_TRUNC if path in self.opened else self._flags
                self.opened.add(path)
                return self._keep(os.open(path, flags, 0o666))
            sink = self._sink(path, 0o666, "output")
        own_end, task_end = _open_quick_terminal() if self._unbuffered and number == 1 else os.pipe2(os.O_CLOEXEC)
        os.set_blocking(own_end, False)
        self.outlets.append(TaskOutput(own_end, place.task, sink))
        return self._keep(task_end)

    def _path(self, pattern: str, place: TaskPosition) -> str:
        names = self._names.of_task(place.in_names, place.node, place.node_id)
        return os.path.join(self._folder, expand(pattern, names))  # noqa: PTH118


def _is_null(fd: int) -> bool:
    """Return whether a file descriptor is /dev/null."""
    try:
        return os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev  # noqa: PTH116
    except OSError:
        return True


def _open_quick_terminal() -> tuple[int, int]:
    """Open a terminal for a task's stdout: programs flush each line to a terminal."""
    import termios

    own_end, task_end = os.openpty()
    modes = termios.tcgetattr(task_end)
    modes[1] &= ~termios.OPOST  # a terminal would write \r\n for each line feed
    termios.tcsetattr(task_end, termios.TCSANOW, modes)
    return own_end, task_end


CHUNK = 65536
"""Bytes of one read; also the longest line that is kept whole among the lines of other tasks."""


def write_all(fd: int, data: bytes) -> None:
    """Write everything; a signal or a slow reader only makes it take longer."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class OutputFile:
    """A file to which the streams of several tasks are written.

    Args:
        fd: The open file.
        width: Digits of the label `<task>: `, None without labels.
        whole_lines: Hold a line back until it is complete.
    """

    def __init__(self, fd: int, width: int | None = None, whole_lines: bool = True) -> None:
        self.whole_lines = whole_lines
        self._fd = fd
        self._width = width

    def write(self, task: int, lines: bytes) -> None:
        """Write complete lines, or what is left of one at the end of a stream."""
        if self._width is not None:
            label = f"{task:>{self._width}}: ".encode()
            # Only line feeds end a line: a progress bar writes carriage returns.
            lines = b"".join(label + line for line in re.findall(rb"[^\n]*\n|[^\n]+", lines))
            lines += b"" if lines.endswith(b"\n") else b"\n"
        write_all(self._fd, lines)


class TaskOutput:
    """One stream of one task: what srun reads from its pipe, and the sink it goes to."""

    def __init__(self, fd: int, task: int, sink: OutputFile) -> None:
        self.fd = fd
        self._task = task
        self._sink = sink
        self._held = bytearray()

    def pump(self) -> bool:
        """Move available data. Return False at the end of the stream."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return True
        except OSError:  # the task has closed its side of the pseudo-terminal
            data = b""
        if not data:
            self._flush(len(self._held))
            return False
        self._held += data
        end = self._held.rfind(b"\n") + 1 if self._sink.whole_lines else len(self._held)
        self._flush(len(self._held) if not end and len(self._held) >= CHUNK else end)
        return True

    def _flush(self, size: int) -> None:
        if size:
            lines = bytes(self._held[:size])
            del self._held[:size]
            self._sink.write(self._task, lines)


class TaskInput:
    """The stdin of one task, fed by srun."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._waiting: deque[bytes] = deque()
        self._ended = False

    @property
    def waiting(self) -> bool:
        """Return whether data or the end of the stream must still be written."""
        return bool(self._waiting) or self._ended

    def feed(self, data: bytes) -> None:
        """Queue data; empty data means the end of the input."""
        if data:
            self._waiting.append(data)
        else:
            self._ended = True

    def pump(self) -> bool:
        """Write what the task takes now; False when this inlet is done with."""
        while self._waiting:
            data = self._waiting.popleft()
            try:
                written = os.write(self.fd, data)
            except BlockingIOError:
                self._waiting.appendleft(data)
                return True
            except OSError:  # the task has closed its stdin, which is its right
                return False
            if written < len(data):
                self._waiting.appendleft(data[written:])
        return not self._ended


class StreamMover:
    """Moves the data of a step's streams in a selector, whose keys contain the callbacks.

    Args:
        selector: The selector of the event loop.
        streams: The streams.
        on_broken: Called when srun's own output is closed.
    """

    def __init__(self, selector: selectors.BaseSelector, streams: StepStreams, on_broken: Callable[[], None]) -> None:
        self._selector = selector
        self._on_broken = on_broken
        self._outlets = {outlet.fd for outlet in streams.outlets}
        self._inlets = list(streams.inlets)
        self._source = streams.source if streams.inlets else None
        for outlet in streams.outlets:
            selector.register(outlet.fd, selectors.EVENT_READ, lambda outlet=outlet: self._on_output(outlet))
        self._watch_source()

    @property
    def drained(self) -> bool:
        """Return whether all output has been read."""
        return not self._outlets

    def drain(self) -> None:
        """Read the available data of every output, after the end of a task."""
        for key in list(self._selector.get_map().values()):
            if key.fd in self._outlets:
                key.data()

    def give_up(self) -> None:
        """Stop waiting for output: a process that escaped still has a stream open."""
        for fd in list(self._outlets):
            self._close_outlet(fd)

    def _on_output(self, outlet: TaskOutput) -> None:
        try:
            more = outlet.pump()
        except OSError:
            more = False
            self._on_broken()
        if not more:
            self._close_outlet(outlet.fd)

    def _close_outlet(self, fd: int) -> None:
        self._outlets.discard(fd)
        self._selector.unregister(fd)
        os.close(fd)

    def _watch_source(self) -> None:
        """Read srun's input; a plain file, which no selector takes, is read as fast as the tasks do."""
        if self._source is None:
            return
        try:
            self._selector.register(self._source, selectors.EVENT_READ, self._on_input)
        except OSError:
            self._on_input()

    def _on_input(self) -> None:
        source = self._source
        if source is None:
            return
        try:
            data = os.read(source, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        # The next data is only read when all tasks have taken these: a slow task must not fill the memory.
        self._forget_source()
        self._source = source if data else None
        for inlet in list(self._inlets):
            inlet.feed(data)
            self._watch_inlet(inlet)
        if not self._inlets:
            self._source = None

    def _forget_source(self) -> None:
        if self._source is not None and self._source in self._selector.get_map():
            self._selector.unregister(self._source)

    def _watch_inlet(self, inlet: TaskInput) -> None:
        if inlet.fd not in self._selector.get_map():
            self._selector.register(inlet.fd, selectors.EVENT_WRITE, lambda: self._on_inlet(inlet))

    def _on_inlet(self, inlet: TaskInput) -> None:
        more = inlet.pump()
        if more and inlet.waiting:
            return
        self._selector.unregister(inlet.fd)
        if not more:
            os.close(inlet.fd)
            self._inlets.remove(inlet)
        # The next piece is read when every task has had this one.
        if not any(each.waiting for each in self._inlets):
            self._watch_source()

    def close_input(self) -> None:
        """Close the input: no task reads it any more."""
        self._forget_source()
        self._source = None
