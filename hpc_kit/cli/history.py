"""`hpc-kit history`."""

from __future__ import annotations

import datetime as dt
import json

import click
from msgspec import structs

from hpc_kit.cli.options import CLUSTER_OPTION, JSON_OPTION, RUNS_OPTION, complete_run
from hpc_kit.cli.output import format_table, short_path
from hpc_kit.cli.run_lookup import JobGroup, belongs_to, open_sessions_of
from hpc_kit.cli.terminal import echo
from hpc_kit.runs.history import History, RecordedAttempt, read_history
from hpc_kit.runs.run_folders import RECENT_RUNS, Run, RunIndex
from hpc_kit.slurm.job_ids import parse_job_ids
from hpc_kit.slurm.start_forecast import format_duration
from hpc_kit.slurm.units import format_count

# The batch script writes the keys into the file `history` of the run.
DECISIONS = {
    "finished": "finished",
    "failed": "failed",
    "requeue": "started again",
    "spare": "another step on a spare node",
    "gave_up": "not started again",
    "ended": "ended by Slurm",
}


@click.command("history")
@click.argument("words", nargs=-1, metavar="[JOB|ID]...", shell_complete=complete_run)
@CLUSTER_OPTION
@RUNS_OPTION
@JSON_OPTION
def command(words: tuple[str, ...], cluster: str | None, as_json: bool) -> None:
    """Print the attempts of jobs with [restart] or [preflight]: nodes, ends, checkpoints, and the lost time.

    Without JOB or ID, the command prints the latest jobs. It reads files of the runs only, and does not ask Slurm.

    Exit status: 0 printed; 1 unknown job; 2 wrong use.
    """
    groups = open_sessions_of(words, cluster)
    histories = [(run, read_history(run.folder)) for group in groups for run in _select_runs(group)]
    if not words:
        histories = [(run, history) for run, history in histories if history.attempts][:RECENT_RUNS]
    if as_json:
        echo(json.dumps([_to_json(run, history) for run, history in histories], indent=2))
        return
    for run, history in histories:
        echo("\n".join(_format_history(run, history)))
    if not histories:
        echo(
            f"no attempts in {short_path(groups[0].session.runs)}: only jobs with [restart] or [preflight] record them"
        )


def _select_runs(group: JobGroup) -> list[Run]:
    """Return the runs of ids, preferably those of this cluster, and of names; without words, all, the latest first."""
    session, index = group.session, RunIndex(group.session.runs)
    if not group.words:
        # A job that was submitted again has a link to the run folder of the first.
        own = [run for run in index.all_runs() if not run.folder.is_symlink()]
        return [each for run in own for each in (run.elements() or [run])]
    runs: list[Run] = []
    for word in group.words:
        named = [index.require(job_id, lambda run: belongs_to(run, session)) for job_id in parse_job_ids(word)]
        found = named or [*index.find_by_name(word), *index.find_unrecorded(word)]
        if not found:
            raise index.unknown_job_error([word])
        runs += [each for run in found for each in (run.elements() or [run])]
    return runs


def _format_history(run: Run, history: History) -> list[str]:
    count = len(history.attempts)
    lost = f", {format_duration(round(history.lost))} lost between them" if count > 1 else ""
    if not count:
        return [f"{run.job_id} {run.name}: no attempts: only jobs with [restart] or [preflight] record them"]
    rows = [("", "start", "ran", "nodes", "step", "end"), *(_attempt_cells(each) for each in history.attempts)]
    table = format_table(rows, "right", "left", "right", "left", "right", "left", first_width=4)
    return [f"{run.job_id} {run.name}: {format_count(count, 'attempt')}{lost}", *table]


def _attempt_cells(attempt: RecordedAttempt) -> tuple[str, ...]:
    start = f"{dt.datetime.fromtimestamp(attempt.start):%Y-%m-%d %H:%M:%S}"  # noqa: DTZ006 - local time, as Slurm's
    ran = format_duration(round(attempt.end - attempt.start)) if attempt.end is not None else ""
    # A job that lost its node or was killed writes no end.
    decision = DECISIONS.get(attempt.decision, attempt.decision) or "no end was written"
    excluded = f"; replaced {', '.join(attempt.excluded)}" if attempt.excluded else ""
    code = f"exit code {attempt.exit_code}" if attempt.exit_code and "exit code" not in attempt.reason else ""
    reason = ", ".join(filter(None, (attempt.reason, code)))
    end = f"{decision}{': ' if reason else ''}{reason}{excluded}"
    step = "" if attempt.step is None else str(attempt.step)
    return str(attempt.number), start, ran, attempt.nodes, step, end


def _to_json(run: Run, history: History) -> dict[str, object]:
    attempts = [{**structs.asdict(each), "unsaved": each.unsaved} for each in history.attempts]
    return {"job_id": run.job_id, "name": run.name, "run": str(run.folder), "lost": history.lost, "attempts": attempts}
