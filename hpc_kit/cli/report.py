"""`hpc-kit report`."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.logs import query_statuses
from hpc_kit.cli.options import CLUSTER_OPTION, RUNS_OPTION, complete_run
from hpc_kit.cli.output import short_path
from hpc_kit.cli.run_lookup import client_of_run, find_run
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import RecordError, SpecError, UnknownJob, explain_file_errors
from hpc_kit.run_files import write_whole
from hpc_kit.spec.secrets import mask_text

if TYPE_CHECKING:
    from hpc_kit.report.page import Section
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.job_status import JobStatus


@click.command("report")
@click.argument("words", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option("-o", "--out", default="report.html", show_default=True, metavar="FILE", help="The page; - is stdout.")
@CLUSTER_OPTION
@RUNS_OPTION
def command(words: tuple[str, ...], out: str, cluster: str | None) -> None:
    """Write runs and benchmarks to one HTML page: plots, tables, script, environment, record.

    RUN is a job id, the name of a job (its latest run), a run folder, or the JSON file of a benchmark. Without RUN, the
    page shows the latest run. The page needs no network and no other file. Plots need matplotlib.

    Exit status 1 if there is no such run or the page is not writable, 2 if a file is not a benchmark result.
    """
    from hpc_kit import __version__
    from hpc_kit.report.page import render_page

    sections = [
        section
        for number, word in enumerate(words or (None,), 1)
        for section in _sections_for(word, f"r{number}", cluster)
    ]
    for note in dict.fromkeys(note for each in sections for note in each.notes if note.startswith("No plots")):
        echo(f"report  {note}", err=True)
    now = dt.datetime.now().astimezone().isoformat(" ", timespec="seconds")
    text = mask_text(render_page(sections, f"Made on {now} by hpc_kit {__version__}."))
    if out == "-":
        echo(text, nl=False)
        return
    with explain_file_errors(RecordError, f"cannot write {out}", "write to another file: --out FILE"):
        path = Path(out).resolve()
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a pipe
        else:
            # The page contains the script and the environment of a run, whose folder only its owner can read.
            write_whole(path, text.encode(), 0o600, lasting=False)
    echo(out)


def _sections_for(word: str | None, prefix: str, cluster: str | None) -> list[Section]:
    """Return the sections for one argument, or for the latest run: the run, then the benchmarks in its folder."""
    from hpc_kit.bench.results import read_result
    from hpc_kit.report import bench_section, run_section
    from hpc_kit.runs.run_folders import open_run

    # A run has priority over a file or folder of the same name in the current folder.
    path = Path(word or "")
    is_path = word is not None and (
        "/" in word or path.suffix == ".json" or (path.exists() and not _names_a_run(word, cluster))
    )
    if is_path and path.is_file():
        return [bench_section.build_bench_section(read_result(path), str(path), prefix)]
    run, status = (open_run(path.resolve()), None) if is_path and path.is_dir() else _find_run_status(word, cluster)
    benches = sorted(run.folder.glob("bench_*.json"))
    is_run = run.record is not None or run.end_marker() is not None or run.rank_log(0).is_file()
    if not is_run and not benches:
        raise SpecError(
            f"{short_path(run.folder)} is not a run",
            found="no record, no log of a rank, and no result of a bench in it",
            remedy="hpc-kit status lists the runs; a run folder is runs/<job_name>/<job_id>",
        )
    sections = [run_section.build_run_section(run, status, prefix)] if is_run else []
    return sections + [
        bench_section.build_bench_section(read_result(file), str(file), f"{prefix}b{number}")
        for number, file in enumerate(benches)
    ]


def _names_a_run(word: str, cluster: str | None) -> bool:
    """Return whether a word is the name or id of a run, and not only that of a file or folder."""
    try:
        find_run(word, cluster)
    except UnknownJob:
        return False
    return True


def _find_run_status(word: str | None, cluster: str | None) -> tuple[Run, JobStatus | None]:
    """Return a run by id or name, or the latest run, and its status if Slurm answers."""
    run, session = find_run(word, cluster)
    return run, query_statuses([run], client_of_run(run, session))[0]
