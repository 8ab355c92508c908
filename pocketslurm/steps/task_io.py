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
    """The number of a task in its step, and its node."""

    task: int
    node: str
    node_id: int
    number_in_names: int
    """Number of the task in file names (`%t`)."""


class StepStreams:
    """All streams of one step, or of one part of it.

    Args:
        options: The options of the step.
        names: The values of patterns in file names.
        ntasks: Number of tasks of the whole step.
        folder: The folder in which the step runs.
        previous: The part before this one. Both have the same files and input.

    Attributes:
        task_outputs: Outputs of tasks, which srun reads.
        task_inputs: Inputs of tasks, which srun writes.
        input_fd: The file from which srun fills the inputs; None without input.
        output_files: Files that several tasks write to, by name.
        task_files: Names of files that single tasks write to.
    """

    def __init__(
        self, options: StepOptions, names: PatternValues, ntasks: int, folder: str, previous: StepStreams | None = None
    ) -> None:
        self.task_outputs: list[TaskOutput] = previous.task_outputs if previous else []
        self.task_inputs: list[TaskInput] = previous.task_inputs if previous else []
        self._names = names
        self._folder = folder
        self._flags = _APPEND | (0 if options.get("open-mode").lower().startswith("a") else os.O_TRUNC)
        self._unbuffered = options.has("unbuffered")
        self._width = len(str(ntasks - 1)) if options.has("label") else None
        # Lines of several tasks must not be mixed, and each line gets one label.
        self._whole_lines = not self._unbuffered and (ntasks > 1 or self._width is not None)
        self._targets = [stream_target(options.values.get(name), ntasks) for name in ("input", "output", "error")]
        self.output_files: dict[str, OutputFile] = previous.output_files if previous else {}
        self.task_files: set[str] = previous.task_files if previous else set()
        self._task_ends: list[int] = []
        stdin, out, err = self._targets
        if not options.has("error"):
            err = self._targets[2] = out
        self._shared = {1: self._open_shared(out, 1, "stdout"), 2: self._open_shared(err, 2, "stderr")}
        self.input_fd: int | None = previous.input_fd if previous else self._open_input(stdin)

    def _open_shared(self, target: StreamTarget, default_fd: int, name: str) -> OutputFile:
        if target.path is None or target.per_task:
            return OutputFile(default_fd, self._width, self._whole_lines)
        return self._open_output_file(expand(target.path, self._names), 0o644, name)

    def _open_output_file(self, path: str, mode: int, name: str) -> OutputFile:
        """Return the file of this name, which several tasks write to. Open it at the first call."""
        if path not in self.output_files:
            try:
                file = os.open(path, self._flags, mode)
            except OSError as error:
                raise CommandError(f"error: Could not open {name} file: {error.strerror}") from None
            self.output_files[path] = OutputFile(file, self._width, self._whole_lines)
        return self.output_files[path]

    def _open_input(self, target: StreamTarget) -> int | None:
        if target.per_task:
            return None
        if target.path is not None:
            try:
                return os.open(expand(target.path, self._names), os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise CommandError(f"error: Could not open stdin file: {error.strerror}") from None
        return None if _is_null(0) else 0

    def connect(self, position: TaskPosition) -> TaskStreams:
        """Open the streams of one task. Call `close_task_ends` after the task has started.

        Raises:
            OSError: A file of the task cannot be opened.
        """
        return TaskStreams(self._stdin(position), self._stdout(position, 1), self._stdout(position, 2))

    def connect_terminal(self, position: TaskPosition, terminal: Terminal) -> TaskStreams:
        """Give the first task a terminal, and further tasks /dev/null, as srun does for --pty."""
        if position.task:
            null = self._keep_task_end(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
            return TaskStreams(null, null, null)
        os.set_blocking(terminal.own_end, False)
        self.task_outputs.append(TaskOutput(terminal.own_end, position.task, OutputFile(1, whole_lines=False)))
        self.task_inputs.append(TaskInput(os.dup(terminal.own_end)))
        task_end = self._keep_task_end(terminal.task_end)
        return TaskStreams(task_end, task_end, task_end, is_terminal=True)

    def close_task_ends(self) -> None:
        """Close the ends of the started task in this process. Otherwise srun would never see the end of a stream."""
        for each in self._task_ends:
            os.close(each)
        self._task_ends.clear()

    def _keep_task_end(self, fd: int) -> int:
        self._task_ends.append(fd)
        return fd

    def _stdin(self, position: TaskPosition) -> int:
        target = self._targets[0]
        if target.per_task and target.path is not None:
            return self._keep_task_end(os.open(self._path(target.path, position), os.O_RDONLY | os.O_CLOEXEC))
        if self.input_fd is None or (target.task is not None and target.task != position.task):
            return self._keep_task_end(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        task_end, own_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(own_end, False)
        self.task_inputs.append(TaskInput(own_end))
        return self._keep_task_end(task_end)

    def _stdout(self, position: TaskPosition, number: int) -> int:
        target, output_file = self._targets[number], self._shared[number]
        if target.task is not None and target.task != position.task:
            return self._keep_task_end(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        if target.per_task and target.path is not None:
            path = self._path(target.path, position)
            if self._width is None or path == os.devnull:
                # Tasks that share a file must not truncate it.
                flags = self._flags & ~os.O_TRUNC if path in self.task_files else self._flags
                self.task_files.add(path)
                return self._keep_task_end(os.open(path, flags, 0o666))
            output_file = self._open_output_file(path, 0o666, "output")
        own_end, task_end = _open_quick_terminal() if self._unbuffered and number == 1 else os.pipe2(os.O_CLOEXEC)
        os.set_blocking(own_end, False)
        self.task_outputs.append(TaskOutput(own_end, position.task, output_file))
        return self._keep_task_end(task_end)

    def _path(self, pattern: str, position: TaskPosition) -> str:
        names = self._names.of_task(position.number_in_names, position.node, position.node_id)
        return os.path.join(self._folder, expand(pattern, names))  # noqa: PTH118


def _is_null(fd: int) -> bool:
    """Return whether a file descriptor is /dev/null."""
    try:
        return os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev  # noqa: PTH116
    except OSError:
        return True


def _open_quick_terminal() -> tuple[int, int]:
    """Open a pseudo-terminal for the stdout of a task, because programs write each line to a terminal immediately."""
    import termios

    own_end, task_end = os.openpty()
    modes = termios.tcgetattr(task_end)
    modes[1] &= ~termios.OPOST  # otherwise each line feed becomes \r\n
    termios.tcsetattr(task_end, termios.TCSANOW, modes)
    return own_end, task_end


CHUNK = 65536
"""Bytes of one read. Longer lines may be mixed with lines of other tasks."""


def write_all(fd: int, data: bytes) -> None:
    """Write all data, however many writes this takes."""
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
        """Write complete lines, or the incomplete last line of a stream."""
        if self._width is not None:
            label = f"{task:>{self._width}}: ".encode()
            # Only line feeds end a line: a progress bar writes carriage returns.
            lines = b"".join(label + line for line in re.findall(rb"[^\n]*\n|[^\n]+", lines))
            lines += b"" if lines.endswith(b"\n") else b"\n"
        write_all(self._fd, lines)


class TaskOutput:
    """One output stream of one task: the pipe that srun reads, and the file that it writes."""

    def __init__(self, fd: int, task: int, output_file: OutputFile) -> None:
        self.fd = fd
        self._task = task
        self._output_file = output_file
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
        end = self._held.rfind(b"\n") + 1 if self._output_file.whole_lines else len(self._held)
        self._flush(len(self._held) if not end and len(self._held) >= CHUNK else end)
        return True

    def _flush(self, size: int) -> None:
        if size:
            lines = bytes(self._held[:size])
            del self._held[:size]
            self._output_file.write(self._task, lines)


class TaskInput:
    """The stdin of one task, fed by srun."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._waiting: deque[bytes] = deque()
        self._ended = False

    @property
    def must_write(self) -> bool:
        """True while data, or the end of the input, must still be written."""
        return bool(self._waiting) or self._ended

    def feed(self, data: bytes) -> None:
        """Queue data for the task. Empty data is the end of the input."""
        if data:
            self._waiting.append(data)
        else:
            self._ended = True

    def pump(self) -> bool:
        """Write as much as the task reads now. Return False if nothing more can be written."""
        while self._waiting:
            data = self._waiting.popleft()
            try:
                written = os.write(self.fd, data)
            except BlockingIOError:
                self._waiting.appendleft(data)
                return True
            except OSError:  # the task has closed its stdin
                return False
            if written < len(data):
                self._waiting.appendleft(data[written:])
        return not self._ended


class StreamMover:
    """Moves data between srun and the tasks of a step.

    Args:
        selector: The selector of the event loop. The data of its keys are the callbacks.
        streams: The streams of the step.
        on_broken: Called when srun's own output is closed.
    """

    def __init__(self, selector: selectors.BaseSelector, streams: StepStreams, on_broken: Callable[[], None]) -> None:
        self._selector = selector
        self._on_broken = on_broken
        self._output_fds = {task_output.fd for task_output in streams.task_outputs}
        self._task_inputs = list(streams.task_inputs)
        self._input_fd = streams.input_fd if streams.task_inputs else None
        for task_output in streams.task_outputs:
            selector.register(
                task_output.fd, selectors.EVENT_READ, lambda task_output=task_output: self._on_output(task_output)
            )
        self._watch_input()

    @property
    def is_drained(self) -> bool:
        """True when all output has been read."""
        return not self._output_fds

    def drain(self) -> None:
        """Read the available data of every output, after the end of a task."""
        for key in list(self._selector.get_map().values()):
            if key.fd in self._output_fds:
                key.data()

    def give_up(self) -> None:
        """Stop waiting for output. A process that left the step may still have a stream open."""
        for fd in list(self._output_fds):
            self._close_output(fd)

    def _on_output(self, task_output: TaskOutput) -> None:
        try:
            more = task_output.pump()
        except OSError:
            more = False
            self._on_broken()
        if not more:
            self._close_output(task_output.fd)

    def _close_output(self, fd: int) -> None:
        self._output_fds.discard(fd)
        self._selector.unregister(fd)
        os.close(fd)

    def _watch_input(self) -> None:
        """Wait for srun's input. A regular file, which epoll does not accept, is read immediately."""
        if self._input_fd is None:
            return
        try:
            self._selector.register(self._input_fd, selectors.EVENT_READ, self._on_input)
        except OSError:
            self._on_input()

    def _on_input(self) -> None:
        input_fd = self._input_fd
        if input_fd is None:
            return
        try:
            data = os.read(input_fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        # Read no more until all tasks have taken this data, so that a slow task does not fill the memory.
        self._unwatch_input()
        self._input_fd = input_fd if data else None
        for task_input in list(self._task_inputs):
            task_input.feed(data)
            self._watch_task_input(task_input)
        if not self._task_inputs:
            self._input_fd = None

    def _unwatch_input(self) -> None:
        if self._input_fd is not None and self._input_fd in self._selector.get_map():
            self._selector.unregister(self._input_fd)

    def _watch_task_input(self, task_input: TaskInput) -> None:
        if task_input.fd not in self._selector.get_map():
            self._selector.register(task_input.fd, selectors.EVENT_WRITE, lambda: self._on_task_input(task_input))

    def _on_task_input(self, task_input: TaskInput) -> None:
        more = task_input.pump()
        if more and task_input.must_write:
            return
        self._selector.unregister(task_input.fd)
        if not more:
            os.close(task_input.fd)
            self._task_inputs.remove(task_input)
        if not any(each.must_write for each in self._task_inputs):
            self._watch_input()

    def close_input(self) -> None:
        """Stop reading the input, because no task reads it any more."""
        self._unwatch_input()
        self._input_fd = None
