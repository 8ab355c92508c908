"""Formats as squeue and sinfo take them: `%.18i %9P`, and `name:20,state`."""

from __future__ import annotations

import re
from typing import NamedTuple

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

    def fit(self, text: str) -> str:
        """The text in the column's width, cut where it is too long."""
        if self.width:
            text = text[: self.width]
            text = text.rjust(self.width) if self.right else text.ljust(self.width)
        return text + self.suffix


class Format(NamedTuple):
    """A whole format: the text in front of the first column, and the columns."""

    prefix: str
    columns: list[Column]


def parse_percent(text: str) -> Format:
    """Read the format of -o."""
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
            columns.append(Column(name.lower(), int(width or DEFAULT_WIDTH), bool(right), suffix or ""))
    return Format("", columns)
