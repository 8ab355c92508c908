"""`hpc-kit cancel`."""

from __future__ import annotations

import json

import click

from hpc_kit.cli.job_tables import group_jobs
from hpc_kit.cli.options import CLUSTER_OPTION, JSON_OPTION, RUNS_OPTION, complete_run
from hpc_kit.cli.run_lookup import open_session_of
from hpc_kit.cli.terminal import echo
from hpc_kit.runs.known_jobs import JobSelection
from hpc_kit.slurm.job_ids import base_id


@click.command("cancel")
@click.argument("words", nargs=-1, required=True, metavar="JOB|ID...", shell_complete=complete_run)
@CLUSTER_OPTION
@RUNS_OPTION
@JSON_OPTION
def command(words: tuple[str, ...], cluster: str | None, as_json: bool) -> None:
    """Cancel jobs by id, array elements (12_3), or all jobs of a name. Print the previous state of each.

    A launch over ssh receives the same signal as by Ctrl-C, on the machine where it was started.

    Exit status: 0 cancelled or already ended; 1 unknown job (then none is cancelled), or scancel refuses.
    """
    from hpc_kit.runs.cancel import cancel, needs_slurm

    # A guessed cluster may have another job with the same id.
    session = open_session_of(words, cluster, require_answer=True)
    # A launch over ssh can be cancelled on a machine without Slurm.
    if needs_slurm(words, session.runs):
        session.client.check_available(session.cluster.name)
    before = cancel(list(words), session.runs, session.client, cluster=session.cluster.name)
    if as_json:
        jobs = [{"job_id": line.job_id, "name": line.name, "was": str(line.state)} for line in before]
        echo(json.dumps(jobs, indent=2))
        return
    cancelled = [line for line in before if line.status is not None and not line.state.finished]
    selection = JobSelection.from_words(words)
    for name in selection.names:
        last = next((line for line in before if line.name == name), None)
        if last is not None and not any(line.name == name for line in cancelled):
            echo(f"no job named {name} waits or runs; the last, {last.job_id}, has ended: {last.state}")
    # The two kinds are printed apart: a user who meant to cancel sees at once that a job was already over.
    ids = set(map(base_id, selection.ids))
    by_name = [line for line in before if line.name in selection.names and base_id(line.job_id) not in ids]
    ended = [line for line in before if line not in cancelled and line not in by_name]
    for text, lines in (("cancelled: was", cancelled), ("had ended already:", ended)):
        for row in group_jobs(lines):
            echo(f"{row.job_id:>8}  {row.name}  {text} {row.text.partition(': ')[0]}")
