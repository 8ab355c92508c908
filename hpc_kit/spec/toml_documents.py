"""TOML documents: tables that know where each key was set, and job files that are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from hpc_kit.errors import RecordError, SpecError
from hpc_kit.run_files import write_whole

if TYPE_CHECKING:
    from tree_sitter import Node

    from hpc_kit.spec.job import Job

Table = dict[str, Any]
"""A TOML table: text, numbers, booleans, lists and tables."""

_OPTION = "--set "
"""Start of the name of a layer that sets one key."""


class Layer(Struct, frozen=True):
    """One source of keys: its name in messages, its text if it is a file, and its table."""

    name: str
    text: str | None
    data: Table


class Document(Struct, frozen=True):
    """A table merged from layers. The last layer has priority.

    A dotted key such as `resources.nodes` names an entry. `component[1].nodes` is that of the second component.
    """

    data: Table
    layers: tuple[Layer, ...]

    @classmethod
    def from_table(cls, name: str, table: Table) -> Document:
        """Return the document of one source that is no file."""
        return cls(table, (Layer(name, None, table),))

    def has_key(self, key: str) -> bool:
        """Return whether any layer sets a key."""
        return any(_has(layer.data, key) for layer in self.layers)

    def origin_of(self, key: str) -> str:
        """Return file and line of a key, or of the nearest table around it; used by error messages."""
        layers = self.layers
        if not self.has_key(key):
            # An option that sets another key of the same table is not the place of this one.
            layers = tuple(layer for layer in layers if not layer.name.startswith(_OPTION)) or layers
        while True:
            # The last layer that sets the key has set its value.
            for layer in reversed(layers):
                if key and _has(layer.data, key):
                    return _origin(layer, key)
            if not key:
                return layers[-1].name if layers else ""
            key = _parent(key)


def read_document(path: Path, name: str) -> Document:
    """Read one TOML file."""
    import tomllib

    try:
        # Editors on Windows begin a file with a byte order mark, which TOML does not allow.
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(f"cannot read {name}", found=error.strerror, remedy="check its permissions") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"cannot read {name}", found=str(error), remedy="write a TOML file in UTF-8") from error
    try:
        data = _without_times(tomllib.loads(text))
    except RecursionError as error:
        raise SpecError(
            f"{name} is nested too deeply", remedy="remove brackets: no file of hpc-kit needs 100 levels"
        ) from error
    except tomllib.TOMLDecodeError as error:
        remedy = "write text in quotes and one key on each line: time = '02:00:00'"
        if "overwrite" in str(error) or "twice" in str(error):
            remedy = "remove one of the two lines that set this key"
        elif "Unclosed" in str(error) or "Unterminated" in str(error):
            remedy = "close the bracket or the quote"
        raise SpecError(f"{name} is not TOML", found=str(error), remedy=remedy) from error
    return Document(data, (Layer(name, text, data),))


def merge_documents(lower: Document, upper: Document) -> Document:
    """Merge two documents. If both set a key, the upper one has priority."""
    return Document(_merge(lower.data, upper.data), (*lower.layers, *upper.layers))


def drop_keys(document: Document, *keys: str, table: str | None = None) -> Document:
    """Return a document without these keys of its top table, or of one table in it."""
    if table is not None:
        inner = drop_keys(Document(document.data[table], document.layers), *keys)
        return Document({**document.data, table: inner.data}, document.layers)
    data = {key: value for key, value in document.data.items() if key not in keys}
    return Document(data, document.layers)


def document_of_settings(values: Mapping[str, object], prefix: str = "") -> Document:
    """Return the document that `--set key=value` options make.

    `prefix` begins each key in messages.
    """
    data: Table = {}
    for key, value in values.items():
        table = data
        *tables, last = key.split(".")
        for name in tables:
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                raise SpecError(
                    f"--set {prefix}{key}: {name} is already set to {inner!r}", remedy="set only one of them"
                )
            table = inner
        table[last] = value
    # The name of the layer leaves out the value: it may be a secret, and messages may end in a log.
    layers = tuple(Layer(f"{_OPTION}{prefix}{key}", None, _nested(key, value)) for key, value in values.items())
    return Document(data, layers)


def format_toml_value(value: object) -> str:
    """Return a value as a TOML file contains it, on one line."""
    # Numbers and booleans need no library, and `render` formats many of them.
    if isinstance(value, bool | int | float):
        return str(value).lower()
    import tomlkit

    def inline(value: object) -> object:
        if isinstance(value, dict):
            table = tomlkit.inline_table()
            table.update({key: inline(each) for key, each in value.items()})
            return table
        if isinstance(value, list | tuple):
            # tomlkit would turn a list of tables into [[tables]] on several lines.
            array = tomlkit.array()
            array.extend(map(inline, value))
            return array
        return value

    return "null" if value is None else tomlkit.item(inline(value)).as_string()


def format_job(job: Job) -> str:
    """Return a job as the text of a job file, without the keys that have their default value."""
    import tomlkit

    table = msgspec.to_builtins(job)
    return tomlkit.dumps({key: value for key, value in table.items() if value not in ({}, [])})


def check_new(path: Path, option: str = "--save") -> None:
    """Check that a new job file can have this name."""
    if path.suffix != ".toml":
        found = "the names of job files end in .toml"
        raise SpecError(f"{path} cannot be a job file", found=found, remedy=f"use {option} {path}.toml")
    if path.exists():
        raise _exists_error(path, option)


def _exists_error(path: Path, option: str) -> SpecError:
    return SpecError(f"{path} exists", remedy=f"choose another name for {option}, or remove the file first")


def save_job(job: Job, path: Path, option: str = "--save", *, header: str = "") -> None:
    """Write a new job file. An existing file is never overwritten. `header` are comments before the first key."""
    check_new(path, option)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Atomically: a partial job file could be loaded later.
        write_whole(path, (header + format_job(job)).encode(), 0o666, lasting=False, replace=False)
    except FileExistsError:
        raise _exists_error(path, option) from None
    except OSError as error:
        raise RecordError(
            f"cannot write {path}",
            found=error.strerror,
            remedy="write to a folder with free space and write permission",
        ) from error


def _nested(key: str, value: object) -> Table:
    first, _, rest = key.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _without_times(value: Any) -> Any:
    """Turn TOML's dates and times into text: `time = 02:00:00` without quotes means the same to Slurm."""
    if isinstance(value, dict):
        return {key: _without_times(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_times(each) for each in value]
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
    for name, index in re.findall(r"([^.\[\]]+)(?:\[(\d+)\])?", key):
        if not isinstance(table, dict) or name not in table:
            return False
        table = table[name]
        if index and isinstance(table, list) and int(index) < len(table):
            table = table[int(index)]
    return True


def _parent(key: str) -> str:
    return key.rpartition("[" if key.endswith("]") else ".")[0]


def _origin(layer: Layer, key: str) -> str:
    lines = {} if layer.text is None else _lines_of_keys(layer.text)
    # The line of an entry that has no line of its own is that of the table around it.
    while key and key not in lines:
        key = _parent(key)
    return f"{layer.name}, line {lines[key]}" if key else layer.name


def _lines_of_keys(text: str) -> dict[str, int]:
    """Return the line of each dotted key of a TOML text; of a list of tables also by index.

    tomllib and tomlkit know no positions. The grammar of tree-sitter is only loaded to explain an error.
    """
    import tree_sitter
    import tree_sitter_toml

    language = tree_sitter.Language(tree_sitter_toml.language())
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    for node in tree_sitter.Parser(language).parse(text.encode()).root_node.named_children:
        prefixes = [""]
        if node.type in {"table", "table_array_element"}:
            names = _key_names(node.named_children[0])
            prefix = ".".join(names)
            prefixes = [prefix]
            if node.type == "table_array_element":
                counts[prefix] = counts.get(prefix, -1) + 1
                prefixes.append(f"{prefix}[{counts[prefix]}]")
            for name in prefixes:
                # The first place counts if a table is split into several parts.
                lines.setdefault(name, node.start_point[0] + 1)
            prefixes = [f"{name}." for name in prefixes]
        pairs = [node] if node.type == "pair" else [each for each in node.named_children if each.type == "pair"]
        for pair in pairs:
            for key, line in _pair_lines(pair):
                for prefix in prefixes:
                    lines.setdefault(prefix + key, line)
    return lines


def _pair_lines(pair: Node) -> Iterator[tuple[str, int]]:
    names = _key_names(pair.named_children[0])
    # `launch.launcher = "srun"` also defines the table `launch`.
    for end in range(1, len(names) + 1):
        yield ".".join(names[:end]), pair.start_point[0] + 1
    value = pair.named_children[1]
    if value.type == "inline_table":
        for inner in value.named_children:
            if inner.type == "pair":
                yield from ((".".join([*names, key]), line) for key, line in _pair_lines(inner))


def _key_names(key: Node) -> list[str]:
    """Return the names of a bare, quoted or dotted key."""
    if key.type == "dotted_key":
        return [name for inner in key.named_children for name in _key_names(inner)]
    text = (key.text or b"").decode()
    return [text[1:-1] if key.type == "quoted_key" else text]
