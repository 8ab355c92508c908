"""The command sinfo."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from hpc_kit.errors import page
from pocketslurm import listing_support
from pocketslurm.commands.sinfo_rows import find_rows
from pocketslurm.errors import Problem
from pocketslurm.getopt import NONE, REQUIRED, Table
from pocketslurm.installation import load_module
from pocketslurm.listings import columns
from pocketslurm.listings.sinfo_columns import BY_LETTER, BY_NAME, EVERYTHING, Field, Row
from pocketslurm.queue import controller_start
from pocketslurm.queue.state import State
from pocketslurm.settings import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

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
REASONS_LONG = "%20E %12U %19H %6t %N"


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    given, words = OPTIONS.parse(argv)
    options = {name: value or "" for name, value in given}
    if words:
        raise Problem(f"sinfo: error: Unrecognized option: {words[0]}")
    if "version" in options:
        print(f"slurm {VERSION}")
        return 0
    if options.keys() & {"help", "usage"}:
        print(f"Usage: sinfo [OPTIONS]\nOptions: those of Slurm 22.05's sinfo; see {page('embedded-slurm.md')}")
        return 0
    if not options.get("iterate", "0").isdecimal():
        raise Problem(f"sinfo: error: Error: invalid entry for --iterate={options['iterate']}")
    state = State.open(environ)
    listing_support.check_clusters("sinfo", options.get("clusters", "all"), state.settings)
    if "json" in options:
        controller_start.put_in_order(state)
        load_module("listings.sinfo_json").print_nodes(state)
        return 0
    if "reservation" in options:
        print("No reservations in the system")
        return 0
    controller_start.put_in_order(state)
    while True:
        _print(state, options, environ)
        if "iterate" not in options:
            return 0
        state.close()
        print(flush=True)
        time.sleep(max(1, int(options["iterate"])))


def _format(options: dict[str, str], environ: Mapping[str, str]) -> tuple[columns.Format, Mapping[str, Field]]:
    if options.get("Format", "").lower() == "all":
        return columns.parse_percent(EVERYTHING, EVERYTHING), BY_LETTER
    if "Format" in options:
        return columns.parse_long(options["Format"]), BY_NAME
    long = "long" in options
    fallback = environ.get("SINFO_FORMAT", DEFAULT)
    if "summarize" in options:
        fallback = SUMMARY
    elif "list-reasons" in options:
        fallback = REASONS_LONG if long else REASONS
    elif "Node" in options:
        fallback = BY_NODE_LONG if long else BY_NODE
    elif long:
        fallback = LONG
    return columns.parse_percent(options.get("format") or fallback, EVERYTHING), BY_LETTER


def _print(state: State, options: dict[str, str], environ: Mapping[str, str]) -> None:
    layout, fields = _format(options, environ)
    layout, unknown = layout.known(fields)
    # The other columns are shown all the same, so that a format of another release's serves.
    for key in unknown:
        what = "sinfo: error: Invalid job" if layout.long else "Invalid node"
        sys.stderr.write(f"{what} format specification: {key}\n")
    rows = find_rows(state, options, [fields[column.key] for column in layout.columns])
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
