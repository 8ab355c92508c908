"""The table of a map over arrays: which element of which array got which arguments, in one file for all arrays."""

from __future__ import annotations

import json
import os
import reprlib
import warnings
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.runs.record import reason
from hpc_kit.slurm.job_ids import base_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from submitit.core.utils import DelayedSubmission

SUFFIX = "_table.jsonl"

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 200


class Row(NamedTuple):
    """One element."""

    number: int
    """Its place among all that were submitted together, over all arrays."""

    job_id: str
    """Slurm's: `12_3`."""

    function: str
    args: tuple[str, ...]
    """Each as `repr` shows it, cut to 200 characters."""

    kwargs: dict[str, str]


def add(folder: Path, ids: Sequence[str], submissions: Sequence[DelayedSubmission], count: int) -> None:
    """Write down which of the last `count` elements got which arguments; the table has the first array's name.

    Where that cannot be written it is a warning: the jobs are in the queue, and their pickles hold the arguments too.
    """
    path = folder / f"{base_id(ids[0])}{SUFFIX}"
    rows = [_row(index, ids[index], submissions[index]) for index in range(len(ids) - count, len(ids))]
    try:
        # Arguments are nobody else's business.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(each._asdict(), ensure_ascii=False) + "\n" for each in rows)
    except OSError as error:
        warnings.warn(f"no table of this map: {reason(error)}", stacklevel=2)


def _row(index: int, job_id: str, submission: DelayedSubmission) -> Row:
    called = submission.function
    name = getattr(called, "__qualname__", None) or type(called).__qualname__
    kwargs = {key: _short.repr(value) for key, value in submission.kwargs.items()}
    return Row(index, job_id, name, tuple(map(_short.repr, submission.args)), kwargs)


def read(path: Path) -> list[Row]:
    """All rows, in the order of the submissions.

    Raises:
        OSError: There is no such table.
    """
    values = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Row(**{**value, "args": tuple(value["args"])}) for value in values]
