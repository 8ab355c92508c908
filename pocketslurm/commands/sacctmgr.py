"""The command sacctmgr: it shows a database in which nothing has been entered, and enters nothing."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pocketslurm.commands.accounts import ENTITIES, USERS_ASSOCIATIONS, records
from pocketslurm.getopt import NONE, Table
from pocketslurm.listings.tables import print_table
from pocketslurm.settings import VERSION, load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pocketslurm.commands.accounts import Entity

OPTIONS = Table(
    ("associations", "s", NONE), ("immediate", "i", NONE), ("noheader", "n", NONE), ("oneliner", "o", NONE),
    ("parsable", "p", NONE), ("parsable2", "P", NONE), ("quiet", "Q", NONE), ("readonly", "r", NONE),
    ("help", "h", NONE), ("usage", "", NONE), ("verbose", "v", NONE), ("version", "V", NONE),
)  # fmt: skip

_CHANGES = {"add": "adding", "create": "adding", "modify": "", "update": "", "delete": "", "remove": "", "load": ""}
_FLAGS = {"where", "tree", "withassoc", "withassocs", "withcoordinator", "withcoord", "withdeleted", "wopinfo", "wopi",
          "wolimits", "wopl", "onlydefaults"}  # fmt: skip
_CONDITIONS = {
    "user": "User", "account": "Account", "cluster": "Cluster", "name": "", "qos": "QOS", "id": "ID", "type": "Type",
    "partition": "Partition", "defaultaccount": "Def Acct", "adminlevel": "Admin",
}  # fmt: skip
_USAGE = "sacctmgr [<OPTION>] show|list account|association|cluster|qos|tres|user [NAME=VALUE ...] [format=FIELDS]"
_DENIED = "Access/permission denied"


class _Wrong(Exception):
    """What sacctmgr says and ends with."""


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    given, words = OPTIONS.parse(argv)
    flags = {name for name, _ in given}
    if flags & {"version", "help", "usage"}:
        print(f"slurm {VERSION}" if "version" in flags else _USAGE)
        return 0
    try:
        entity = _entity(words)
        columns, wanted = _query(entity, words[2:], associations="associations" in flags)
    except _Wrong as wrong:
        print(wrong, file=sys.stderr)
        return 1
    rows = records(entity, load(environ).cluster, os.uname().nodename)
    found = [row for row in rows if all(row.get(name, "") in values for name, values in wanted.items())]
    print_table(columns, found, flags)
    return 0


def _entity(words: Sequence[str]) -> str:
    """What is to be shown."""
    verb = words[0].lower() if words else ""
    kind = words[1].lower() if len(words) > 1 else ""
    if verb in _CHANGES:
        raise _Wrong(_denied(verb, kind))
    if verb not in {"show", "list"}:
        raise _Wrong(f"invalid keyword: {verb}" if verb else _USAGE)
    name = next((name for name in ENTITIES if kind and _same(kind, name)), None)
    if name is None:
        raise _Wrong(
            "No valid entity in list command\n"
            'Input line must include "Account", "Association", "Cluster", "QOS", "TRES", or "User"'
        )  # fmt: skip
    return name


def _same(typed: str, name: str) -> bool:
    """An entity by its name, more than one of them, or its beginning."""
    return f"{name}s".startswith(typed) or typed in {f"{name}es", f"{name}"}


def _denied(verb: str, kind: str) -> str:
    """As a user is told who is no administrator."""
    if _CHANGES[verb]:
        return f" Problem adding {kind.rstrip('s') or 'record'}s: {_DENIED}"
    return f"sacctmgr: error: Your user doesn't have privilege to perform this action\n Error with request: {_DENIED}"


def _query(
    name: str, words: Sequence[str], *, associations: bool
) -> tuple[Sequence[tuple[str, int]], Mapping[str, Sequence[str]]]:
    """The columns with their widths, and the values that records must have."""
    entity = ENTITIES[name]
    wanted: dict[str, Sequence[str]] = {}
    columns = ""
    for word in words:
        typed, equals, value = word.partition("=")
        key = typed.lower()
        if equals and key and "format".startswith(key):
            columns = f"{columns},{value}"
        elif equals:
            column = next((_CONDITIONS[each] for each in _CONDITIONS if key in {each, f"{each}s"}), None)
            if column is None:
                raise _Wrong(f" Unknown condition: {word}\n Use keyword 'set' to modify value")
            wanted[column or entity.key] = value.split(",")
        elif key in _FLAGS:
            associations = associations or key.startswith("withassoc")
        else:
            wanted[entity.key] = word.split(",")
    shown = USERS_ASSOCIATIONS if name == "user" and associations else entity.shown
    found = [_column(entity, each) for each in columns.split(",") if each]
    return found or [(head, entity.known[head]) for head in shown], wanted


def _column(entity: Entity, text: str) -> tuple[str, int]:
    """A field of a format, `account%30`."""
    typed, _, width = text.partition("%")
    head = entity.column(typed)
    if head is None:
        raise _Wrong(f"Unknown field '{typed}'")
    return head, int(width) if width.lstrip("-").isdecimal() else entity.known[head]
