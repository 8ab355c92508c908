"""`hpc-kit clean`."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hpc_kit.cli.options import CLUSTER_OPTION, RUNS_OPTION, Session, open_session, parse_age
from hpc_kit.cli.output import short_path
from hpc_kit.cli.run_lookup import belongs_to
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import RecordError, SpecError, explain_file_errors
from hpc_kit.runs.backend import query_runs
from hpc_kit.runs.run_folders import Run, RunIndex
from hpc_kit.slurm.job_ids import base_id
from hpc_kit.slurm.units import format_count


@click.command("clean")
@click.option("--older-than", "age", callback=parse_age, required=True, metavar="AGE", help="12h, 30d, 4w.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@CLUSTER_OPTION
@RUNS_OPTION
def command(age: dt.timedelta, yes: bool, cluster: str | None) -> None:
    """Delete old runs of this project with all files in their folders: logs, records, checkpoints.

    Jobs that wait or run are kept, and so are runs of another cluster, and the results of an Executor. The command
    shows what it would delete, and asks.

    Exit status: 0 deleted, or nothing to delete; 1 Slurm does not answer, or a file cannot be deleted; 2 wrong use.
    """
    session = open_session(cluster)
    before = (dt.datetime.now() - age).timestamp()  # noqa: DTZ005 - compared with times of this machine
    old = [run for run in RunIndex(session.runs).all_runs() if _submitted(run) < before]
    active = _active_ids(old, session) if old else set()
    in_use = _folders_in_use({run.folder.parent for run in old}, active)
    ended = [run for run in old if run.job_id not in active and run.folder not in in_use]
    runs = [run for run in ended if belongs_to(run, session)]
    if len(runs) < len(old):
        kept = format_count(len(old) - len(runs), "old run")
        echo(f"kept: {kept} of jobs that have not ended, or of another cluster (--cluster)", err=True)
    if not runs:
        echo(f"nothing to delete in {short_path(session.runs)}")
        return
    paths = [path for run in runs for path in (*_paths_of(run), *_executor_files(run, before))]
    for run in runs:
        echo(f"{run.job_id:>8}  {run.name}  {dt.datetime.fromtimestamp(_submitted(run)):%Y-%m-%d}")  # noqa: DTZ006 - local time
    if not yes:
        if not sys.stdin.isatty():
            raise SpecError("the deletion needs a confirmation, and there is no terminal to ask on", remedy="add --yes")
        click.confirm(f"delete {format_count(len(runs), 'run')} ({_total_bytes(paths) / 1e6:,.1f} MB)?", abort=True)
    for path in paths:
        with explain_file_errors(RecordError, f"cannot delete {path}", "ask its owner"):
            # The folder of a resubmitted job is a link to the first run.
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for folder in {run.folder.parent for run in runs}:
        # The last run of a job leaves a link `latest` to nothing.
        _remove_empty(folder)
    echo(f"deleted {format_count(len(runs), 'run')}")


def _submitted(run: Run) -> float:
    """Return the time of the submission; of a run without a record, when a file of its folder last changed."""
    if run.record is not None and run.record.submit_time:
        return run.record.submit_time
    # Another cluster may still run it, and the time of the folder does not change while a log grows.
    return max(path.lstat().st_mtime for path in (run.folder, *run.folder.iterdir()))


def _active_ids(runs: list[Run], session: Session) -> set[str]:
    """Return the ids of jobs that wait or run."""
    ids: set[str] = set()
    for client in session.client.for_each_cluster():
        survey = client.query_queue([])
        if survey.unreachable is not None:
            raise survey.unreachable
        ids |= {base_id(status.job_id) for status in survey.queue if not status.state.finished}
    others = [run for run in runs if not run.backend.uses_slurm]
    return ids | {job_id for job_id, each in query_runs(others, session.client).items() if not each.state.finished}


def _folders_in_use(folders: set[Path], active: set[str]) -> set[Path]:
    """Return the run folders of active jobs. That of a job which was submitted again is a link to the first run."""
    entries = [entry for folder in folders for entry in folder.iterdir() if base_id(entry.name) in active]
    return {entry.with_name(base_id(entry.resolve().name)) for entry in entries}


def _paths_of(run: Run) -> Iterator[Path]:
    """Yield the folder of a run, those of its array elements, and its batch logs beside them."""
    folder = run.folder.parent
    yield run.folder
    # An Executor may use the same folder: its results begin with the id, too.
    element = re.compile(rf"{run.job_id}_\d+")
    yield from (path for path in folder.glob(f"{run.job_id}_*") if element.fullmatch(path.name))
    yield from (path for path in run.batch_logs() if path.parent == folder and path.is_file())


def _executor_files(run: Run, before: float) -> Iterator[Path]:
    """Yield the files of a job in the folder of its Executor, except its results.

    The names contain the job id only, and another queue may have given the id again: younger files stay.
    """
    folders = {each.rank_log(0).parent for each in run.elements() or [run]} - {run.folder}
    own = re.compile(rf"{run.job_id}(_\d+)?_(\d+_log\.(out|err)|submission\.sh|submitted\.pkl)")
    for path in sorted(each for folder in folders for each in folder.glob(f"{run.job_id}_*")):
        if own.fullmatch(path.name) and path.is_file() and path.stat().st_mtime < before:
            yield path


def _total_bytes(paths: list[Path]) -> int:
    files = [each for path in paths for each in (path.rglob("*") if path.is_dir() else [path])]
    # lstat: a link to a data set is not deleted with the run.
    return sum(each.lstat().st_size for each in files if not each.is_dir())


def _remove_empty(folder: Path) -> None:
    latest = folder / "latest"
    if latest.is_symlink() and not latest.exists():
        latest.unlink()
    if not (folder.is_symlink() or any(folder.iterdir())):
        folder.rmdir()
