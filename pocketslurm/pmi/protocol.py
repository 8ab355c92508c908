"""The wire format of PMI: splits the data of a task into requests, and formats replies for its version.

PMI-1.1 has lines of words, PMI-2.0 messages of fields behind their length; each begins with PMI-1's line `cmd=init`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PMI1, PMI2 = (1, 1), (2, 0)

_INIT = re.compile(r"cmd=init pmi_version=([0-9]{1,9}) pmi_subversion=([0-9]{1,9})")
_HEADER = 6
_MAX_REQUEST = 1 << 20
"""Bytes of the largest accepted request. Real requests are much smaller."""


class PmiRequest(NamedTuple):
    """A request of a task; `text` is the original message."""

    command: str
    values: Mapping[str, str]
    text: str


class PmiReply(NamedTuple):
    """A reply before it is formatted."""

    command: str
    values: Mapping[str, object]


class ProtocolError(Exception):
    """A task has sent something that is not PMI. Its connection can no longer be used."""


class Connection:
    """The connection to one task.

    Attributes:
        version: PMI1 or PMI2; None before the first request.
    """

    def __init__(self) -> None:
        self.version: tuple[int, int] | None = None
        self._read = b""

    def feed(self, data: bytes) -> Iterator[PmiRequest]:
        """Add data, and yield the complete requests.

        Raises:
            ProtocolError: The data are no request.
        """
        self._read += data
        while (piece := self._cut()) is not None:
            yield _parsed(piece, self.version)
        if len(self._read) > _MAX_REQUEST:
            raise ProtocolError(f"request of more than {_MAX_REQUEST} bytes")

    def _cut(self) -> str | None:
        """Cut off the next message; lines lose their line feed."""
        if self.version == PMI2:
            return self._cut_message()
        # Only `mcmd=spawn` has several lines.
        end = b"\nendcmd\n" if self._read.startswith(b"mcmd=") else b"\n"
        line, found, rest = self._read.partition(end)
        if not found:
            return None
        self._read = rest
        return line.decode(errors="surrogateescape")

    def _cut_message(self) -> str | None:
        if len(self._read) < _HEADER:
            return None
        header = self._read[:_HEADER]
        try:
            size = _HEADER + int(header)
        except ValueError:
            raise ProtocolError(f"invalid length of a request: {header!r}") from None
        if size < _HEADER or size > _MAX_REQUEST:
            raise ProtocolError(f"invalid length of a request: {header!r}")
        if len(self._read) < size:
            return None
        message, self._read = self._read[_HEADER:size], self._read[size:]
        return message.decode(errors="surrogateescape")

    def write(self, reply: PmiReply) -> bytes:
        """Format a reply for the version of the task."""
        fields = {"cmd": reply.command, **reply.values}
        if self.version != PMI2 or reply.command == "response_to_init":
            text = " ".join(f"{key}={value}" for key, value in fields.items()) + "\n"
            return text.encode(errors="surrogateescape")
        message = "".join(f"{key}={value};" for key, value in fields.items()).encode(errors="surrogateescape")
        # A message of PMI-2 follows its length, which has six characters.
        return b"%-6d" % len(message) + message


def versions(text: str) -> tuple[int, int] | None:
    """Return the version in the line `cmd=init`; None for another line."""
    found = _INIT.match(text)
    return (int(found[1]), int(found[2])) if found else None


def _parsed(text: str, version: tuple[int, int] | None) -> PmiRequest:
    """Parse a request. A value ends at the next separator, also if its writer has doubled it."""
    separator = ";" if version == PMI2 else "\n" if text.startswith("mcmd=") else " "
    pairs = [pair.partition("=") for pair in text.split(separator)]
    values: dict[str, str] = {}
    for key, equals, value in pairs[1:]:
        if equals:
            values.setdefault(key, value)
    key, _, command = pairs[0]
    return PmiRequest(command if key == "cmd" else f"{key}={command}", values, text)
