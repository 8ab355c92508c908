"""`hpc-kit resubmit`."""

from __future__ import annotations

import json

import click

from hpc_kit.cli.options import CLUSTER_OPTION, JSON_OPTION, RUNS_OPTION, open_session
from hpc_kit.cli.output import print_line, print_next_steps, short_path
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SpecError
from hpc_kit.runs.run_folders import RunIndex
from hpc_kit.spec import search_path

CHANGED_LINES = 12


@click.command("resubmit")
@click.argument("job_id", metavar="ID")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A value that replaces the recorded one.")
@CLUSTER_OPTION
@RUNS_OPTION
@JSON_OPTION
def command(job_id: str, settings: tuple[str, ...], cluster: str | None, as_json: bool) -> None:
    """Submit a job again, with the script of its run. With --set, the recorded job is rendered again.

    A job with [restart] goes on from its last checkpoint, and its history contains the earlier attempts. If files of
    the project have changed since the job was submitted, the command prints which.

    Exit status: 0 submitted; 1 unknown job, or sbatch refuses; 2 wrong use.
    """
    from hpc_kit.submission.resubmit import prepare_resubmission, resubmit

    session = open_session(cluster, require_answer=True)
    root = search_path.current_folder()
    again = prepare_resubmission(RunIndex(session.runs).require(job_id), _parse_settings(settings), root)
    if again.changes:
        shown = again.changes.splitlines()
        more = [f" ... {len(shown) - CHANGED_LINES} more lines"] * (len(shown) > CHANGED_LINES)
        echo(f"hpc-kit: the code has changed since job {job_id} was submitted", err=True)
        echo("\n".join([*shown[:CHANGED_LINES], *more]), err=True)
    done = resubmit(again, root, lambda _: None)
    for note in done.notes:
        echo(f"hpc-kit: {note}", err=True)
    name = again.resolved.job.name
    if as_json:
        result = {"job_id": done.job_id, "name": name, "run": str(done.run_folder), "continues": job_id}
        echo(json.dumps(result, indent=2))
        return
    print_line("job", f"{done.job_id} {name}: continues job {job_id}", right=short_path(done.run_folder))
    print_next_steps(done.job_id, going=True)


def _parse_settings(settings: tuple[str, ...]) -> dict[str, object]:
    pairs = [setting.partition("=") for setting in settings]
    if wrong := next((key for key, equals, _ in pairs if not equals), None):
        raise SpecError(f"--set {wrong} has no value", remedy="write --set KEY=VALUE, such as resources.time=2:00:00")
    return {key: value for key, _, value in pairs}
