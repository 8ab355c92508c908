"""The lines of a log as they are written, whatever happens to the file meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 1 << 16
"""A line longer than this is given in pieces."""

KEPT = 64


class Tail:
    """Reads on from where it was: of a file that comes late, is cut, replaced, or ends in half a line.

    Args:
        path: The log.
        lines: How many of the lines already there are given at first; None for all.
    """

    def __init__(self, path: Path, lines: int | None = None) -> None:
        self.path = path
        self._most = lines
        self._offset = 0
        self._before = b""
        """The last bytes that were read: where they are gone, the file is another one, whatever its inode says."""
        self._rest = b""

    def read(self, *, end: bool = False) -> list[str]:
        """The lines that are complete by now.

        Args:
            end: Nothing more will come: half a line counts as one.
        """
        found = self._new_lines()
        if end and self._rest:
            found.append(self._rest)
            self._rest = b""
        if found and self._most is not None:
            found, self._most = found[-self._most :] if self._most else [], None
        return [_shown(line) for line in found]

    def _new_lines(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset - len(self._before))
                data = file.read()
                if not data.startswith(self._before):
                    self._offset, self._before, self._rest = 0, b"", b""
                    file.seek(0)
                    data = file.read()
        except OSError:
            return []
        new = data[len(self._before) :]
        self._offset += len(new)
        self._before = data[-KEPT:]
        *lines, rest = (self._rest + new).split(b"\n")
        if len(rest) > CHUNK:
            lines.append(rest)
            rest = b""
        self._rest = rest
        return lines


def _shown(line: bytes) -> str:
    """A line as a terminal would leave it: of a progress bar, what it showed last."""
    return line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
