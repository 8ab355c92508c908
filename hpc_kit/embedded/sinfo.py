"""The command sinfo."""

from __future__ import annotations

import sys
import time
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.embedded import columns, listing_support, nodes, start
from hpc_kit.embedded.getopt import NONE, REQUIRED, Table, Usage
from hpc_kit.embedded.node_view import SHORT, NodeView, node_views
from hpc_kit.embedded.settings import VERSION, Partition, Settings
from hpc_kit.embedded.state import State
from hpc_kit.embedded.view import clock, moment
from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.units import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

OPTIONS = Table(
    ("all", "a", NONE), ("clusters", "M", REQUIRED, "cluster"), ("dead", "d", NONE), ("exact", "e", NONE),
    ("federation", "", NONE), ("future", "F", NONE), ("format", "o", REQUIRED), ("Format", "O", REQUIRED),
    ("help", "", NONE), ("hide", "", NONE), ("iterate", "i", REQUIRED), ("json", "", NONE), ("list-reasons", "R", NONE),
    ("local", "", NONE), ("long", "l", NONE), ("noconvert", "", NONE), ("Node", "N", NONE), ("nodes", "n", REQUIRED),
    ("noheader", "h", NONE), ("partition", "p", REQUIRED), ("reservation", "T", NONE), ("responding", "r", NONE),
    ("sort", "S", REQUIRED), ("states", "t", REQUIRED), ("summarize", "s", NONE), ("usage", "", NONE),
    ("verbose", "v", NONE), ("version", "V", NONE),
    notes=listing_support.SINFO,
)  # fmt: skip

DEFAULT = "%#P %.5a %.10l %.6D %.6t %N"
LONG = "%#P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
SUMMARY = "%#P %.5a %.10l %.16F %N"
BY_NODE = "%#N %.6D %.9P %6t"
BY_NODE_LONG = "%#N %.6D %.9P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
REASONS = "%20E %9u %19H %N"


class Row(NamedTuple):
    """A line: nodes of a partition that are in the same state."""

    settings: Settings
    partition: Partition
    views: list[NodeView]

    @property
    def first(self) -> NodeView:
        """One of them, for what they share."""
        return self.views[0]

    def count(self, *states: str) -> int:
        """How many are in one of these states."""
        return sum(view.state in states for view in self.views)


class Problem(Exception):
    """An error that is printed as it stands."""


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    try:
        given, words = OPTIONS.parse(argv)
        options = {name: value or "" for name, value in given}
        if words:
            raise Problem(f"sinfo: error: Unrecognized option: {words[0]}")
        return _sinfo(options, environ)
    except Usage as error:
        sys.stderr.write(f'sinfo: {error}\nTry "sinfo --help" for more information\n')
    except Problem as error:
        sys.stderr.write(f"{error}\n")
    return 1


def _sinfo(options: dict[str, str], environ: Mapping[str, str]) -> int:
    if "version" in options:
        print(f"slurm {VERSION}")
        return 0
    if options.keys() & {"help", "usage"}:
        print("Usage: sinfo [OPTIONS]\nOptions: those of Slurm 22.05's sinfo; see docs/embedded-slurm.md")
        return 0
    state = State.open(environ)
    if not state.is_cluster(options.get("clusters", "all")):
        raise Problem(f"sinfo: error: No cluster '{options['clusters']}' known by database.")
    start.put_in_order(state)
    while True:
        _print(state, options, environ)
        if "iterate" not in options:
            return 0
        state.close()
        print(flush=True)
        time.sleep(max(1, int(options["iterate"])))


def _format(options: dict[str, str], environ: Mapping[str, str]) -> tuple[columns.Format, Mapping[str, Field]]:
    if "Format" in options:
        return columns.parse_long(options["Format"]), BY_NAME
    long = "long" in options
    fallback = environ.get("SINFO_FORMAT", DEFAULT)
    if "summarize" in options:
        fallback = SUMMARY
    elif "list-reasons" in options:
        fallback = REASONS
    elif "Node" in options:
        fallback = BY_NODE_LONG if long else BY_NODE
    elif long:
        fallback = LONG
    return columns.parse_percent(options.get("format") or fallback), BY_LETTER


