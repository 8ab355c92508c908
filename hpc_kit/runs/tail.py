"""The lines of a log as they are written, whatever happens to the file meanwhile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK = 1 << 16
"""A line longer than this is given in pieces."""

KEPT = 64
_PORTION = 1 << 20
"""So much is in memory at once, however long the log is."""


class Tail:
    """Reads on from where it was: of a file that comes late, is cut, replaced, or ends in half a line.

    Args:
        path: The log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._before = b""
        """The last bytes that were read: where they are gone, the file is another one, whatever its inode says."""
        self._rest = b""

    def read(self, *, end: bool = False) -> Iterator[str]:
        """The lines that are complete by now, to be taken to the last.

        Args:
            end: Nothing more will come: half a line counts as one.
        """
        for data in self._portions():
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > CHUNK:
                lines.append(self._rest)
                self._rest = b""
            yield from map(_shown, lines)
        if end and self._rest:
            rest, self._rest = self._rest, b""
            yield _shown(rest)

    def _portions(self) -> Iterator[bytes]:
        """What is new up to the present end: a log that grows as fast as it is read must not hold up all else."""
        try:
            with self.path.open("rb") as file:
                self._find_place(file)
                left = os.fstat(file.fileno()).st_size - self._offset
                while left > 0 and (data := file.read(min(left, _PORTION))):
                    left -= len(data)
                    self._offset += len(data)
                    self._before = (self._before + data)[-KEPT:]
                    yield data
        except OSError:
            return

    def _find_place(self, file: BinaryIO) -> None:
        file.seek(self._offset - len(self._before))
        if file.read(len(self._before)) != self._before:
            self._offset, self._before, self._rest = 0, b"", b""
            file.seek(0)


def _shown(line: bytes) -> str:
    """A line as a terminal would leave it: of a progress bar, what it showed last."""
    return line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
