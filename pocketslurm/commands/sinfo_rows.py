"""The lines of sinfo: which nodes stand together on one, and in which order the lines come."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pocketslurm.errors import Problem
from pocketslurm.listings.columns import parse_sort
from pocketslurm.listings.node_view import NODE_STATES, NodeView, node_views
from pocketslurm.listings.sinfo_columns import BY_LETTER, Field, Row
from pocketslurm.queue import nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pocketslurm.queue.state import State

_ORDER = ("completing", "draining", "drained", "mixed", "allocated", "idle", "down", "n/a")


def find_rows(state: State, options: Mapping[str, str], shown: Sequence[Field]) -> list[Row]:
    """The lines for these columns: nodes, and partitions, stand together unless one of the columns tells them apart.

    Raises:
        Problem: The options name a state or an order that there is not.
    """
    views = {view.name: view for view in _chosen(node_views(state), options)}
    keys = [field.value for field in shown if field.splits]
    found: dict[tuple[str, ...], Row] = {}
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


def _single(state: State, options: Mapping[str, str], views: Mapping[str, NodeView]) -> Iterable[Row]:
    """A line for each node of each partition, and one for a partition of whose nodes none is to be shown."""
    for each in nodes.partitions(state.settings, options.get("partition")):
        own = [views[name] for name in nodes.of_partition(state.settings, each) if name in views]
        yield from (Row(state.settings, each, [view]) for view in own)
        if not own and "Node" not in options and "list-reasons" not in options:
            yield Row(state.settings, each, [])


def _sorted(rows: list[Row], options: Mapping[str, str], order: Sequence[str]) -> list[Row]:
    """Partitions as configured and busy nodes first, or nodes by name, unless --sort says otherwise."""
    keys: dict[str, Callable[[Row], object]] = {
        "#": lambda row: [*(each.name for each in row.settings.partitions), row.partition.name].index(
            row.partition.name
        ),
        "t": lambda row: -_ORDER.index(row.first.state),
        "T": lambda row: -_ORDER.index(row.first.state),
        "N": lambda row: order.index(row.first.name) if row.views else -1,
    }
    wanted = options.get("sort") or ("N" if "Node" in options else "#P,-t")
    for letter, backwards in reversed(parse_sort(wanted.replace("#P", "#").replace("#N", "N"))):
        if letter not in keys and letter not in BY_LETTER:
            raise Problem(f"sinfo: error: Invalid sort specification: {letter}")
        rows.sort(key=keys.get(letter) or _by(BY_LETTER[letter]), reverse=backwards)  # type: ignore[arg-type]
    return rows


def _by(field: Field) -> Callable[[Row], object]:
    return lambda row: _natural(field.value(row))


def _natural(text: str) -> list[tuple[int, str]]:
    """Numbers in a text are compared as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", text)]


def _chosen(views: list[NodeView], options: Mapping[str, str]) -> list[NodeView]:
    if "nodes" in options:
        names = nodes.expand_names(options["nodes"])
        views = [view for view in views if view.name in names]
    if "states" in options:
        wanted = [_state(word) for word in options["states"].split(",")]
        views = [view for view in views if any(view.state in states for states in wanted)]
    if "list-reasons" in options:
        views = [view for view in views if view.out]
    return [] if "dead" in options else views  # all of them respond


def _state(word: str) -> tuple[str, ...]:
    """The states that a word of --states means; the beginning of a name will do, and nothing is no state at all."""
    typed = word.lower()
    if typed == "all":
        return _ORDER
    typed = {"drng": "draining", "resv": "reserved", "planned": "future"}.get(typed, typed)
    exact = [name for name in NODE_STATES if name == typed]
    found = exact or [name for name in NODE_STATES if name.startswith(typed)]
    if not typed:
        return ()
    if not found:
        known = ",".join(NODE_STATES)
        raise Problem(f'sinfo: error: Bad state string: "{word}"\nsinfo: error: valid states: {known},unknown')
    return ("drained", "draining") if found[0] == "drain" else (found[0],)
