"""`hpc-kit status`."""

from __future__ import annotations

import json

import click

from hpc_kit.cli.job_tables import format_jobs, job_json
from hpc_kit.cli.options import CLUSTER_OPTION, JSON_OPTION, RUNS_OPTION, complete_run
from hpc_kit.cli.output import short_path
from hpc_kit.cli.run_lookup import JobGroup, open_sessions_of
from hpc_kit.cli.terminal import echo
from hpc_kit.runs.known_jobs import JobSelection
from hpc_kit.runs.run_folders import RunIndex
from hpc_kit.runs.status import JobListing, list_jobs


@click.command("status")
@click.argument("words", nargs=-1, metavar="[JOB|ID]...", shell_complete=complete_run)
@CLUSTER_OPTION
@RUNS_OPTION
@click.option("--all", "every", is_flag=True, help="Your whole queue, with the jobs of other projects.")
@JSON_OPTION
def command(words: tuple[str, ...], cluster: str | None, every: bool, as_json: bool) -> int:
    """Print the states of this project's queued jobs and latest runs, or of jobs named by id or name.

    AGE is the time since the submission, RAN the time for which the job runs or ran. The command runs squeue and sacct
    at most once each.

    Exit status: 0 printed, whatever the states; 1 unknown job, or Slurm does not answer; 2 wrong use.
    """
    groups = open_sessions_of(words, cluster)
    listings = [_list_group(group, project_only=not every) for group in groups]
    lines = [line for listing in listings for line in listing.lines]
    if as_json:
        echo(json.dumps([job_json(line) for line in lines], indent=2))
    elif lines:
        echo("\n".join(format_jobs(lines)))
    else:
        index = RunIndex(groups[0].session.runs)
        unreadable = f", which cannot be read: {index.unreadable}" if index.unreadable else ""
        echo(f"no jobs: none in the queue, and none in {short_path(index.root)}{unreadable}")
    # To stderr: programs that read the table take each line for a job.
    if listings[0].other_jobs and not (as_json or words):
        echo(f"{listings[0].other_jobs} more of your jobs belong to other projects: hpc-kit status --all", err=True)
    unreachable = next((listing.unreachable for listing in listings if listing.unreachable is not None), None)
    if unreachable is None:
        return 0
    echo(f"hpc-kit: {unreachable}", err=True)
    echo("  the states above come from the accounting and from the jobs' own files", err=True)
    return unreachable.exit_status


def _list_group(group: JobGroup, *, project_only: bool) -> JobListing:
    session = group.session
    selection = JobSelection.from_words(group.words)._replace(project_only=project_only)
    index, name = RunIndex(session.runs), session.cluster.name
    return list_jobs(selection, index, session.client, cluster=name, partitions=session.partitions)
