"""TOML tables with the place of each key kept, so that an error can name file and line."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpc_kit.errors import SpecError

Table = dict[str, Any]
"""A TOML table: text, numbers, booleans, lists and tables."""


class Document(NamedTuple):
    """A table, and for each dotted key the place it was said."""

    data: Table
    origins: dict[str, str]

    def where(self, key: str) -> str:
        """The place of a key, or of the nearest table around it."""
        while key and key not in self.origins:
            key = key.rpartition(".")[0]
        return self.origins.get(key, "")


def read(path: Path, shown: str) -> Document:
    """Read one TOML file.

    Args:
        path: The file.
        shown: Its name in messages.

    Raises:
        SpecError: It cannot be read, or is not TOML.
    """
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {shown}", found=str(error), remedy="a TOML file in UTF-8") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(
            f"{shown} is not TOML", found=str(error), remedy="text in quotes, one key a line: time = '02:00:00'"
        ) from error
    data = _plain(data)
    lines = _lines(text)
    places = {key: f"{shown}, line {lines[key]}" if key in lines else shown for key in _keys(data)}
    return Document(data, {"": shown, **places})


def merge(lower: Document, upper: Document) -> Document:
    """Both tables; where both say something, the upper one holds."""
    return Document(_merge(lower.data, upper.data), {**lower.origins, **upper.origins})


def assignments(values: Mapping[str, object]) -> Document:
    """The document that `--set key=value` options make."""
    document = Document({}, {})
    for key, value in values.items():
        table = document.data
        *tables, last = key.split(".")
        for name in tables:
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                raise SpecError(f"--set {key}: {name} is already set to {inner!r}", remedy="set one of the two")
            table = inner
        table[last] = value
        document.origins[key] = f"--set {key}={value}"
    return document


def _plain(value: Any) -> Any:
    """`time = 02:00:00` without quotes is TOML's local time: Slurm means the same text."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, datetime.time | datetime.datetime | datetime.date):
        return value.isoformat()
    return value


def _merge(lower: Table, upper: Table) -> Table:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _keys(table: Table, prefix: str = "") -> list[str]:
    found = []
    for key, value in table.items():
        found.append(prefix + key)
        if isinstance(value, dict):
            found += _keys(value, f"{prefix}{key}.")
    return found


_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"""\s*(["']?[\w.-]+["']?)\s*=""")


def _lines(text: str) -> dict[str, int]:
    """Line of each key; keys in inline tables are found with the line of their table."""
    found: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            prefix = header[1].replace('"', "").replace("'", "") + "."
            found.setdefault(prefix[:-1], number)
        elif key := _KEY.match(line):
            found.setdefault(prefix + key[1].strip("\"'"), number)
    return found


def toml_value(value: object) -> str:
    """A value as it stands in a TOML file (JSON's strings and lists are TOML's)."""
    import json

    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else json.dumps(value)
