"""`hpc-kit watch`."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import click

from hpc_kit.cli import output
from hpc_kit.cli.output import CLUSTER_OPTION, INTERRUPTED, RUNS_OPTION, open_session
from hpc_kit.slurm.start_forecast import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.text import Text

    from hpc_kit.runs.follow import JobChange, ListingUpdate

EMBEDDED_INTERVAL = 1.0


@click.command("watch")
@click.argument("words", nargs=-1, metavar="[JOB|ID]...")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2),
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

    Exit status: 0 all completed; 1 a job failed or is unknown; 2 wrong use; 130 Ctrl-C.
    """
    from hpc_kit.runs.follow import follow_listing

    place = open_session(cluster)
    if interval is None:
        interval = EMBEDDED_INTERVAL if place.client.embedded else place.client.poll_seconds
    looks = follow_listing(words, place.runs, place.client, interval=interval, cluster=place.cluster.name)
    try:
        if as_json:
            return _print_changes(looks, _change_json_lines)
        return _draw_live(looks, interval) if _can_draw() else _print_changes(looks, _change_lines)
    except KeyboardInterrupt:
        click.echo("\nthe jobs go on", err=True)
        return INTERRUPTED


def _can_draw() -> bool:
    import os
    import sys

    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _print_changes(looks: Iterator[ListingUpdate], tell: Callable[[ListingUpdate, bool], list[str]]) -> int:
    """Print each change, and when Slurm stops or starts to answer."""
    away, look = False, None
    for look in looks:
        for text in tell(look, away):
            click.echo(text)
        away = look.unreachable is not None
    return _exit_status(look)


def _exit_status(look: ListingUpdate | None) -> int:
    return 0 if look is not None and look.all_completed else 1


def _change_lines(look: ListingUpdate, away: bool) -> list[str]:
    now = f"{dt.datetime.now():%H:%M:%S}"  # noqa: DTZ005 - local time
    lines = [f"{now}  {text}" for text in _reachability_lines(look, away)]
    if not look.lines and look.is_last:
        lines.append("no jobs in the queue")
    for old in dict.fromkeys(change.old for change in look.changes):
        same = [change.line for change in look.changes if change.old is old]
        was = f"   (was {old})" if old else ""
        lines += [f"{now}  {row.job_id}  {row.name}  {row.text}{was}" for row in output.group_jobs(same)]
    return lines


def _reachability_lines(look: ListingUpdate, away: bool) -> list[str]:
    if look.unreachable is not None and not away:
        return [f"Slurm does not answer: {look.unreachable.found or look.unreachable.what}; asking on, the jobs go on"]
    return ["Slurm answers again"] if away and look.unreachable is None else []


def _change_json_lines(look: ListingUpdate, away: bool) -> list[str]:
    import json

    now = dt.datetime.now().astimezone().isoformat(timespec="seconds")
    entries: list[dict[str, object]] = []
    if look.unreachable is not None and not away:
        entries.append({"event": "unreachable", "error": look.unreachable.what, "found": look.unreachable.found})
    elif away and look.unreachable is None:
        entries.append({"event": "reachable"})
    entries += [_change_json(change) for change in look.changes]
    if look.is_last:
        entries.append({"event": "over", "well": look.all_completed})
    return [json.dumps({"time": now, **each}) for each in entries]


def _change_json(change: JobChange) -> dict[str, object]:
    return {"event": "job", "old": str(change.old) if change.old else None, **output.job_json(change.line)}


def _draw_live(looks: Iterator[ListingUpdate], interval: float) -> int:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    look = None
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for look in looks:
            live.update(_render_listing(look, interval, console.size.height), refresh=True)
    return _exit_status(look)


def _render_listing(look: ListingUpdate, interval: float, height: int) -> Text:
    from rich.text import Text

    now = f"{dt.datetime.now():%H:%M:%S}"  # noqa: DTZ005 - local time
    going = sum(not line.state.finished for line in look.lines)
    asked = f"asked every {format_duration(round(interval))}" if interval >= 1 else f"asked every {interval:g} s"
    head = f"{now}  {going} of {len(look.lines)} jobs not over, {asked}; Ctrl-C leaves them alone"
    if look.unreachable is not None:
        head += f"\n{now}  Slurm does not answer: {look.unreachable.found or look.unreachable.what}; asking on"
    body = output.format_jobs(look.lines) if look.lines else ["no jobs in the queue"]
    room = max(1, height - head.count("\n") - 3)
    if len(body) > room:
        body = [*body[: room - 1], f"... and {len(body) - room + 1} more lines: hpc-kit status"]
    return Text("\n".join([head, *body]), no_wrap=True, overflow="ellipsis")
