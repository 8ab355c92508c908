"""`hpc-kit watch`."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.job_tables import format_jobs, group_jobs, job_json
from hpc_kit.cli.options import CLUSTER_OPTION, RUNS_OPTION, NumberRange, complete_run
from hpc_kit.cli.output import INTERRUPTED
from hpc_kit.cli.run_lookup import open_session_of
from hpc_kit.cli.terminal import PIPE_CLOSED, READER_GONE, clean_text, echo
from hpc_kit.slurm.start_forecast import format_duration

if TYPE_CHECKING:
    from rich.text import Text

    from hpc_kit.runs.follow import ListingUpdate

EMBEDDED_INTERVAL = 1.0


@click.command("watch")
@click.argument("words", nargs=-1, metavar="[JOB|ID]...", shell_complete=complete_run)
@click.option(
    "--interval",
    type=NumberRange(0.2, 86400),
    default=None,
    metavar="SECONDS",
    help="Time between two queries [default: 10; embedded Slurm: 1].",
)
@CLUSTER_OPTION
@RUNS_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object per change and line.")
def command(words: tuple[str, ...], interval: float | None, cluster: str | None, as_json: bool) -> int:
    """Watch jobs until all have ended: those named by id or name, or all your queued jobs.

    A terminal shows a table that is updated in place; otherwise each change is printed as a line. If the controller
    restarts, the command keeps asking. Ctrl-C does not affect the jobs.

    Exit status: 0 all completed; 1 a job failed or is unknown; 2 wrong use; 130 Ctrl-C; 141 the reader of the output
    has closed the pipe.
    """
    from hpc_kit.runs.follow import follow_listing

    session = open_session_of(words, cluster)
    session.check_answers()
    click.get_current_context().meta[READER_GONE] = PIPE_CLOSED
    client = session.client
    # Asking a real controller more often than every few seconds burdens all users of the cluster.
    if interval is None:
        interval = EMBEDDED_INTERVAL if client.embedded else client.poll_seconds
    updates = follow_listing(
        words,
        session.runs,
        client,
        interval=interval,
        cluster=session.cluster.name,
        partitions=session.partitions,
    )
    can_draw = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    try:
        if can_draw and not as_json:
            return _draw_live(updates, interval)
        return _print_changes(updates, _change_json_lines if as_json else _change_lines)
    except KeyboardInterrupt:
        echo("\nthe jobs go on", err=True)
        return INTERRUPTED


def _print_changes(updates: Iterator[ListingUpdate], format_lines: Callable[[ListingUpdate, bool], list[str]]) -> int:
    """Print each change, and when Slurm stops or starts to answer. Return the exit status."""
    was_unreachable, update = False, None
    for update in updates:
        for text in format_lines(update, was_unreachable):
            echo(text)
        was_unreachable = update.unreachable is not None
    return 0 if update is not None and update.all_completed else 1


def _change_lines(update: ListingUpdate, was_unreachable: bool) -> list[str]:
    now = f"{dt.datetime.now():%H:%M:%S}"  # noqa: DTZ005 - local time
    lines, error = [], update.unreachable
    if error is not None and not was_unreachable:
        lines.append(f"{now}  Slurm does not answer: {error.found or error.what}; asking on, the jobs go on")
    elif was_unreachable and error is None:
        lines.append(f"{now}  Slurm answers again")
    if not update.lines and update.is_last:
        lines.append("no jobs in the queue")
    # Elements of an array that changed from one state to another share a line.
    for old in dict.fromkeys(change.old for change in update.changes):
        same = [change.line for change in update.changes if change.old is old]
        was = f"   (was {old})" if old else ""
        lines += [f"{now}  {row.job_id}  {row.name}  {row.text}{was}" for row in group_jobs(same)]
    return lines


def _change_json_lines(update: ListingUpdate, was_unreachable: bool) -> list[str]:
    now = dt.datetime.now().astimezone().isoformat(timespec="seconds")
    entries: list[dict[str, object]] = []
    if update.unreachable is not None and not was_unreachable:
        entries.append({"event": "unreachable", "error": update.unreachable.what, "found": update.unreachable.found})
    elif was_unreachable and update.unreachable is None:
        entries.append({"event": "reachable"})
    for change in update.changes:
        old = str(change.old) if change.old else None
        entries.append({"event": "job", "old": old, **job_json(change.line)})
    if update.is_last:
        entries.append({"event": "over", "well": update.all_completed})
    return [json.dumps({"time": now, **each}) for each in entries]


def _draw_live(updates: Iterator[ListingUpdate], interval: float) -> int:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    update = None
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for update in updates:
            live.update(_render_listing(update, interval, console.size.height), refresh=True)
    return 0 if update is not None and update.all_completed else 1


def _render_listing(update: ListingUpdate, interval: float, height: int) -> Text:
    from rich.text import Text

    from hpc_kit.runs.progress import draw_line

    now = f"{dt.datetime.now():%H:%M:%S}"  # noqa: DTZ005 - local time
    going = sum(not line.state.finished for line in update.lines)
    every = format_duration(round(interval)) if interval >= 1 else f"{interval:g} s"
    head = f"{now}  {going} of {len(update.lines)} jobs not over, asked every {every}; Ctrl-C leaves them alone"
    if update.unreachable is not None:
        head += f"\n{now}  Slurm does not answer: {update.unreachable.found or update.unreachable.what}; asking on"
    body = [click.unstyle(line) for line in format_jobs(update.lines)] if update.lines else ["no jobs in the queue"]
    for line in update.lines:
        losses = line.progress.losses if line.progress else []
        if bars := draw_line(losses):
            body.append(f"{line.job_id:>8}  loss {losses[0]:.3g} {bars} {losses[-1]:.3g}")
    # Live cannot scroll: what does not fit would be printed again at each update.
    room = max(1, height - head.count("\n") - 3)
    if len(body) > room:
        body = [*body[: room - 1], f"... and {len(body) - room + 1} more lines: hpc-kit status"]
    return Text(clean_text("\n".join([head, *body])), no_wrap=True, overflow="ellipsis")
