"""The accounting database as Slurm sets it up, with nothing entered yet: what sacctmgr and sshare show of it.

Without root as a user, whom Slurm enters: a program that finds accounts of its user takes all others for wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Row = dict[str, str]

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
        """The column that a format means: its name, or the beginning of one."""
        word = typed.lower()
        exact = self.names.get(word)
        return exact or next((self.names[name] for name in self.names if len(word) > 2 and name.startswith(word)), None)


def _entity(key: str, shown: str, others: str = "") -> Entity:
    """From `Head:width=other,names`, where the head's spaces are underlined."""
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
    "account": _entity("Account", "Account:10=name Descr:20=description Org:20=organization", "Coord_Accounts:20"),
    "association": _entity("User", _ASSOCIATION, f"ID:6 Par_Name:10=parentname{_OTHERS}"),
    "cluster": _entity(
        "Cluster",
        "Cluster:10=name ControlHost:15 ControlPort:12 RPC:5 Share:9=fairshare GrpJobs:7 GrpTRES:13 GrpSubmit:9"
        " MaxJobs:7 MaxTRES:13 MaxSubmit:9 MaxWall:11 QOS:20 Def_QOS:9=defaultqos",
    ),
    "qos": _entity(
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
    "tres": _entity("Type", "Type:8 Name:15 ID:6"),
    "user": _entity(
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


def records(entity: str, cluster: str, host: str) -> Sequence[Row]:
    """The records of one kind."""
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