def _print(state: State, options: dict[str, str], environ: Mapping[str, str]) -> None:
    layout, fields = _format(options, environ)
    for column in layout.columns:
        if column.key not in fields:
            raise Problem(f"sinfo: error: Invalid node format specification: {column.key}")
    rows = list(_rows(state, options, layout, fields))
    if "Node" in options:
        order = nodes.names(state.settings)
        rows.sort(key=lambda row: order.index(row.first.name))
    shown = [(_fit_to(column, fields[column.key], rows), fields[column.key]) for column in layout.columns]
    if "noheader" not in options:
        if "long" in options:
            print(time.strftime("%a %b %d %H:%M:%S %Y"))
        print(layout.prefix + "".join(column.fit(field.heading) for column, field in shown))
    for row in rows:
        print(layout.prefix + "".join(column.fit(field.value(row)) for column, field in shown))


def _fit_to(column: columns.Column, field: Field, rows: list[Row]) -> columns.Column:
    """A column of the default formats is as wide as its longest value."""
    if not column.fitting:
        return column
    return column._replace(width=max([9, *(len(field.value(row)) for row in rows)]))


def _rows(state: State, options: dict[str, str], layout: columns.Format, fields: Mapping[str, Field]) -> Iterable[Row]:
    settings = state.settings
    views = {view.name: view for view in _chosen(node_views(state), options)}
    for each in settings.partitions:
        if "partition" in options and each.name not in options["partition"].split(","):
            continue
        own = [views[name] for name in nodes.of_partition(settings, each) if name in views]
        if "Node" in options:
            yield from (Row(settings, each, [view]) for view in own)
            continue
        keys = [fields[column.key].value for column in layout.columns if fields[column.key].splits]

        def same(view: NodeView, each: Partition = each, keys: list[Callable[[Row], str]] = keys) -> tuple[str, ...]:
            return tuple(key(Row(settings, each, [view])) for key in keys)

        for _, group in groupby(sorted(own, key=lambda view: (_ORDER.index(view.state), same(view))), key=same):
            yield Row(settings, each, sorted(group, key=own.index))


_ORDER = ("completing", "draining", "drained", "mixed", "allocated", "idle", "down")


def _chosen(views: list[NodeView], options: dict[str, str]) -> list[NodeView]:
    if "nodes" in options:
        names = nodes.expand_names(options["nodes"])
        views = [view for view in views if view.name in names]
    if "states" in options:
        wanted = {word.lower().removesuffix("s") for word in options["states"].split(",")}
        views = [view for view in views if {view.state, SHORT[view.state], view.state[:5]} & wanted or "all" in wanted]
    if options.keys() & {"list-reasons", "dead"}:
        views = [view for view in views if view.out]
    return views


class Field(NamedTuple):
    """A column; `splits`: nodes that differ in it stand on lines of their own."""

    heading: str
    letter: str
    names: str
    value: Callable[[Row], str]
    splits: bool = False


def _default_mark(row: Row) -> str:
    return f"{row.partition.name}{'*' if row.partition == row.settings.partitions[0] else ''}"


def _counts(row: Row) -> str:
    busy = row.count("allocated", "mixed", "completing")
    other = row.count("drained", "draining", "down")
    return f"{busy}/{row.count('idle')}/{other}/{len(row.views)}"


def _cpus(row: Row) -> str:
    used, total = sum(view.cpus_used for view in row.views), sum(view.cpus for view in row.views)
    out = sum(view.cpus - view.cpus_used for view in row.views if view.out)
    return f"{used}/{total - used - out}/{out}/{total}"


def _limit(seconds: int | None) -> str:
    return "n/a" if seconds is None else "infinite" if seconds == UNLIMITED else clock(seconds)


