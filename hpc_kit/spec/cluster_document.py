"""Writes discovered facts into a cluster file, and keeps what the user has changed there.

Beside `NAME.toml`, `NAME.discovered.json` contains the values of the last discovery. A value of the file that differs
from it is the user's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.errors import RecordError, SpecError, explain_file_errors
from hpc_kit.run_files import write_whole

if TYPE_CHECKING:
    from hpc_kit.spec.discovery import Fact

Key = tuple[str, ...]

HEADER = """\
# {description}
#:schema cluster.schema.json
# `hpc-kit cluster discover` wrote this file; the comment of each value names the command that printed it.
# Change what you like: the next discovery keeps your values.
description = "{description}"
"""


class KeptValue(NamedTuple):
    """A value of the user that differs from a discovered one. `own` is None if the user removed the key."""

    fact: Fact
    own: object


class MergedFile(NamedTuple):
    """The text of a cluster file before and after a discovery, and the values that stay the user's."""

    before: str
    after: str
    kept: tuple[KeptValue, ...]


def merge_facts(path: Path | None, facts: Sequence[Fact], description: str) -> MergedFile:
    """Return the text of a cluster file with the facts of a discovery.

    `path` need not exist; None: as for a new file. `description` is the first line of a new file.

    Raises:
        SpecError: The file cannot be read, is not TOML, or has a value where a fact needs a table.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    before = ""
    if path:
        with explain_file_errors(SpecError, f"cannot read {path}", "write to another file", also=(UnicodeDecodeError,)):
            before = path.read_text(encoding="utf-8") if path.exists() else ""
    try:
        # tomlkit keeps the comments and the order of the user's file.
        document = tomlkit.parse(before or HEADER.format(description=description))
    except TOMLKitError as error:
        raise SpecError(
            f"{path} is not TOML", found=str(error), remedy="fix the file, or write to another one"
        ) from error
    last, kept = _read_last(path) if path else {}, []
    for fact in facts:
        own = _value_at(document.unwrap(), fact.key)
        if own == fact.value:
            continue
        # The user has not changed the value since the last discovery, so Slurm's new value replaces it.
        if own == last.get(fact.key):
            _set(document, fact)
        else:
            kept.append(KeptValue(fact, own))
    return MergedFile(before, tomlkit.dumps(document), tuple(kept))


def write_facts(path: Path, merged: MergedFile, facts: Sequence[Fact]) -> None:
    """Write a cluster file, and the facts beside it for the next discovery."""
    table: dict[str, Any] = {}
    for fact in facts:
        inner = table
        for name in fact.key[:-1]:
            inner = inner.setdefault(name, {})
        inner[fact.key[-1]] = fact.value
    with explain_file_errors(
        RecordError, f"cannot write {path}", "write to a folder with free space and write permission"
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        if merged.after != merged.before:
            write_whole(path, merged.after.encode(), 0o666, lasting=False)
        write_whole(facts_file(path), (json.dumps(table, indent=1) + "\n").encode(), 0o666, lasting=False)


def facts_file(path: Path) -> Path:
    """Return the file with the values of the last discovery."""
    return path.with_name(f"{path.stem}.discovered.json")


def _read_last(path: Path) -> dict[Key, object]:
    """Return the values of the last discovery by key; without that file, every value is the user's."""
    try:
        return dict(_flatten(json.loads(facts_file(path).read_bytes()), ()))
    except (OSError, ValueError, AttributeError):
        return {}


def _flatten(table: Mapping[str, Any], prefix: Key) -> list[tuple[Key, object]]:
    found: list[tuple[Key, object]] = []
    for name, value in table.items():
        found += _flatten(value, (*prefix, name)) if isinstance(value, dict) else [((*prefix, name), value)]
    return found


def _value_at(table: Any, key: Key) -> object:
    for name in key:
        if not isinstance(table, dict) or name not in table:
            return None
        table = table[name]
    return table


def _set(document: Any, fact: Fact) -> None:
    """Set a value, with its source as comment."""
    import tomlkit

    table = document
    for depth, name in enumerate(fact.key[:-1], start=1):
        if name not in table:
            # A super table has no header of its own: [partition.gpu] needs no [partition] before it.
            table.add(name, tomlkit.table(is_super_table=depth < len(fact.key) - 1))
        table = table[name]
        if not isinstance(table, dict):
            raise SpecError(
                f"{'.'.join(fact.key[:depth])} in the cluster file is no table",
                found=f"{name} = {table!r}; {fact.source} gives {fact.name} = {fact.value!r}",
                remedy=f"remove {name}, or write it as the table [{'.'.join(fact.key[:depth])}]",
            )
    item = tomlkit.item(fact.value)
    item.comment(fact.source)
    table[fact.key[-1]] = item
