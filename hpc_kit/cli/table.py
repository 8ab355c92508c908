"""Jobs as rows for a person and as entries for a program."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.job_ids import array_index, base_id
from hpc_kit.slurm.option_values import fold_indices
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpc_kit.runs.status import JobLine


class Row(NamedTuple):
    """One job, or elements of an array that are told of alike."""

    job_id: str
    name: str
    text: str
    next_step: str | None


def rows(lines: Sequence[JobLine]) -> list[Row]:
    """A row a job; elements of one array in the same state are one row."""
    return [_row(list(same)) for _, same in groupby(_by_array(lines), _alike)]


def _by_array(lines: Sequence[JobLine]) -> list[JobLine]:
    """Elements that are told of alike side by side, each array where its first element stands."""
    arrays: dict[str, int] = {}
    groups: dict[tuple[object, ...], int] = {}
    for line in lines:
        arrays.setdefault(base_id(line.job_id), len(arrays))
        groups.setdefault(_alike(line), len(groups))
    return sorted(lines, key=lambda line: (arrays[base_id(line.job_id)], groups[_alike(line)]))


def _alike(line: JobLine) -> tuple[object, ...]:
    if not array_index(line.job_id):
        return (line.job_id,)
    # Of those that run, each has another time left: the one that has least speaks for all.
    sentence = None if line.state is JobState.RUNNING else line.sentence
    return (base_id(line.job_id), line.name, line.state, line.reason, sentence)


def _row(same: list[JobLine]) -> Row:
    first = min(same, key=_time_left)
    if len(same) == 1:
        return Row(first.job_id, first.name, str(first), first.next_step)
    indices = fold_indices(int(array_index(line.job_id)) for line in same)
    which = f"{base_id(first.job_id)}_[{indices}]"
    text = (
        str(first).replace(": ", f": {len(same)} of them, at least ", 1)
        if first.state is JobState.RUNNING
        else str(first)
    )
    step = first.next_step and first.next_step.replace(first.job_id, base_id(first.job_id))
    return Row(which, first.name, text, step)


def _time_left(line: JobLine) -> float:
    status = line.status
    if status is None or status.time_limit is None or status.elapsed is None or status.time_limit < 0:
        return float("inf")
    return status.time_limit - status.elapsed


def widths(rows: Iterable[Sequence[str]]) -> list[int]:
    """How wide each column of a table is: as its widest entry."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def text_of(lines: Sequence[JobLine]) -> list[str]:
    """The rows as lines of text, what to do below each."""
    found = rows(lines)
    number, name = widths([("", ""), *((row.job_id.rjust(8), row.name) for row in found)])
    text = []
    for row in found:
        text.append(f"{row.job_id:>{number}}  {row.name:<{name}}  {row.text}".rstrip())
        if row.next_step:
            text.append(f"{'':>{number + name + 4}}{row.next_step}")
    return text


def entry(line: JobLine) -> dict[str, object]:
    """A job for --json; times are Slurm's, without a zone."""
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
        "submit": _moment(status and status.submit),
        "start": _moment(status and status.start),
        "end": _moment(status and status.end),
        "time_limit": status.time_limit if status else None,
        "elapsed": status.elapsed if status else None,
        "exit_code": status.exit_code if status else None,
        "run": str(line.run.folder) if line.run else None,
    }


def _moment(value: object) -> str | None:
    import datetime as dt

    return value.isoformat() if isinstance(value, dt.datetime) else None
