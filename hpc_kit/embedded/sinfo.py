"""The command sinfo."""

from __future__ import annotations

import sys
import time
from itertools import groupby
from typing import TYPE_CHECKING

from hpc_kit.embedded import columns, listing_support, nodes, start
from hpc_kit.embedded.getopt import NONE, REQUIRED, Problem, Table, Usage
from hpc_kit.embedded.node_view import SHORT, NodeView, node_views
from hpc_kit.embedded.settings import VERSION
from hpc_kit.embedded.sinfo_fields import BY_LETTER, BY_NAME, Field, Row
from hpc_kit.embedded.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hpc_kit.embedded.settings import Partition

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


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    try:
        given, words = OPTIONS.parse(argv)
        return _sinfo({name: value or "" for name, value in given}, words, environ)
    except Usage as error:
        sys.stderr.write(f'sinfo: {error}\nTry "sinfo --help" for more information\n')
    except Problem as error:
        sys.stderr.write(f"{error}\n")
    return 1


def _sinfo(options: dict[str, str], words: list[str], environ: Mapping[str, str]) -> int:
    if words:
        raise Problem(f"sinfo: error: Unrecognized option: {words[0]}")
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
