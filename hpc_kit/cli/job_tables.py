"""Jobs in tables and as JSON: one row for each job, or for elements of an array in the same state."""

from __future__ import annotations

import datetime as dt
import math
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from hpc_kit.cli.output import format_table
from hpc_kit.slurm.job_ids import array_index, base_id
from hpc_kit.slurm.nodelist import expand
from hpc_kit.slurm.option_values import fold_indices
from hpc_kit.slurm.start_forecast import format_duration, remaining_seconds
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from hpc_kit.runs.progress import RunProgress
    from hpc_kit.runs.status import JobLine


_LEAST_WIDTH = 30
"""Columns of the last column; behind longer names, the terminal wraps the line itself."""


class StatusRow(NamedTuple):
    """One job, or array elements in the same state."""

    job_id: str
    name: str
    text: str
    next_step: str | None
    state: JobState
    age: str
    """Time since the submission."""

    duration: str
    """Time for which the job runs or ran."""


def group_jobs(lines: Sequence[JobLine]) -> list[StatusRow]:
    """Return one row per job; elements of one array in the same state share a row."""
    arrays: dict[str, dict[tuple[object, ...], list[JobLine]]] = {}
    for line in lines:
        arrays.setdefault(base_id(line.job_id), {}).setdefault(_group_key(line), []).append(line)
    return [_make_row(group) for groups in arrays.values() for group in groups.values()]


def _group_key(line: JobLine) -> tuple[object, ...]:
    if not array_index(line.job_id):
        # Jobs of two clusters may have the same id.
        return (line.job_id, line.name)
    # Running elements have different remaining times. The row shows the smallest one.
    sentence = "" if line.state is JobState.RUNNING else line.sentence or ""
    # One failure on several nodes is one row.
    for host in expand(line.status.nodelist) if sentence and line.status and line.status.nodelist else ():
        sentence = sentence.replace(f" on {host} ", " ")
    return (base_id(line.job_id), line.name, line.state, line.reason, sentence)


def _make_row(group: list[JobLine]) -> StatusRow:
    first = min(group, key=_time_left)
    job_id, text, next_step = first.job_id, str(first), first.next_step
    if len(group) > 1:
        next_step = next_step and next_step.replace(job_id, base_id(job_id))
        job_id = fold_elements([line.job_id for line in group])
        if first.state is JobState.RUNNING:
            text = text.replace(": ", f": {len(group)} of them, at least ", 1)
    age = (dt.datetime.now() - first.submitted).total_seconds() if first.submitted else None  # noqa: DTZ005 - as Slurm
    return StatusRow(job_id, first.name, text, next_step, first.state, _short_time(age), _short_time(first.duration))


def fold_elements(job_ids: Sequence[str]) -> str:
    """Return the ids of elements of one array as Slurm writes them: `12_[0-3,7]`."""
    if len(job_ids) == 1:
        return job_ids[0]
    return f"{base_id(job_ids[0])}_[{fold_indices(int(array_index(job_id)) for job_id in job_ids)}]"


def _short_time(seconds: float | None) -> str:
    """Return a duration in its largest unit: 45 s, 9 min, 3 h, 2 d."""
    return "" if seconds is None else " ".join(format_duration(max(0, round(seconds))).split()[:2])


def _time_left(line: JobLine) -> float:
    left = remaining_seconds(line.status) if line.status is not None else None
    return float("inf") if left is None else left


def format_jobs(lines: Sequence[JobLine]) -> list[str]:
    """Return the rows as lines of text with a header, each row followed by the suggested next step."""
    cells = [("job", "name", "age", "ran", "state")]
    colours: list[tuple[str, str | None]] = [("", None)]
    hints: set[str] = set()
    rows = group_jobs(lines)
    for row in rows:
        first, *others = _wrap_text(row.text, rows)
        cells.append((row.job_id, row.name, row.age, row.duration, first))
        colours.append((str(row.state), _colour(row.state)))
        cells += [("", "", "", "", other) for other in others]
        colours += [("", None)] * len(others)
        # Many jobs may wait for the same reason.
        hint = row.next_step and row.next_step.replace(base_id(row.job_id), "ID")
        if row.next_step and hint not in hints:
            hints.add(str(hint))
            cells.append(("", "", "", "", row.next_step))
            colours.append(("", None))
    table = format_table(cells, "right", "left", "right", "right", "left", first_width=8)
    # The state is coloured afterwards: escape sequences would count towards the width of a column.
    return [
        text.replace(f"  {word}", f"  {click.style(word, fg=colour)}", 1) if colour else text
        for text, (word, colour) in zip(table, colours, strict=True)
    ]


def _wrap_text(text: str, rows: Sequence[StatusRow]) -> list[str]:
    """Return the lines of the last column on a terminal. A program that reads the table gets one line for a job."""
    if not sys.stdout.isatty():
        return [text]
    longest = (max(len(getattr(row, name)) for row in rows) for name in ("job_id", "name", "age", "duration"))
    width = shutil.get_terminal_size((80, 24)).columns - sum(longest) - 8
    if width < _LEAST_WIDTH:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [text]


def _colour(state: JobState) -> str | None:
    if state is JobState.COMPLETED:
        return "green"
    if state.failed:
        return "red"
    return {JobState.RUNNING: "cyan", JobState.PENDING: "yellow"}.get(state)


def job_json(line: JobLine) -> dict[str, object]:
    """Return a job as a JSON object. Times come from Slurm and have no time zone."""
    status, history, progress = line.status, line.history, line.progress
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
        "attempts": len(history.attempts) or None,
        "lost": history.lost if history.attempts else None,
        "run": str(line.run.folder) if line.run else None,
        "progress": _progress_json(progress) if progress else None,
    }


def _progress_json(progress: RunProgress) -> dict[str, object]:
    """Return the progress as a JSON object. JSON has no NaN: such figures are null."""
    return {
        **progress._asdict(),
        "numbers": {name: value if math.isfinite(value) else None for name, value in progress.numbers.items()},
        "losses": [value if math.isfinite(value) else None for value in progress.losses],
        "slowest": progress.slowest._asdict() if progress.slowest else None,
    }


def _iso_time(value: object) -> str | None:
    return value.isoformat() if isinstance(value, dt.datetime) else None
