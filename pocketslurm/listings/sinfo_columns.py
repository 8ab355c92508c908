"""The columns of sinfo: those of -o by letter, those of -O by name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.units import UNLIMITED
from pocketslurm.listings.views import SHORT, NodeView, format_duration
from pocketslurm.settings import SLURM_VERSION, Partition, Settings

if TYPE_CHECKING:
    from collections.abc import Callable


class NodeGroup(NamedTuple):
    """A line: nodes of a partition that are in the same state."""

    settings: Settings
    partition: Partition
    views: list[NodeView]

    @property
    def first(self) -> NodeView:
        """The first node, for values that all nodes share; for a partition without nodes, a placeholder."""
        return self.views[0] if self.views else NodeView("", 0, 0, 0, 0, missing=True)

    def count(self, *states: str) -> int:
        """Return the number of nodes in one of these states."""
        return sum(view.state in states for view in self.views)


class SinfoColumn(NamedTuple):
    """A column; `splits`: nodes that differ in it stand on lines of their own."""

    heading: str
    letter: str
    names: str
    value: Callable[[NodeGroup], str]
    splits: bool = False


def _default_mark(row: NodeGroup) -> str:
    return f"{row.partition.name}{'*' if row.partition == row.settings.partitions[0] else ''}"


def _counts(row: NodeGroup) -> str:
    busy = row.count("allocated", "mixed")
    return f"{busy}/{row.count('idle')}/0/{len(row.views)}"


def _cpus(row: NodeGroup) -> str:
    used, total = sum(view.cpus_used for view in row.views), sum(view.cpus for view in row.views)
    return f"{used}/{total - used}/0/{total}"


def _limit(seconds: int | None) -> str:
    if seconds is None:
        return "n/a"
    return "infinite" if seconds == UNLIMITED else format_duration(seconds)


FIELDS = (
    SinfoColumn("PARTITION", "P", "partition", _default_mark, splits=True),
    SinfoColumn("PARTITION", "R", "partitionname", lambda row: row.partition.name, splits=True),
    SinfoColumn("AVAIL", "a", "available", lambda _: "up"),
    SinfoColumn("TIMELIMIT", "l", "time", lambda row: _limit(row.partition.max_time), splits=True),
    SinfoColumn("DEFAULTTIME", "L", "defaulttime", lambda row: _limit(row.partition.default_time), splits=True),
    SinfoColumn("NODES", "D", "nodes", lambda row: str(len(row.views))),
    SinfoColumn("STATE", "t", "statecompact", lambda row: SHORT[row.first.state], splits=True),
    SinfoColumn("STATE", "T", "statelong", lambda row: row.first.state, splits=True),
    SinfoColumn("NODELIST", "N", "nodelist", lambda row: fold(view.name for view in row.views)),
    SinfoColumn("HOSTNAMES", "n", "nodehost", lambda row: row.first.name, splits=True),
    SinfoColumn("NODE_ADDR", "o", "nodeaddr", lambda row: row.first.name, splits=True),
    SinfoColumn("NODES(A/I)", "A", "nodeai", lambda row: "/".join(_counts(row).split("/")[:2])),
    SinfoColumn("NODES(A/I/O/T)", "F", "nodeaiot", _counts),
    SinfoColumn("CPUS(A/I/O/T)", "C", "cpusstate", _cpus),
    SinfoColumn("CPUS", "c", "cpus", lambda row: str(row.settings.cpus if row.views else 0)),
    SinfoColumn("MEMORY", "m", "memory", lambda row: str(row.settings.memory_of_node if row.views else 0)),
    SinfoColumn("ALLOCMEM", "", "allocmem", lambda row: str(row.first.mem_used), splits=True),
    SinfoColumn("GRES", "G", "gres", lambda row: row.settings.gres),
    SinfoColumn("GRES_USED", "", "gresused", lambda row: f"gpu:{row.first.gpus_used}", splits=True),
    SinfoColumn("TMP_DISK", "d", "disk", lambda _: "0"),
    SinfoColumn("WEIGHT", "w", "weight", lambda _: "1"),
    SinfoColumn("S:C:T", "z", "socketcorethread", lambda row: f"{row.settings.cpus}:1:1"),
    SinfoColumn("SOCKETS", "X", "sockets", lambda row: str(row.settings.cpus)),
    SinfoColumn("CORES", "Y", "cores", lambda _: "1"),
    SinfoColumn("THREADS", "Z", "threads", lambda _: "1"),
    SinfoColumn("AVAIL_FEATURES", "f", "features", lambda _: "(null)"),
    SinfoColumn("ACTIVE_FEATURES", "b", "features_act", lambda _: "(null)"),
    SinfoColumn("JOB_SIZE", "s", "size", lambda _: "1-infinite"),
    SinfoColumn("ROOT", "r", "root", lambda _: "no"),
    SinfoColumn("OVERSUBSCRIBE", "h", "oversubscribe", lambda _: "NO"),
    SinfoColumn("GROUPS", "g", "groups", lambda _: "all"),
    SinfoColumn("PREEMPT_MODE", "M", "preemptmode", lambda _: "OFF"),
    SinfoColumn("PRIO_TIER", "p", "prioritytier", lambda _: "1"),
    SinfoColumn("MAX_CPUS_PER_NODE", "B", "maxcpuspernode", lambda _: "UNLIMITED"),
    SinfoColumn("REASON", "E", "reason", lambda _: "none"),
    SinfoColumn("USER", "u", "user", lambda _: "Unknown"),
    SinfoColumn("USER", "U", "userlong", lambda _: "Unknown"),
    SinfoColumn("TIMESTAMP", "H", "timestamp", lambda _: "Unknown"),
    SinfoColumn("VERSION", "v", "version", lambda _: SLURM_VERSION),
    SinfoColumn("CLUSTER", "V", "cluster", lambda _: "N/A"),
    SinfoColumn("CPU_LOAD", "O", "cpusload", lambda _: f"{os.getloadavg()[0]:.2f}"),
    SinfoColumn(
        "FREE_MEM", "e", "freemem", lambda _: str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 2**20)
    ),
    SinfoColumn("PRIO_JOB_FACTOR", "I", "priorityjobfactor", lambda _: "1"),
    SinfoColumn("ALLOCNODES", "S", "allocnodes", lambda _: "all"),
    SinfoColumn("STATECOMPLETE", "", "statecomplete", lambda row: row.first.state, splits=True),
    SinfoColumn("COMMENT", "", "comment", lambda _: "(null)"),
    SinfoColumn("EXTRA", "", "extra", lambda _: "(null)"),
    SinfoColumn("PORT", "", "port", lambda _: "6818"),
)

BY_LETTER = {field.letter: field for field in FIELDS if field.letter}
EVERYTHING = "|".join(f"%{letter}{' ' if letter.isupper() else ''}" for letter in sorted(BY_LETTER, key=str.swapcase))
BY_NAME = {name: field for field in FIELDS for name in field.names.split()}
