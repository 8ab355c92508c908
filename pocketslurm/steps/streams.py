"""The output and input of a step's tasks on their way through srun: whole lines, with a label where it is asked for."""

from __future__ import annotations

import os
from collections import deque

CHUNK = 65536
"""Bytes of one read; also the longest line that is kept whole among the lines of other tasks."""


def write_all(fd: int, data: bytes) -> None:
    """Write everything; a signal or a slow reader only makes it take longer."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Sink:
    """One place that the streams of several tasks flow into.

    Args:
        fd: Where it is written.
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
            parts = lines.splitlines(keepends=True) if b"\r" not in lines else _split_lines(lines)
            lines = b"".join(label + part for part in parts)
            lines += b"" if lines.endswith(b"\n") else b"\n"
        write_all(self._fd, lines)


def _split_lines(data: bytes) -> list[bytes]:
    """At line feeds alone: a progress bar's carriage returns are no line ends."""
    parts = data.split(b"\n")
    last = parts.pop()
    return [part + b"\n" for part in parts] + ([last] if last else [])


class Outlet:
    """One stream of one task: what srun reads from its pipe, and the sink it goes to."""

    def __init__(self, fd: int, task: int, sink: Sink) -> None:
        self.fd = fd
        self._task = task
        self._sink = sink
        self._held = bytearray()

    def pump(self) -> bool:
        """Move what is there; False at the stream's end."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return True
        except OSError:  # the other side of a pseudo-terminal is gone
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


class Inlet:
    """The stdin of one task, fed by srun."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._waiting: deque[bytes] = deque()
        self._ended = False

    @property
    def waiting(self) -> bool:
        """Something is still to be written, or the end to be told."""
        return bool(self._waiting) or self._ended

    def feed(self, data: bytes) -> None:
        """Queue data; nothing at all means the end of the input."""
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
