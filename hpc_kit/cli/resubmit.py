"""`hpc-kit resubmit`."""

from __future__ import annotations

import json

import click

from hpc_kit.cli.job_arguments import parse_settings
from hpc_kit.cli.options import CLUSTER_OPTION, JSON_OPTION, RUNS_OPTION, complete_run
from hpc_kit.cli.output import print_line, print_next_steps, short_path
from hpc_kit.cli.run_lookup import belongs_to, open_session_of
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SpecError
from hpc_kit.runs.history import read_history
from hpc_kit.runs.known_jobs import JobSelection
from hpc_kit.runs.run_folders import RECENT_RUNS, Run, RunIndex
from hpc_kit.runs.status import list_jobs
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.states import JobState
from hpc_kit.spec import search_path

CHANGED_LINES = 12
"""Maximum number of printed lines about changed code."""


@click.command("resubmit")
@click.argument("job_id", metavar="ID", shell_complete=complete_run)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A value that replaces the recorded one.")
@CLUSTER_OPTION
@RUNS_OPTION
@JSON_OPTION
def command(job_id: str, settings: tuple[str, ...], cluster: str | None, as_json: bool) -> None:
    """Submit a job again, with the script of its run. With --set, the recorded job is rendered again.

    A job with [restart] continues from its last checkpoint, and its history contains the earlier attempts. Such a job
    is refused until it has ended. The command lists the files of the project that have changed since the submission.

    Exit status: 0 submitted; 1 unknown job, or sbatch refuses; 2 wrong use.
    """
    from hpc_kit.submission.resubmit import prepare_resubmission, resubmit

    # A guessed cluster could not show whether the job still runs.
    session = open_session_of([job_id], cluster, require_answer=True)
    root = search_path.current_folder()
    index = RunIndex(session.runs)
    if JobSelection.from_words([job_id]).names and (named := index.find_by_name(job_id)):
        raise SpecError(
            f"resubmit takes the id of a run, and {job_id} is a name",
            found=f"runs of {job_id}: {', '.join(each.job_id for each in named[:RECENT_RUNS])}",
            remedy=f"hpc-kit resubmit {named[0].job_id}",
        )
    run = index.require(job_id, lambda run: belongs_to(run, session))
    again = prepare_resubmission(run, parse_settings(settings), root)
    _check_end(run, index, session.client, restarts=again.resolved.job.restart is not None)
    if again.changes:
        lines = again.changes.splitlines()
        more = [f" ... {len(lines) - CHANGED_LINES} more lines"] * (len(lines) > CHANGED_LINES)
        echo(f"hpc-kit: the code has changed since job {job_id} was submitted", err=True)
        echo("\n".join([*lines[:CHANGED_LINES], *more]), err=True)
    done = resubmit(again, root)
    for note in done.notes:
        echo(f"hpc-kit: {note}", err=True)
    name = again.resolved.job.name
    if as_json:
        result = {"job_id": done.job_id, "name": name, "run": str(done.run_folder), "continues": job_id}
        echo(json.dumps(result, indent=2))
        return
    verb = "continues" if again.resolved.job.restart is not None else "repeats"
    print_line("job", f"{done.job_id} {name}: {verb} job {job_id}", right=short_path(done.run_folder))
    print_next_steps(done.job_id, going=True)


def _check_end(run: Run, index: RunIndex, client: SlurmClient, *, restarts: bool) -> None:
    """Refuse a job that still uses its checkpoints, and report a job that has completed."""
    # If Slurm refused a requeue, the batch script has submitted another job that continues the run.
    job_id = read_history(run.folder).latest_job(run.job_id)
    states = [line.state for line in list_jobs(JobSelection((job_id,)), index, client).lines]
    active = [state for state in states if not state.finished]
    if active and restarts:
        raise SpecError(
            f"job {job_id} has not ended, and two jobs must not write the same checkpoints",
            found=f"{job_id} is {active[0]}",
            remedy=f"wait for its end, or cancel it first: hpc-kit cancel {job_id}",
        )
    if all(state is JobState.COMPLETED for state in states):
        echo(f"hpc-kit: job {job_id} has completed: the new job may find nothing left to do", err=True)
