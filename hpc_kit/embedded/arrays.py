"""Job arrays: their waiting tasks are one record, and a task gets its own when something happens to it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.slurm.values import parse_array

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpc_kit.embedded.records import Job
    from hpc_kit.embedded.state import State


def fold_indices(indices: Iterable[int]) -> str:
    """Indices as Slurm writes them: a step is told only of many.

    >>> fold_indices([0, 1, 2, 7]), fold_indices([1, 3, 5]), fold_indices(range(0, 12, 2))
    ('0-2,7', '1,3,5', '0-10:2')
    """
    numbers = sorted(indices)
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    regular = step > 1 and numbers == list(range(numbers[0], numbers[-1] + 1, step))
    if regular and len(numbers) > 5 and numbers[-1] - numbers[0] >= 10:
        return f"{numbers[0]}-{numbers[-1]}:{step}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def indices_of(text: str) -> list[int]:
    """The indices that `fold_indices` wrote down."""
    return list(parse_array(text).indices) if text else []


def split(state: State, waiting: Job, index: int) -> Job:
    """Give one waiting task its own record, in one transaction with what is then done to it.

    The last one that is left takes over the array's own record and number, as in Slurm.
    """
    left = [each for each in indices_of(waiting.array_waiting) if each != index]
    if not left:
        state.update_job(waiting.job_id, array_task_id=index, array_waiting="")
        return waiting._replace(array_task_id=index, array_waiting="")
    task = waiting._replace(job_id=state.next_job_id(), array_task_id=index, array_waiting="")
    state.add_job(task)
    state.update_job(waiting.job_id, array_waiting=fold_indices(left))
    return task
