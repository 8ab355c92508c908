"""Parses job ids such as `12`, `12_3`, `12_[1-3,7]`, `12+1` and `12.0`, and finds their records."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.errors import HpcKitError
from hpc_kit.slurm.option_values import fold_indices, parse_array
from pocketslurm.errors import INVALID_JOB_ID, PlainError
from pocketslurm.queue.state import now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import StateDirectory


_JOB = re.compile(r"([0-9]+)(?:_(?:([0-9]+)|\[([^\]]+)\]|(\*)))?(?:\+([0-9]+))?(?:\.([a-z0-9]+(?:\+[0-9]+)?))?")


class JobSelector(NamedTuple):
    """An id on a command line: a job, array or heterogeneous job; some tasks, one component, or one step of it."""

    text: str
    job_id: int
    tasks: tuple[int, ...] | None = None
    component: int | None = None
    step: str | None = None


def parse_selectors(text: str) -> list[JobSelector]:
    """Read a list of ids.

    Raises:
        ValueError: The first word of it that is none.
    """
    # A comma inside brackets separates indices, not ids.
    return [_parse_selector(word) for word in re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", text)]


def _parse_selector(word: str) -> JobSelector:
    match = _JOB.fullmatch(word.strip())
    if not match or not int(match[1]) or int(match[1]) >= 2**32:
        raise ValueError(word)
    tasks: tuple[int, ...] | None = (int(match[2]),) if match[2] else None
    if match[3]:
        try:
            tasks = tuple(array_indices(match[3]))
        except HpcKitError:
            raise ValueError(word) from None
    return JobSelector(word.strip(), int(match[1]), tasks, int(match[5]) if match[5] else None, match[6])


def find_selected(
    state: StateDirectory, selector: JobSelector, condition: str = "1", values: Sequence[object] = ()
) -> list[Job]:
    """Return the records of an id; pending tasks that it names become separate jobs."""
    # Only this form uses the indices of the columns.
    where = f"(job_id = ? OR array_job_id = ? OR het_job_id = ?) AND ({condition})"
    jobs = state.jobs(where, (*[selector.job_id] * 3, *values))
    if selector.component is not None and any(job.het_job_id for job in jobs):
        return [job for job in jobs if job.het_offset == selector.component]
    if selector.tasks is None:
        # The number of an array's last task is the array's own, so it names them all.
        return jobs
    found = []
    for job in jobs:
        if job.array_task_id in selector.tasks:
            found.append(job)
        elif job.array_waiting:
            named = [index for index in array_indices(job.array_waiting) if index in selector.tasks]
            found += [job._replace(array_task_id=index, array_waiting="") for index in named]
    return found


def find_by_text(state: StateDirectory, text: str, condition: str = "1", values: Sequence[object] = ()) -> list[Job]:
    """Return all records of a list of ids, each once.

    Raises:
        ValueError: A word of the list is no id.
    """
    found = {
        (job.job_id, job.array_task_id): job
        for each in parse_selectors(text)
        for job in find_selected(state, each, condition, values)
    }
    return list(found.values())


FINISHED = "Job has already finished"


def column_filter(options: Mapping[str, str], columns: Mapping[str, str]) -> Callable[[Job], bool]:
    """Return a check of a job by options that list values of a column of its record.

    Args:
        options: The options of a command.
        columns: The column of each such option, such as `{"jobname": "name"}`.
    """
    wanted = {column: options[option].split(",") for option, column in columns.items() if option in options}
    return lambda job: all(getattr(job, column) in values for column, values in wanted.items())


def recent_jobs(state: StateDirectory) -> tuple[str, tuple[float]]:
    """Return the condition for jobs that squeue and scontrol show, and its value."""
    since = now() - state.settings.min_job_age
    return "state IN ('PENDING', 'RUNNING') OR completing OR end_time > ?", (since,)


def find_jobs(state: StateDirectory, word: str) -> list[Job]:
    """Return the records that an id or `jobname=...` names."""
    name, equals, value = word.partition("=")
    if equals and name.lower() in {"jobname", "name"}:
        found = [job for job in state.active_jobs() if job.name == value]
    else:
        try:
            found = find_by_text(state, value if equals else word, *recent_jobs(state))
        except ValueError:
            found = []
    if not found:
        raise PlainError(f"{INVALID_JOB_ID} for job {value if equals else word}")
    return found


def own_record(state: StateDirectory, job: Job) -> Job:
    """Return the record of a job or a task; a pending task is split off its array."""
    current = state.job(job.job_id)
    if current is None:
        raise PlainError(f"{INVALID_JOB_ID} for job {job.display_id}")
    if current.array_waiting and job.array_task_id is not None:
        return split_array_task(state, current, job.array_task_id)
    return current


def array_indices(text: str) -> list[int]:
    """Parse the indices that `fold_indices` has written."""
    return list(parse_array(text).indices) if text else []


def split_array_task(state: StateDirectory, waiting: Job, index: int) -> Job:
    """Give one waiting task its own record, in one transaction with what is then done to it.

    The last one that is left takes over the array's own record and number, as in Slurm.
    """
    left = [each for each in array_indices(waiting.array_waiting) if each != index]
    if not left:
        state.update_job(waiting.job_id, array_task_id=index, array_waiting="")
        return waiting._replace(array_task_id=index, array_waiting="")
    task = waiting._replace(job_id=state.next_job_id(), array_task_id=index, array_waiting="")
    state.add_job(task)
    state.update_job(waiting.job_id, array_waiting=fold_indices(left))
    return task
