"""TOML tables that remember where each key was said, so that an error can name file and line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_kit.errors import SpecError

Table = dict[str, Any]
"""A TOML table: text, numbers, booleans, lists and tables."""


class Layer(Struct, frozen=True):
    """One source: its name in messages, its text if it is a file, and the keys that it says."""

    shown: str
    text: str | None
    data: Table


class Document(Struct, frozen=True):
    """A table put together from layers, the uppermost last. Places are looked up when an error wants one."""

    data: Table
    layers: tuple[Layer, ...]

    def says(self, key: str) -> bool:
        """Whether a dotted key was said at all."""
        return any(_has(layer.data, key) for layer in self.layers)

    def where(self, key: str) -> str:
        """The place of a key, or of the nearest table around it."""
        while True:
            for layer in reversed(self.layers):
                if key and _has(layer.data, key):
                    return _place(layer, key)
            if not key:
                return self.layers[-1].shown if self.layers else ""
            key = key.rpartition(".")[0]


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
        # An editor of Windows puts a mark in front, which TOML does not know.
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {shown}", found=str(error), remedy="a TOML file in UTF-8") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(
            f"{shown} is not TOML", found=str(error), remedy="text in quotes, one key a line: time = '02:00:00'"
        ) from error
    data = _plain(data)
    return Document(data, (Layer(shown, text, data),))


def merge(lower: Document, upper: Document) -> Document:
    """Both tables; where both say something, the upper one holds."""
    return Document(_merge(lower.data, upper.data), (*lower.layers, *upper.layers))


def without(document: Document, *keys: str, table: str | None = None) -> Document:
    """A document that does not say these keys of its top table, or of a table in it."""
    if table is not None:
        inner = without(Document(document.data[table], document.layers), *keys)
        return Document({**document.data, table: inner.data}, document.layers)
    data = {key: value for key, value in document.data.items() if key not in keys}
    return Document(data, document.layers)


def assignments(values: Mapping[str, object], prefix: str = "") -> Document:
    """The document that `--set key=value` options make.

    Args:
        values: The values by key.
        prefix: What stood before each key, for messages.
    """
    data: Table = {}
    for key, value in values.items():
        table = data
        *tables, last = key.split(".")
        for name in tables:
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                raise SpecError(f"--set {prefix}{key}: {name} is already set to {inner!r}", remedy="set one of the two")
            table = inner
        table[last] = value
    # The value is not named: it may be a secret, and a message may end in a log.
    layers = tuple(Layer(f"--set {prefix}{key}", None, _nested(key, value)) for key, value in values.items())
    return Document(data, layers)


def toml_value(value: object) -> str:
    """A value as it stands in a TOML file, on one line (JSON's strings are TOML's)."""
    import json

    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else toml_value(key)


def _nested(key: str, value: object) -> Table:
    first, _, rest = key.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _plain(value: Any) -> Any:
    """`time = 02:00:00` without quotes is TOML's local time: Slurm means the same text."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str | int | float):
        return value
    return value.isoformat()


def _merge(lower: Table, upper: Table) -> Table:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _has(table: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(table, dict) or name not in table:
            return False
        table = table[name]
    return True


def _place(layer: Layer, key: str) -> str:
    number = _line(layer.text, key) if layer.text is not None else None
    return layer.shown if number is None else f"{layer.shown}, line {number}"


def _line(text: str, key: str) -> int | None:
    """Line of a key; one in an inline table is found with the line of that table."""
    import re

    prefix = ""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$", line):
            prefix = re.sub("[\"']", "", header[1]) + "."
            found.setdefault(prefix[:-1], number)
        elif said := re.match(r"""\s*(["']?[\w.-]+["']?)\s*=""", line):
            found.setdefault(prefix + said[1].strip("\"'"), number)
    while key and key not in found:
        key = key.rpartition(".")[0]
    return found.get(key)
