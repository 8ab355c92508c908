"""Expands patterns such as `%j` and `%5t` in names of log files, and finds the target of a step's stream.

The name for a batch job is expanded once. The name for a step is expanded twice: srun expands the shared patterns, and
each task expands `%t %n %N %u`. With one of these four, tasks write to different files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

BATCH_OUTPUT = "slurm-%j.out"
ARRAY_OUTPUT = "slurm-%A_%a.out"

NO_VALUE = 4294967294
"""The number that Slurm prints for a missing value, such as `%a` outside of an array."""

_MAX_WIDTH = 10
"""Digits to which Slurm pads a number at most."""
_PATTERN = re.compile(r"%(%|\d*[a-zA-Z])")
_OF_ONE_TASK = frozenset("utnN")


class PatternValues(NamedTuple):
    """The values of the patterns; `step_id` is None for the batch script."""

    job_id: int
    job_name: str
    user: str
    node: str
    node_id: int = 0
    task_id: int = 0
    step_id: int | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None

    def of_task(self, task_id: int, node: str, node_id: int) -> PatternValues:
        """Return the values for one task of the step."""
        return self._replace(task_id=task_id, node=node, node_id=node_id)


def expand(pattern: str, names: PatternValues) -> str:
    """Expand the patterns of a file name; a backslash in it disables them.

    >>> expand("%x-%5j.out", PatternValues(job_id=12, job_name="train", user="ada", node="n1"))
    'train-00012.out'
    """
    if "\\" in pattern:
        return re.sub(r"\\(\\?)", r"\1", pattern)
    return _PATTERN.sub(lambda match: _value(match, names), pattern)


def batch_path(pattern: str, names: PatternValues, work_dir: str) -> Path:
    """Return the path of a batch script's log."""
    return Path(work_dir, expand(pattern, names))


def _value(match: re.Match[str], names: PatternValues) -> str:
    text = match[1]
    if text == "%":
        return "%"
    width, letter = min(int(text[:-1] or 0), _MAX_WIDTH), text[-1]
    array_task = NO_VALUE if names.array_task_id is None else names.array_task_id
    known: dict[str, int | str] = {
        "A": names.job_id if names.array_job_id is None else names.array_job_id,
        "a": array_task,
        "b": array_task % 10,
        "J": names.job_id,
        "j": names.job_id,
        "N": names.node,
        "n": names.node_id,
        "s": "batch" if names.step_id is None else names.step_id,
        "t": names.task_id,
        "u": names.user,
        "x": names.job_name,
    }
    # An unknown pattern stays as it is.
    value = known.get(letter, match[0])
    suffix = f".{names.step_id}" if letter == "J" and names.step_id is not None else ""
    return value if isinstance(value, str) else f"{value:0{width}d}{suffix}"


class StreamTarget(NamedTuple):
    """The target of one stream of a step. Without path and task, all tasks share srun's own stream.

    Attributes:
        path: Pattern of a file; None for srun's own stream.
        per_task: Each task opens the file, because its name differs between tasks.
        task: The only task with srun's own stream; all other tasks get /dev/null.
    """

    path: str | None = None
    per_task: bool = False
    task: int | None = None


def stream_target(pattern: str | None, ntasks: int) -> StreamTarget:
    """Read the argument of srun's --output, --error or --input as srun does.

    >>> stream_target("2", 4)
    StreamTarget(path=None, per_task=False, task=2)
    """
    if pattern is None or pattern.lower().startswith("all") or pattern.startswith("-"):
        return StreamTarget()
    if pattern.lower() in {"none", "/dev/null"}:
        return StreamTarget(path="/dev/null", per_task=True)
    # A larger number is the name of a file.
    if pattern.isdecimal() and int(pattern) < ntasks:
        return StreamTarget(task=int(pattern))
    letters = {match[1][-1] for match in _PATTERN.finditer(pattern)}
    return StreamTarget(path=pattern, per_task="\\" not in pattern and bool(letters & _OF_ONE_TASK))
