"""The command sinfo: groups nodes into rows and prints them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from pocketslurm import option_support
from pocketslurm.errors import PlainError
from pocketslurm.listings import columns
from pocketslurm.listings.columns import parse_sort
from pocketslurm.listings.sinfo_columns import BY_LETTER, BY_NAME, EVERYTHING, NodeGroup, SinfoColumn
from pocketslurm.listings.views import NODE_STATES, NodeView, node_views
from pocketslurm.option_support import NONE, REQUIRED, Table
from pocketslurm.queue import controller_start, nodes
from pocketslurm.queue.state import StateDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


OPTIONS = Table(
    ("all", "a", NONE), ("clusters", "M", REQUIRED, "cluster"), ("dead", "d", NONE), ("exact", "e", NONE),
    ("federation", "", NONE), ("future", "F", NONE), ("format", "o", REQUIRED), ("Format", "O", REQUIRED),
    ("help", "", NONE), ("hide", "", NONE), ("iterate", "i", REQUIRED), ("json", "", NONE), ("list-reasons", "R", NONE),
    ("local", "", NONE), ("long", "l", NONE), ("noconvert", "", NONE), ("Node", "N", NONE), ("nodes", "n", REQUIRED),
    ("noheader", "h", NONE), ("partition", "p", REQUIRED), ("reservation", "T", NONE), ("responding", "r", NONE),
    ("sort", "S", REQUIRED), ("states", "t", REQUIRED), ("summarize", "s", NONE), ("usage", "", NONE),
    ("verbose", "v", NONE), ("version", "V", NONE),
    notes=option_support.SINFO,
)  # fmt: skip

DEFAULT = "%#P %.5a %.10l %.6D %.6t %N"
LONG = "%#P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
SUMMARY = "%#P %.5a %.10l %.16F %N"
BY_NODE = "%#N %.6D %.9P %6t"
BY_NODE_LONG = "%#N %.6D %.9P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    parsed, words = OPTIONS.parse(argv)
    options = {name: value or "" for name, value in parsed}
    if words:
        raise PlainError(f"sinfo: error: Unrecognized option: {words[0]}")
    if OPTIONS.print_help("sinfo", options):
        return 0
    state = StateDirectory.open(environ)
    option_support.check_clusters("sinfo", options.get("clusters", "all"), state.settings)
    if "reservation" in options:
        print("No reservations in the system")
        return 0
    controller_start.wait_until_ready(state)
    _print(state, options, environ)
    return 0


def _format(options: dict[str, str], environ: Mapping[str, str]) -> tuple[columns.Format, Mapping[str, SinfoColumn]]:
    if options.get("Format", "").lower() == "all":
        return columns.parse_short_format(EVERYTHING, EVERYTHING), BY_LETTER
    if "Format" in options:
        return columns.parse_long(options["Format"]), BY_NAME
    long = "long" in options
    fallback = environ.get("SINFO_FORMAT", DEFAULT)
    if "summarize" in options:
        fallback = SUMMARY
    elif "Node" in options:
        fallback = BY_NODE_LONG if long else BY_NODE
    elif long:
        fallback = LONG
    return columns.parse_short_format(options.get("format") or fallback, EVERYTHING), BY_LETTER


def _print(state: StateDirectory, options: dict[str, str], environ: Mapping[str, str]) -> None:
    layout, fields = _format(options, environ)
    layout, unknown = layout.without_unknown(fields)
    # Print known columns anyway: a format for another release still works.
    for key in unknown:
        what = "sinfo: error: Invalid job" if layout.long else "Invalid node"
        sys.stderr.write(f"{what} format specification: {key}\n")
    rows = group_nodes(state, options, [fields[column.key] for column in layout.columns])
    shown = [(_fit_to(column, fields[column.key], rows), fields[column.key]) for column in layout.columns]
    if "noheader" not in options:
        if "long" in options:
            print(time.strftime("%a %b %d %H:%M:%S %Y"))
        print(layout.prefix + "".join(column.fit(field.heading) for column, field in shown))
    for row in rows:
        print(layout.prefix + "".join(column.fit(field.value(row)) for column, field in shown))


def _fit_to(column: columns.Column, field: SinfoColumn, rows: list[NodeGroup]) -> columns.Column:
    """Widen a column of the default formats to its longest value."""
    if not column.fitting:
        return column
    return column._replace(width=max([9, *(len(field.value(row)) for row in rows)]))


_ORDER = ("mixed", "allocated", "idle", "n/a")


def group_nodes(state: StateDirectory, options: Mapping[str, str], shown: Sequence[SinfoColumn]) -> list[NodeGroup]:
    """Return the rows for some columns. Nodes and partitions with equal values in all columns share a row.

    Raises:
        PlainError: The options name an unknown state or sort key.
    """
    views = {view.name: view for view in _chosen(node_views(state), options)}
    keys = [field.value for field in shown if field.splits]
    found: dict[tuple[str, ...], NodeGroup] = {}
    for row in _single(state, options, views):
        key = tuple(value(row) for value in keys)
        if "Node" in options:
            key = (row.first.name, row.partition.name, *key)
        known = found.setdefault(key, row)
        more = [view for view in row.views if view not in known.views]
        found[key] = known._replace(views=[*known.views, *more])
    order = nodes.names(state.settings)
    rows = [row._replace(views=sorted(row.views, key=lambda view: order.index(view.name))) for row in found.values()]
    return _sorted(rows, options, order)


def _single(state: StateDirectory, options: Mapping[str, str], views: Mapping[str, NodeView]) -> Iterable[NodeGroup]:
    """Return a row for each node of each partition, and one for each partition without selected nodes."""
    for each in nodes.partitions(state.settings, options.get("partition")):
        own = [views[name] for name in nodes.of_partition(state.settings, each) if name in views]
        yield from (NodeGroup(state.settings, each, [view]) for view in own)
        if not own and "Node" not in options:
            yield NodeGroup(state.settings, each, [])


def _sorted(rows: list[NodeGroup], options: Mapping[str, str], order: Sequence[str]) -> list[NodeGroup]:
    """Sort rows by --sort. The default order is partitions as configured and busy nodes first, or nodes by name."""
    keys: dict[str, Callable[[NodeGroup], object]] = {
        "#": lambda row: [*(each.name for each in row.settings.partitions), row.partition.name].index(
            row.partition.name
        ),
        "t": lambda row: -_ORDER.index(row.first.state),
        "T": lambda row: -_ORDER.index(row.first.state),
        "N": lambda row: order.index(row.first.name) if row.views else -1,
    }
    # `#P` and `#N` mean the order of the configuration. The sort is stable, so the most important key comes last.
    wanted = options.get("sort") or ("N" if "Node" in options else "#P,-t")
    for letter, backwards in reversed(parse_sort(wanted.replace("#P", "#").replace("#N", "N"))):
        if letter not in keys and letter not in BY_LETTER:
            raise PlainError(f"sinfo: error: Invalid sort specification: {letter}")
        rows.sort(key=keys.get(letter) or _by(BY_LETTER[letter]), reverse=backwards)  # type: ignore[arg-type]
    return rows


def _by(field: SinfoColumn) -> Callable[[NodeGroup], object]:
    return lambda row: nodes.natural(field.value(row))


def _chosen(views: list[NodeView], options: Mapping[str, str]) -> list[NodeView]:
    if "nodes" in options:
        names = nodes.expand_names(options["nodes"])
        views = [view for view in views if view.name in names]
    if "states" in options:
        wanted = [_state(word) for word in options["states"].split(",")]
        views = [view for view in views if any(view.state in states for states in wanted)]
    return [] if "dead" in options else views  # all of them respond


def _state(word: str) -> tuple[str, ...]:
    """Return the states that a word of --states means; a beginning of a name is enough."""
    typed = word.lower()
    if typed == "all":
        return _ORDER
    exact = [name for name in NODE_STATES if name == typed]
    found = exact or [name for name in NODE_STATES if name.startswith(typed)]
    if not typed:
        return ()
    if not found:
        known = ",".join(NODE_STATES)
        raise PlainError(f'sinfo: error: Bad state string: "{word}"\nsinfo: error: valid states: {known},unknown')
    return (found[0],)
