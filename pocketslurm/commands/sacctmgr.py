"""The command sacctmgr: shows an empty accounting database and refuses changes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.getopt import NONE, Table
from pocketslurm.listings.columns import print_table
from pocketslurm.settings import SLURM_VERSION, load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
    """A message with which sacctmgr fails."""


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    given, words = OPTIONS.parse(argv)
    flags = {name for name, _ in given}
    if flags & {"version", "help", "usage"}:
        print(f"slurm {SLURM_VERSION}" if "version" in flags else _USAGE)
        return 0
    try:
        entity = _entity(words)
        columns, wanted = _query(entity, words[2:], associations="associations" in flags)
    except _Wrong as wrong:
        print(wrong, file=sys.stderr)
        return 1
    rows = default_records(entity, load_settings(environ).cluster, os.uname().nodename)
    found = [row for row in rows if all(row.get(name, "") in values for name, values in wanted.items())]
    print_table(columns, found, flags)
    return 0


def _entity(words: Sequence[str]) -> str:
    """Return the kind of record to show."""
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
    """Return whether a word means an entity: its name, its plural, or a beginning of it."""
    return f"{name}s".startswith(typed) or typed in {f"{name}es", f"{name}"}


def _denied(verb: str, kind: str) -> str:
    """Return the refusal for a user without administrator rights."""
    if _CHANGES[verb]:
        return f" Problem adding {kind.rstrip('s') or 'record'}s: {_DENIED}"
    return f"sacctmgr: error: Your user doesn't have privilege to perform this action\n Error with request: {_DENIED}"


def _query(
    name: str, words: Sequence[str], *, associations: bool
) -> tuple[Sequence[tuple[str, int]], Mapping[str, Sequence[str]]]:
    """Return the columns with their widths, and the values that records must have."""
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
    """Parse a field of a format: `account%30`."""
    typed, _, width = text.partition("%")
    head = entity.column(typed)
    if head is None:
        raise _Wrong(f"Unknown field '{typed}'")
    return head, int(width) if width.lstrip("-").isdecimal() else entity.known[head]


AccountRecord = dict[str, str]

_ASSOCIATION = (
    "Cluster:10 Account:10 User:10 Partition:10 Share:9=fairshare Priority:10 GrpJobs:7 GrpTRES:13"
    " GrpSubmit:9=grpsubmitjobs GrpWall:11 GrpTRESMins:13 MaxJobs:7 MaxTRES:13=maxtresperjob MaxTRESPerNode:14"
    " MaxSubmit:9=maxsubmitjobs MaxWall:11=maxwalldurationperjob MaxTRESMins:13=maxtresminsperjob QOS:20"
    " Def_QOS:9=defaultqos GrpTRESRunMin:13=grptresrunmins"
)
_OTHERS = (
    " MaxSubmitPU:11=maxsubmitjobsperuser MaxJobsPU:9=maxjobsperuser MaxNodes:8=maxnodesperjob MaxCPUs:8=maxcpusperjob"
    " MaxCPUMins:11 GrpCPUs:8 GrpMem:7 GrpNodes:8"
)


class Entity(NamedTuple):
    """One kind of record.

    Attributes:
        shown: Its columns without a format; `known` are those and others, with their widths, by the name in the head.
        names: What a format may call a column, in lower case.
        key: The column that a bare word asks for.
    """

    shown: tuple[str, ...]
    known: Mapping[str, int]
    names: Mapping[str, str]
    key: str

    def column(self, typed: str) -> str | None:
        """Return the column that a format names by its name or a beginning of it."""
        word = typed.lower()
        exact = self.names.get(word)
        return exact or next((self.names[name] for name in self.names if len(word) > 2 and name.startswith(word)), None)


def _read_entity(key: str, shown: str, others: str = "") -> Entity:
    """Parse `Head:width=other,names`, in which underscores replace the spaces of the head."""
    known: dict[str, int] = {}
    names: dict[str, str] = {}
    for text in f"{shown} {others}".split():
        column, _, more = text.partition("=")
        head, _, width = column.partition(":")
        known[head.replace("_", " ")] = int(width)
        for name in (head.replace("_", ""), *filter(None, more.split(","))):
            names[name.lower()] = head.replace("_", " ")
    return Entity(tuple(known)[: len(shown.split())], known, names, key)


ENTITIES = {
    "account": _read_entity("Account", "Account:10=name Descr:20=description Org:20=organization", "Coord_Accounts:20"),
    "association": _read_entity("User", _ASSOCIATION, f"ID:6 Par_Name:10=parentname{_OTHERS}"),
    "cluster": _read_entity(
        "Cluster",
        "Cluster:10=name ControlHost:15 ControlPort:12 RPC:5 Share:9=fairshare GrpJobs:7 GrpTRES:13 GrpSubmit:9"
        " MaxJobs:7 MaxTRES:13 MaxSubmit:9 MaxWall:11 QOS:20 Def_QOS:9=defaultqos",
    ),
    "qos": _read_entity(
        "Name",
        "Name:10 Priority:10 GraceTime:10 Preempt:10 PreemptExemptTime:19 PreemptMode:11 Flags:40"
        " UsageThres:10=usagethreshold UsageFactor:11 GrpTRES:13 GrpTRESMins:13 GrpTRESRunMin:13 GrpJobs:7 GrpSubmit:9"
        " GrpWall:11 MaxTRES:13=maxtresperjob MaxTRESPerNode:14 MaxTRESMins:13 MaxWall:11=maxwalldurationperjob"
        " MaxTRESPU:13=maxtresperuser MaxJobsPU:9=maxjobsperuser MaxSubmitPU:11=maxsubmitjobsperuser"
        " MaxTRESPA:13=maxtresperaccount MaxJobsPA:9=maxjobsperaccount MaxSubmitPA:11=maxsubmitjobsperaccount"
        " MinTRES:13=mintresperjob",
        "Descr:20=description ID:6 LimitFactor:11 MaxSubmit:9=maxsubmitjobs MaxJobs:7 MaxCPUsPU:9=maxcpusperuser"
        " GrpCPUs:8",
    ),
    "tres": _read_entity("Type", "Type:8 Name:15 ID:6"),
    "user": _read_entity(
        "User",
        "User:10=name Def_Acct:10=defaultaccount Admin:9=adminlevel",
        "Coord_Accounts:20=coordinators Def_WCKey:10=defaultwckey"
        f" {_ASSOCIATION.replace('User:10 ', '')}{_OTHERS}",
    ),
}  # fmt: skip

USERS_ASSOCIATIONS = (
    "User", "Def Acct", "Admin", "Cluster", "Account", "Partition", "Share", "Priority", "MaxJobs", "MaxNodes",
    "MaxCPUs", "MaxSubmit", "MaxWall", "MaxCPUMins", "QOS", "Def QOS",
)  # fmt: skip
"""The columns of users with their associations."""

_TRES = {"cpu": 1, "mem": 2, "energy": 3, "node": 4, "billing": 5, "fs disk": 6, "vmem": 7, "pages": 8}


def default_records(entity: str, cluster: str, host: str) -> Sequence[AccountRecord]:
    """Return the records of one kind."""
    if entity == "tres":
        return [
            {"Type": kind.partition(" ")[0], "Name": kind.partition(" ")[2], "ID": str(number)}
            for kind, number in _TRES.items()
        ]
    if entity == "user":
        return []
    if entity == "association":
        return [{"Cluster": cluster, "Account": "root", "Share": "1", "QOS": "normal", "ID": "1"}]
    if entity == "account":
        return [{"Account": "root", "Descr": "default root account", "Org": "root"}]
    if entity == "cluster":
        own = {
            "Cluster": cluster,
            "ControlHost": host,
            "ControlPort": "0",
            "RPC": "9728",
            "Share": "1",
            "QOS": "normal",
        }
        return [own]
    return [{"Name": "normal", "Priority": "0", "GraceTime": "00:00:00", "PreemptMode": "cluster",
             "UsageFactor": "1.000000", "Descr": "Normal QOS default", "ID": "1"}]  # fmt: skip
