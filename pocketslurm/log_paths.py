"""Names of log files: what Slurm makes of `%j`, `%5t` and the other patterns, and where a stream of a step goes.

A batch job's name is expanded whole. A step's is expanded twice: what all tasks share by srun, and `%t %n %N %u` once a
task; a name with one of these four makes a file of its own for each task that has another expansion.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

BATCH_OUTPUT = "slurm-%j.out"
ARRAY_OUTPUT = "slurm-%A_%a.out"

NO_VALUE = 4294967294
"""What Slurm prints for a number that the job does not have, as `%a` outside of an array."""

_MAX_WIDTH = 10
_PATTERN = re.compile(r"%(%|\d*[a-zA-Z])")
_OF_ONE_TASK = frozenset("utnN")


class Names(NamedTuple):
    """The values behind the patterns; `step_id` None stands for the batch script."""

    job_id: int
    job_name: str
    user: str
    node: str
    node_id: int = 0
    task_id: int = 0
    step_id: int | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None

    def of_task(self, task_id: int, node: str, node_id: int) -> Names:
        """The same step, seen from one of its tasks."""
        return self._replace(task_id=task_id, node=node, node_id=node_id)


def expand(pattern: str, names: Names) -> str:
    """The file name that Slurm makes of a pattern; a backslash in it switches the patterns off.

    >>> expand("%x-%5j.out", Names(job_id=12, job_name="train", user="ada", node="n1"))
    'train-00012.out'
    """
    if "\\" in pattern:
        return re.sub(r"\\(\\?)", r"\1", pattern)
    return _PATTERN.sub(lambda match: _value(match, names), pattern)


def batch_path(pattern: str, names: Names, work_dir: str) -> Path:
    """Where a batch script's stream goes."""
    return Path(work_dir, expand(pattern, names))


def _value(match: re.Match[str], names: Names) -> str:
    text = match[1]
    if text == "%":
        return "%"
    width, letter = min(int(text[:-1] or 0), _MAX_WIDTH), text[-1]
    known = _values(names)
    if letter not in known:
        return match[0]
    value = known[letter]
    return value if isinstance(value, str) else f"{value:0{width}d}" + _step_suffix(letter, names)


def _values(names: Names) -> dict[str, int | str]:
    array_task = NO_VALUE if names.array_task_id is None else names.array_task_id
    return {
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


def _step_suffix(letter: str, names: Names) -> str:
    return f".{names.step_id}" if letter == "J" and names.step_id is not None else ""


class Target(NamedTuple):
    """Where one stream of a step goes; with no path and no task it is srun's own stream, shared by all tasks.

    Attributes:
        path: Pattern of a file, None for srun's own stream.
        per_task: The file's name differs between tasks, so the task's side opens it.
        task: The one task that has srun's own stream; the others have /dev/null.
    """

    path: str | None = None
    per_task: bool = False
    task: int | None = None


def target(pattern: str | None, ntasks: int) -> Target:
    """Read the argument of srun's --output, --error or --input as srun does.

    >>> target("none", 4), target("2", 4), target("rank-%t.log", 4)
    (Target(path='/dev/null', per_task=True, task=None), Target(path=None, per_task=False, task=2), \
Target(path='rank-%t.log', per_task=True, task=None))
    """
    if pattern is None or pattern.lower().startswith("all") or pattern.startswith("-"):
        return Target()
    if pattern.lower() in {"none", "/dev/null"}:
        return Target(path="/dev/null", per_task=True)
    if pattern.isdecimal() and int(pattern) < ntasks:
        return Target(task=int(pattern))
    letters = {match[1][-1] for match in _PATTERN.finditer(pattern)}
    return Target(path=pattern, per_task="\\" not in pattern and bool(letters & _OF_ONE_TASK))
