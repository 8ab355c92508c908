"""Parses the formats of squeue and sinfo, `%.18i %9P` and `name:20,state`, and prints tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection


DEFAULT_WIDTH = 20
_PERCENT = re.compile(r"%(#?)(\.?)([0-9]*)(.?)([^%]*)", re.DOTALL)
_LONG = re.compile(r"([^:]+)(?::(\.?)([0-9]*)(.*))?", re.DOTALL)


class Column(NamedTuple):
    """A column of a format: what it shows, how wide (0: as wide as it is), and the text behind it.

    `fitting` (`%#P`) is for the commands' own formats: as wide as its longest value.
    """

    key: str
    width: int = 0
    right: bool = False
    suffix: str = ""
    fitting: bool = False

    def fit(self, text: str, *, whole: bool = False) -> str:
        """Pad a text to the column's width, and cut it if it is too long and the column allows that."""
        if self.width:
            # squeue cuts no time in a right-aligned column: half a number would be another time.
            text = text if whole and self.right else text[: self.width]
            text = text.rjust(self.width) if self.right else text.ljust(self.width)
        return text + self.suffix


class Format(NamedTuple):
    """A whole format: the text in front of the first column, and the columns."""

    prefix: str
    columns: list[Column]
    long: bool = False

    def without_unknown(self, keys: Collection[str]) -> tuple[Format, list[str]]:
        """Return the format with known columns only, and the unknown keys; -o prints their text, -O nothing."""
        prefix, found, unknown = self.prefix, list[Column](), list[str]()
        for column in self.columns:
            key = column.key.lower() if self.long else column.key
            if key in keys:
                found.append(column._replace(key=key))
                continue
            unknown.append(column.key)
            text = "" if self.long else f"%{column.key}{column.suffix}"
            if found:
                found[-1] = found[-1]._replace(suffix=found[-1].suffix + text)
            else:
                prefix += text
        return Format(prefix, found, self.long), unknown


def parse_short_format(text: str, everything: str) -> Format:
    """Parse the format of -o; `everything` replaces `%all`."""
    text = everything if text.lower() == "%all" else text
    prefix = text.partition("%")[0]
    found = _PERCENT.findall(text[len(prefix) :])
    columns = [Column(key, int(width or 0), bool(dot), suffix, bool(mark)) for mark, dot, width, key, suffix in found]
    return Format(prefix, columns)


def parse_long(text: str) -> Format:
    """Read the format of -O."""
    columns = []
    for part in text.split(","):
        match = _LONG.fullmatch(part.strip())
        if match:
            name, right, width, suffix = match.groups()
            columns.append(Column(name, int(width or DEFAULT_WIDTH), bool(right), suffix or ""))
    return Format("", columns, long=True)


def parse_sort(text: str) -> list[tuple[str, bool]]:
    """Read the letters of a --sort and whether each goes backwards: `P,t,-p`, or `Pt-p`."""
    return [(letter, sign.endswith("-")) for sign, letter in re.findall(r"([+-]*)([^,+\s-])", text)]
