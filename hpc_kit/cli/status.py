"""`hpc-kit status`."""

from __future__ import annotations

import click

from hpc_kit.cli import output
from hpc_kit.cli.output import CLUSTER_OPTION, JSON_OPTION, RUNS_OPTION, open_session


@click.command("status")
@click.argument("words", nargs=-1, metavar="[JOB|ID]...")
@CLUSTER_OPTION
@RUNS_OPTION
@JSON_OPTION
def command(words: tuple[str, ...], cluster: str | None, as_json: bool) -> int:
    """Print the states of queued jobs and of the latest runs, or of jobs named by id or name.

    The command runs squeue and sacct at most once each.

    Exit status: 0 printed, whatever the states; 1 unknown job, or Slurm does not answer; 2 wrong use.
    """
    from hpc_kit.runs.run_folders import RunIndex
    from hpc_kit.runs.status import JobSelection, list_jobs

    place = open_session(cluster)
    known = RunIndex(place.runs)
    listing = list_jobs(JobSelection.from_words(words), known, place.client, cluster=place.cluster.name)
    if as_json:
        import json

        click.echo(json.dumps([output.job_json(each) for each in listing.lines], indent=2))
    elif not listing.lines:
        unread = f", which cannot be read: {known.unreadable}" if known.unreadable else ""
        click.echo(f"no jobs: none in the queue, and none in {output.short_path(place.runs)}{unread}")
    for text in output.format_jobs(listing.lines) if not as_json else ():
        click.echo(text)
    if listing.unreachable is not None:
        click.echo(f"hpc-kit: {listing.unreachable}", err=True)
        click.echo("  the states above come from the accounting and from the jobs' own files", err=True)
    return 0 if listing.unreachable is None else listing.unreachable.exit_status
