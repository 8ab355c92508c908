"""Printed output of the commands: lines, job tables, events, outcomes; and the options that many commands share."""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

import click

from hpc_kit.run_files import RECORD
from hpc_kit.slurm.job_ids import array_index, base_id, sort_key
from hpc_kit.slurm.option_values import fold_indices
from hpc_kit.slurm.states import JobState
from hpc_kit.spec import search_path
from hpc_kit.spec.default_cluster import VARIABLE, default_cluster_name
from hpc_kit.spec.load import load_cluster

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from hpc_kit.runs.first_failure import RankFailure
    from hpc_kit.runs.follow import Event
    from hpc_kit.runs.outcome import Outcome
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.runs.status import JobLine
    from hpc_kit.slurm.client import SlurmClient
    from hpc_kit.spec.cluster import Cluster


INTERRUPTED = 130
_UNLIMITED_WIDTH = 100_000


def follow_run(
    run: Run,
    client: SlurmClient,
    *,
    ranks: Sequence[int] | None = (0,),
    as_json: bool = False,
    others: Sequence[str] = (),
) -> int:
    """Print the events of a job or of all array elements until the end, and return the exit status.

    Ctrl-C only stops the printing. The job and the later jobs `others` keep running; the command to cancel each is
    printed.

    Raises:
        Exit: After Ctrl-C, with status 130.
    """
    elements = run.elements()
    outcomes: list[Outcome] = []
    try:
        from hpc_kit.runs import follow as monitor

        for event in monitor.follow(elements or [run], client, ranks=ranks):
            if isinstance(event, monitor.Ended):
                outcomes.append(event.outcome)
            if as_json:
                click.echo(json.dumps(event_json(event)))
            else:
                _print_event(event, of_several=bool(elements), one_rank=ranks is not None and len(ranks) == 1)
    except KeyboardInterrupt:
        if as_json:
            click.echo(f"\njob {run.job_id} goes on", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        exit_interrupted([run.job_id, *others])
    if as_json:
        return next((each.exit_status for each in _sort_outcomes(outcomes) if each.exit_status), 0)
    return print_array_outcome(run, outcomes) if elements else print_outcome(outcomes[0])


def exit_interrupted(ids: Sequence[str]) -> NoReturn:
    """Exit after Ctrl-C: list the jobs that keep running, and the next commands for each.

    Raises:
        Exit: Always; its status is 130.
    """
    click.echo()
    for job_id in ids:
        print_line("", f"job {job_id} goes on")
        print_next_steps(job_id, going=True)
    raise click.exceptions.Exit(INTERRUPTED) from None


def _sort_outcomes(outcomes: list[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda each: sort_key(each.job_id))


def _print_event(event: Event, *, of_several: bool, one_rank: bool) -> None:
    """Print one event. With several jobs, the job id comes first, and the outcomes are printed together later."""
    from hpc_kit.runs import follow as monitor

    match event:
        case monitor.StateChanged(job_id, old, new, elapsed, _):
            right = f"{elapsed:.1f} s" if old else ""
            print_line(job_id if of_several else "", f"{old} -> {new}" if old else f"{new}", right=right)
        case monitor.Waiting(job_id, reason, meaning):
            print_line(job_id if of_several else "", f"{reason}: {meaning.sentence}")
        case monitor.RankLine(job_id, number, text):
            who = [job_id] * of_several + [f"rank {number}"] * (not of_several or not one_rank)
            print_line(" ".join(who), text)
        case monitor.Unreachable(error):
            print_line("slurm", f"{error.what}; the job goes on, and hpc-kit keeps asking")
        case monitor.Ended():
            pass


def event_json(event: Event) -> dict[str, object]:
    """Return one event as a JSON object."""
    from hpc_kit.runs import follow as monitor

    match event:
        case monitor.StateChanged(job_id, old, new, elapsed, _):
            told = {"old": str(old) if old else None, "state": str(new), "elapsed": round(elapsed, 3)}
            return {"event": "state", "job_id": job_id, **told}
        case monitor.Waiting(job_id, reason, meaning):
            return {"event": "waiting", "job_id": job_id, "reason": reason, "sentence": meaning.sentence}
        case monitor.RankLine(job_id, number, text):
            return {"event": "line", "job_id": job_id, "rank": number, "text": text}
        case monitor.Unreachable(error):
            return {"event": "unreachable", "error": error.what, "found": error.found}
        case monitor.Ended(job_id, outcome):
            return {"event": "ended", "job_id": job_id, **outcome_json(outcome)}


def outcome_json(outcome: Outcome) -> dict[str, object]:
    """Return the outcome of a job as a JSON object."""
    failure = outcome.failure
    first = failure and {**failure._asdict(), "log": str(failure.log) if failure.log else None}
    return {
        "state": str(outcome.state),
        "sentence": outcome.sentence,
        "exit_status": outcome.exit_status,
        "first_failure": first,
        "summary": outcome.summary,
        "run": str(outcome.run),
    }


def print_array_outcome(run: Run, outcomes: list[Outcome]) -> int:
    """Print the outcome of an array: failed elements and paths of the logs. Return the status of the first failure."""
    failed = [each for each in _sort_outcomes(outcomes) if each.exit_status]
    for outcome in failed:
        if outcome.failure:
            print_failure(outcome.failure, f"{outcome.job_id}, ")
        else:
            print_line("ended", f"{outcome.job_id} {outcome.state}: {outcome.sentence}")
    print_line("ended" if failed else "done", f"{len(outcomes) - len(failed)} of {len(outcomes)} elements completed")
    print_line("logs", f"{short_path(run.folder)}_*/rank-*.log, {short_path(run.batch_log).replace('%a', '*')}")
    if run.record:
        print_line("record", short_path(run.folder / RECORD))
    print_next_steps(run.job_id, going=False)
    return failed[0].exit_status if failed else 0


def print_outcome(outcome: Outcome) -> int:
    """Print the outcome of a job, the paths of its files and the next commands. Return its exit status."""
    if outcome.failure:
        print_failure(outcome.failure)
    elif outcome.exit_status:
        print_line("ended", f"{outcome.state}: {outcome.sentence}")
    else:
        print_line("done", format_summary(outcome.summary) or outcome.sentence)
    batch = f", {short_path(outcome.batch_log)}" if outcome.batch_log else ""
    print_line("logs", f"{short_path(outcome.run)}/rank-*.log{batch}")
    if outcome.record:
        print_line("record", short_path(outcome.record))
    print_next_steps(outcome.job_id, going=False, rank=outcome.failure.rank if outcome.failure else None)
    return outcome.exit_status


def print_failure(failure: RankFailure, of: str = "") -> None:
    """Print the first failed rank and its error. `of` names the array element."""
    who = "the batch script" if failure.rank is None else f"rank {failure.rank}"
    where = f" on {failure.host}" if failure.host else ""
    how = failure.signal or (f"exit code {failure.exit_code}" if failure.exit_code is not None else "")
    told = failure.headline if not how or how in failure.headline else f"{failure.headline} ({how})"
    print_line("failed", f"{of}{who}{where}: {told}")
    for text in failure.text.splitlines():
        print_line("", text)


def format_summary(values: dict[str, object]) -> str:
    """Return the summary of a training in one line. Known figures get units."""
    first, last = values.get("loss_first"), values.get("loss_last")
    speed, memory = values.get("tokens_per_second"), values.get("peak_memory_mib")
    parts = []
    if isinstance(last, int | float):
        parts.append(f"loss {first:.2f} -> {last:.2f}" if isinstance(first, int | float) else f"loss {last:.2f}")
    if isinstance(speed, int | float):
        parts.append(f"{speed:,.0f} tokens/s".replace(",", " "))
    if isinstance(memory, int | float):
        parts.append(f"peak {memory:.0f} MiB a rank")
    if not parts:
        parts = [f"{name} {value}" for name, value in values.items()]
    return ", ".join(parts)


def print_next_steps(job_id: str, *, going: bool, rank: int | None = None) -> None:
    """Print the next commands to type, with the `--cluster` and `--runs` options of this command."""
    kit = program_name()
    which = f" --rank {rank}" if rank is not None else ""
    named = click.get_current_context().params.get("cluster") or os.environ.get(VARIABLE)
    runs = runs_option()
    there = (f" --cluster {quote(named)}" if named else "") + (f" --runs {quote(runs)}" if runs else "")
    steps: Iterable[tuple[str, str]] = [("status", f"{kit} status {job_id}")]
    steps = [*steps, ("logs", f"{kit} logs {job_id}{' -f' if going else which or ' --all'}")]
    steps = [*steps, ("cancel", f"{kit} cancel {job_id}")] if going else steps
    for label, text in steps:
        print_line(label, text + there)


def program_name() -> str:
    """Return the command that starts hpc-kit: its name if PATH finds it, else its path."""
    own = Path(sys.argv[0])
    if own.name == "__main__.py":
        return f"{Path(sys.executable)} -m hpc_kit"
    found = shutil.which("hpc-kit")
    if found and Path(found).resolve() == own.resolve():
        return "hpc-kit"
    return short_path(own)


def short_path(path: Path) -> str:
    """Return a path relative to the current folder if it is inside."""
    try:
        here = Path.cwd()
    except OSError:  # the current folder was removed
        return str(path)
    absolute = here / path
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)


CLUSTER_OPTION = click.option(
    "--cluster", metavar="NAME", help="Cluster file in env/ [default: what fits this machine]."
)
RUNS_META = "hpc_kit.runs"
"""Key in click's `meta` for a runs folder that replaces the one of the cluster file."""

RUNS_OPTION = click.option(
    "--runs",
    metavar="FOLDER",
    expose_value=False,
    callback=lambda ctx, _, value: ctx.meta.update({RUNS_META: value} if value else {}),
    help="Folder of the runs [default: `runs` of the cluster file].",
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="A JSON document.")


class Session(NamedTuple):
    """A cluster, the client of its Slurm, and its runs folder."""

    cluster: Cluster
    client: SlurmClient
    runs: Path


def open_session(name: str | None, *, require_answer: bool = False) -> Session:
    """Open the named cluster, or the one that fits this machine.

    Args:
        name: Name or path of a cluster file.
        require_answer: Raise instead of guessing if Slurm does not answer.

    Raises:
        SpecError: There is no such cluster file.
        SlurmUnavailable: `require_answer`, and Slurm does not answer.
    """
    from hpc_kit.spec.cluster_client import open_client

    root = search_path.current_folder()
    cluster = load_cluster(name or default_cluster_name(root, os.environ, require_answer=require_answer), root=root)
    return Session(cluster, open_client(cluster), root / (runs_option() or cluster.runs))


def runs_option() -> str | None:
    """Return the runs folder of `--runs`; None without that option."""
    context = click.get_current_context(silent=True)
    return context.meta.get(RUNS_META) if context is not None else None


def print_line(label: str, text: str, *, right: str = "") -> None:
    """Print a label and a text, with an optional time or path at the right."""
    body = f"{label:<7} {text}"
    click.echo(f"{body:<76}  {right}" if right else body)


_POLL_SECONDS = 0.2
_GIVE_UP_SECONDS = 2.0
"""Seconds without progress after which an ending launch stops printing."""


class LineWriter:
    """Writes lines to standard output without blocking the end of a launch.

    Args:
        ending: Set when the launch ends. From then on a blocked reader is given up.
    """

    def __init__(self, ending: threading.Event) -> None:
        self.incomplete = sys.stdout is None  # started with >&-
        """True if some lines were not written."""
        self._ending = ending

    def show(self, text: str) -> None:
        """Write a line when the reader accepts it. Return immediately after a reader was given up."""
        if self.incomplete:
            return
        shown = text if sys.stdout.isatty() else click.unstyle(text)
        data = f"{shown}\n".encode(sys.stdout.encoding, "replace")
        taken = time.monotonic()
        with ignore_closed_pipe():
            while data and not self.incomplete:
                if select.select([], [sys.stdout], [], _POLL_SECONDS)[1]:
                    # A pipe that is ready accepts PIPE_BUF bytes without blocking.
                    data = data[os.write(sys.stdout.fileno(), data[: select.PIPE_BUF]) :]
                    taken = time.monotonic()
                elif self._ending.is_set() and time.monotonic() - taken > _GIVE_UP_SECONDS:
                    self.incomplete = True


@contextmanager
def ignore_closed_pipe() -> Iterator[None]:
    """Continue if the reader (head, less) has closed the pipe; later output goes to /dev/null."""
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class JobRow(NamedTuple):
    """One job, or array elements in the same state."""

    job_id: str
    name: str
    text: str
    next_step: str | None


def group_jobs(lines: Sequence[JobLine]) -> list[JobRow]:
    """Return one row per job; elements of one array in the same state share a row."""
    return [_make_row(list(same)) for _, same in groupby(_sort_by_array(lines), _group_key)]


def _sort_by_array(lines: Sequence[JobLine]) -> list[JobLine]:
    """Sort elements of equal state next to each other, each array at the position of its first element."""
    arrays: dict[str, int] = {}
    groups: dict[tuple[object, ...], int] = {}
    for line in lines:
        arrays.setdefault(base_id(line.job_id), len(arrays))
        groups.setdefault(_group_key(line), len(groups))
    return sorted(lines, key=lambda line: (arrays[base_id(line.job_id)], groups[_group_key(line)]))


def _group_key(line: JobLine) -> tuple[object, ...]:
    if not array_index(line.job_id):
        return (line.job_id,)
    # Running elements have different remaining times. The row shows the smallest one.
    sentence = None if line.state is JobState.RUNNING else line.sentence
    return (base_id(line.job_id), line.name, line.state, line.reason, sentence)


def _make_row(same: list[JobLine]) -> JobRow:
    first = min(same, key=_time_left)
    if len(same) == 1:
        return JobRow(first.job_id, first.name, str(first), first.next_step)
    indices = fold_indices(int(array_index(line.job_id)) for line in same)
    which = f"{base_id(first.job_id)}_[{indices}]"
    text = (
        str(first).replace(": ", f": {len(same)} of them, at least ", 1)
        if first.state is JobState.RUNNING
        else str(first)
    )
    step = first.next_step and first.next_step.replace(first.job_id, base_id(first.job_id))
    return JobRow(which, first.name, text, step)


def _time_left(line: JobLine) -> float:
    status = line.status
    if status is None or status.time_limit is None or status.elapsed is None or status.time_limit < 0:
        return float("inf")
    return status.time_limit - status.elapsed


def format_table(rows: Iterable[Sequence[str]], *columns: Literal["left", "right"], first_width: int = 0) -> list[str]:
    """Return the lines of a table without borders. Cells are never cut, whatever the width of the terminal.

    Args:
        rows: The cells.
        columns: Alignment of each column.
        first_width: Minimum width of the first column.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for number, justify in enumerate(columns):
        table.add_column(justify=justify, no_wrap=True, min_width=None if number else first_width)
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a node list such as n[1-3] is not markup
    console = Console(width=_UNLIMITED_WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def format_jobs(lines: Sequence[JobLine]) -> list[str]:
    """Return the rows as lines of text, each followed by the suggested next step."""
    cells: list[tuple[str, str, str]] = []
    for row in group_jobs(lines):
        cells.append((row.job_id, row.name, row.text))
        if row.next_step:
            cells.append(("", "", row.next_step))
    return format_table(cells, "right", "left", "left", first_width=8) if cells else []


def job_json(line: JobLine) -> dict[str, object]:
    """Return a job as a JSON object. Times come from Slurm and have no time zone."""
    status = line.status
    return {
        "job_id": line.job_id,
        "name": line.name,
        "state": str(line.state),
        "reason": line.reason,
        "sentence": line.sentence,
        "next_step": line.next_step,
        "partition": status.partition if status else None,
        "nodes": status.nodelist if status else None,
        "submit": _iso_time(status and status.submit),
        "start": _iso_time(status and status.start),
        "end": _iso_time(status and status.end),
        "time_limit": status.time_limit if status else None,
        "elapsed": status.elapsed if status else None,
        "exit_code": status.exit_code if status else None,
        "run": str(line.run.folder) if line.run else None,
    }


def _iso_time(value: object) -> str | None:
    import datetime as dt

    return value.isoformat() if isinstance(value, dt.datetime) else None