def _gres(row: Row) -> str:
    kind = f":{row.settings.gpu_type}" if row.settings.gpu_type else ""
    return f"gpu{kind}:{row.settings.gpus}" if row.settings.gpus else "(null)"


FIELDS = (
    Field("PARTITION", "P", "partition", _default_mark),
    Field("PARTITION", "R", "partitionname", lambda row: row.partition.name),
    Field("AVAIL", "a", "available", lambda _: "up"),
    Field("TIMELIMIT", "l", "time", lambda row: _limit(row.partition.max_time)),
    Field("DEFAULTTIME", "L", "defaulttime", lambda row: _limit(row.partition.default_time)),
    Field("NODES", "D", "nodes", lambda row: str(len(row.views))),
    Field("STATE", "t", "statecompact", lambda row: SHORT[row.first.state], splits=True),
    Field("STATE", "T", "statelong", lambda row: row.first.state, splits=True),
    Field("NODELIST", "N", "nodelist", lambda row: fold(view.name for view in row.views)),
    Field("HOSTNAMES", "n", "nodehost", lambda row: row.first.name, splits=True),
    Field("NODE_ADDR", "o", "nodeaddr", lambda row: row.first.name, splits=True),
    Field("NODES(A/I)", "A", "nodeai", lambda row: "/".join(_counts(row).split("/")[:2])),
    Field("NODES(A/I/O/T)", "F", "nodeaiot", _counts),
    Field("CPUS(A/I/O/T)", "C", "cpusstate", _cpus),
    Field("CPUS", "c", "cpus", lambda row: str(row.settings.cpus)),
    Field("MEMORY", "m", "memory", lambda row: str(row.settings.memory_of_node)),
    Field("ALLOCMEM", "", "allocmem", lambda row: str(row.first.mem_used), splits=True),
    Field("GRES", "G", "gres", _gres),
    Field("GRES_USED", "", "gresused", lambda row: f"gpu:{row.first.gpus_used}", splits=True),
    Field("TMP_DISK", "d", "disk", lambda _: "0"),
    Field("WEIGHT", "w", "weight", lambda _: "1"),
    Field("S:C:T", "z", "socketcorethread", lambda row: f"{row.settings.cpus}:1:1"),
    Field("SOCKETS", "X", "sockets", lambda row: str(row.settings.cpus)),
    Field("CORES", "Y", "cores", lambda _: "1"),
    Field("THREADS", "Z", "threads", lambda _: "1"),
    Field("AVAIL_FEATURES", "f", "features", lambda _: "(null)"),
    Field("ACTIVE_FEATURES", "b", "features_act", lambda _: "(null)"),
    Field("JOB_SIZE", "s", "size", lambda _: "1-infinite"),
    Field("ROOT", "r", "root", lambda _: "no"),
    Field("OVERSUBSCRIBE", "h", "oversubscribe", lambda _: "NO"),
    Field("GROUPS", "g", "groups", lambda _: "all"),
    Field("PREEMPT_MODE", "M", "preemptmode", lambda _: "OFF"),
    Field("PRIO_TIER", "p", "prioritytier", lambda _: "1"),
    Field("MAX_CPUS_PER_NODE", "B", "maxcpuspernode", lambda _: "UNLIMITED"),
    Field("REASON", "E", "reason", lambda row: row.first.out.reason if row.first.out else "none", splits=True),
    Field("USER", "u", "user", lambda row: row.first.out.user if row.first.out else "Unknown", splits=True),
    Field("USER", "U", "", lambda row: row.first.out.user if row.first.out else "Unknown", splits=True),
    Field(
        "TIMESTAMP",
        "H",
        "timestamp",
        lambda row: moment(row.first.out.since if row.first.out else 0, "Unknown"),
        splits=True,
    ),
    Field("VERSION", "v", "version", lambda _: VERSION),
    Field("CLUSTER", "V", "cluster", lambda row: row.settings.cluster),
)

BY_LETTER = {field.letter: field for field in FIELDS if field.letter}
BY_NAME = {name: field for field in FIELDS for name in field.names.split()}
