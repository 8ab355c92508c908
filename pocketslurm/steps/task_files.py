"""The streams of a step: which files and pipes its tasks get, and which of them go through srun."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.errors import CommandError
from pocketslurm.log_paths import Names, Target, expand, target
from pocketslurm.steps.streams import Inlet, Outlet, Sink
from pocketslurm.steps.task_process import Streams

if TYPE_CHECKING:
    from pocketslurm.steps.options import Asked
    from pocketslurm.steps.pty import Terminal

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Place(NamedTuple):
    """Where a task is: its number, its node's name and index; `in_names` is its number in names of files (`%t`)."""

    task: int
    node: str
    node_id: int
    in_names: int


class Plumbing:
    """All streams of one step, or of one part of it.

    Args:
        asked: What was asked for.
        names: What stands for the patterns in names of files.
        ntasks: Tasks of the whole step.
        folder: Where it runs.
        beside: The part before this one, which has the same files and input.

    Attributes:
        outlets: What srun reads from its tasks; `inlets` what it feeds to them.
        source: The file that the inlets are fed from, None where there is nothing to feed.
        sinks: Files that tasks share, by name; `opened` are the names of the others.
    """

    def __init__(self, asked: Asked, names: Names, ntasks: int, folder: str, beside: Plumbing | None = None) -> None:
        self.outlets: list[Outlet] = beside.outlets if beside else []
        self.inlets: list[Inlet] = beside.inlets if beside else []
        self._names = names
        self._folder = folder
        self._flags = _APPEND | (0 if asked.get("open-mode").lower().startswith("a") else os.O_TRUNC)
        self._unbuffered = asked.has("unbuffered")
        self._width = len(str(ntasks - 1)) if asked.has("label") else None
        self._whole_lines = not self._unbuffered and (ntasks > 1 or self._width is not None)
        self._targets = [target(asked.values.get(name), ntasks) for name in ("input", "output", "error")]
        self.sinks: dict[str, Sink] = beside.sinks if beside else {}
        self.opened: set[str] = beside.opened if beside else set()
        self._task_side: list[int] = []
        stdin, out, err = self._targets
        if not asked.has("error"):
            err = self._targets[2] = out
        self._shared = {1: self._open_shared(out, 1, "stdout"), 2: self._open_shared(err, 2, "stderr")}
        self.source: int | None = beside.source if beside else self._open_source(stdin)

    def _open_shared(self, where: Target, own: int, name: str) -> Sink:
        if where.path is None or where.per_task:
            return Sink(own, self._width, self._whole_lines)
        return self._sink(expand(where.path, self._names), 0o644, name)

    def _sink(self, path: str, mode: int, name: str) -> Sink:
        """One sink a file, however many streams flow into it."""
        if path not in self.sinks:
            try:
                file = os.open(path, self._flags, mode)
            except OSError as error:
                raise CommandError(f"error: Could not open {name} file: {error.strerror}") from None
            self.sinks[path] = Sink(file, self._width, self._whole_lines)
        return self.sinks[path]

    def _open_source(self, where: Target) -> int | None:
        if where.per_task:
            return None
        if where.path is not None:
            try:
                return os.open(expand(where.path, self._names), os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise CommandError(f"error: Could not open stdin file: {error.strerror}") from None
        return None if _is_null(0) else 0

    def connect(self, place: Place) -> Streams:
        """Open one task's streams; `started` closes what is the task's alone.

        Raises:
            OSError: A file of its own cannot be opened.
        """
        return Streams(self._stdin(place), self._stdout(place, 1), self._stdout(place, 2))

    def connect_terminal(self, place: Place, terminal: Terminal) -> Streams:
        """The same under --pty: the terminal for the first task, nothing for the others."""
        if place.task:
            null = self._keep(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
            return Streams(null, null, null)
        self.source = 0
        os.set_blocking(terminal.ours, False)
        self.outlets.append(Outlet(terminal.ours, place.task, Sink(1, whole_lines=False)))
        self.inlets.append(Inlet(os.dup(terminal.ours)))
        theirs = self._keep(terminal.theirs)
        return Streams(theirs, theirs, theirs, terminal=True)

    def started(self) -> None:
        """Let go of what the task has now."""
        for each in self._task_side:
            os.close(each)
        self._task_side.clear()

    def _keep(self, fd: int) -> int:
        self._task_side.append(fd)
        return fd

    def _stdin(self, place: Place) -> int:
        where = self._targets[0]
        if where.per_task and where.path is not None:
            return self._keep(os.open(self._path(where.path, place), os.O_RDONLY | os.O_CLOEXEC))
        if self.source is None or (where.task is not None and where.task != place.task):
            return self._keep(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        self.inlets.append(Inlet(ours))
        return self._keep(theirs)

    def _stdout(self, place: Place, number: int) -> int:
        where, sink = self._targets[number], self._shared[number]
        if where.task is not None and where.task != place.task:
            return self._keep(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        if where.per_task and where.path is not None:
            path = self._path(where.path, place)
            if self._width is None or path == os.devnull:
                # Tasks that share a file do not cut away what the others have written.
                flags = self._flags & ~os.O_TRUNC if path in self.opened else self._flags
                self.opened.add(path)
                return self._keep(os.open(path, flags, 0o666))
            sink = self._sink(path, 0o666, "output")
        ours, theirs = _open_quick_terminal() if self._unbuffered and number == 1 else os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        self.outlets.append(Outlet(ours, place.task, sink))
        return self._keep(theirs)

    def _path(self, pattern: str, place: Place) -> str:
        names = self._names.of_task(place.in_names, place.node, place.node_id)
        return os.path.join(self._folder, expand(pattern, names))  # noqa: PTH118


def _is_null(fd: int) -> bool:
    """Nothing will ever be read there."""
    try:
        return os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev  # noqa: PTH116
    except OSError:
        return True


def _open_quick_terminal() -> tuple[int, int]:
    """A terminal for a task's stdout: programs do not hold back lines that go to one."""
    import termios

    ours, theirs = os.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    return ours, theirs
