"""Words of a shell script, with their quoting and their place in the file kept."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Kind = Literal["text", "variable", "command", "arithmetic", "process"]

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({NAME})(\[[^\]]*\])?(\+?)=")


class Unreadable(Exception):
    """The text is no shell that can be read; `line` is where reading stopped."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")
        self.line = line
        self.what = what


class Origin(NamedTuple):
    """Where a text stands in the file. Not `exact`: it is not written there as it is, so all of it is at this place."""

    line: int = 1
    column: int = 1
    exact: bool = True


class Piece(NamedTuple):
    """The text from `start` on stands at `origin`, up to the next piece."""

    start: int
    origin: Origin


WHOLE_FILE = (Piece(0, Origin()),)


class Part(NamedTuple):
    """One piece of a word.

    `text` is the literal text, the variable's name, or the source of a `$(...)` or `$((...))`; `detail` is what a
    `${name...}` has behind the name; `raw` is the piece as written, without quotes around it.
    """

    kind: Kind
    text: str
    raw: str
    quoted: bool = False
    detail: str = ""
    origin: Origin = Origin()


class Word(NamedTuple):
    """One word; `elements` are those of an array, as in `NAME=(a b c)`."""

    parts: tuple[Part, ...]
    raw: str
    line: int
    column: int
    elements: tuple[Word, ...] | None = None

    @property
    def literal(self) -> str | None:
        """The word's text where nothing in it is expanded."""
        if self.elements is not None or any(part.kind != "text" for part in self.parts):
            return None
        return "".join(part.text for part in self.parts)

    @property
    def plain(self) -> str | None:
        """The text of a word without any quote: only such a word can be a keyword."""
        return self.literal if not any(part.quoted for part in self.parts) else None


class HereDocument:
    """A here-document: the parts of its body are filled in when the line that asks for it ends."""

    def __init__(self, delimiter: str, *, strip: bool, quoted: bool) -> None:
        self.delimiter = delimiter
        self.strip = strip
        self.quoted = quoted
        self.parts: tuple[Part, ...] = ()


class Assignment(NamedTuple):
    """`NAME=value`, or `NAME+=value`; `indexed`: one element of an array."""

    name: str
    value: Word
    append: bool
    indexed: bool


def as_assignment(word: Word) -> Assignment | None:
    """The assignment that a word is, or None."""
    head = word.parts[0] if word.parts else None
    if head is None or head.kind != "text" or head.quoted:
        return None
    match = _ASSIGNMENT.match(head.text)
    if match is None:
        return None
    origin = head.origin._replace(column=head.origin.column + match.end() if head.origin.exact else head.origin.column)
    rest = head._replace(text=head.text[match.end() :], raw=head.raw[match.end() :], origin=origin)
    parts = (rest, *word.parts[1:]) if rest.text else word.parts[1:]
    value = Word(parts, word.raw[match.end() :], word.line, word.column, word.elements)
    return Assignment(match[1], value, bool(match[3]), match[2] is not None)
