"""Job arrays: their waiting tasks are one record, and a task gets its own when something happens to it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.slurm.option_values import fold_indices, parse_array

if TYPE_CHECKING:
    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import State


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
