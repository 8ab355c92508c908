"""Creates a step in its job, and waits for resources that other steps use."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm import processes
from pocketslurm.errors import JOB_OVER, CommandError
from pocketslurm.queue.messages import SrunInbox
from pocketslurm.queue.records import BATCH_STEP
from pocketslurm.queue.state import now
from pocketslurm.steps.allocation import BUSY, Busy, Interrupted, interruptible
from pocketslurm.steps.placement import NoRoomNow, place_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pocketslurm.queue.records import Job, Step
    from pocketslurm.queue.state import StateDirectory
    from pocketslurm.steps.messages import SrunMessages
    from pocketslurm.steps.request import StepRequest

_LOOK_SECONDS = 0.1
_REMIND_SECONDS = 60.0


class PendingPart(NamedTuple):
    """A part of a step before it has its place: the component that it is for, its size, and what is known of it."""

    job: Job
    request: StepRequest
    draft: Step


Created = list[tuple["Step", SrunInbox]]
"""The parts of a step, and where each takes orders."""


def merge_step_parts(steps: Sequence[Step]) -> Step:
    """Merge all parts of a step into one, with nodes in order and tasks numbered consecutively."""
    if len(steps) == 1:
        return steps[0]
    numbers = count()
    return steps[0]._replace(
        nodes=[node for step in steps for node in step.nodes],
        cpus=[cpus for step in steps for cpus in step.cpus],
        mem=[mem for step in steps for mem in step.mem],
        gpus=[gpus for step in steps for gpus in step.gpus],
        tasks=[[next(numbers) for _ in node] for step in steps for node in step.tasks],
    )


def create_step(
    state: StateDirectory, parts: Sequence[PendingPart], messages: SrunMessages, *, timeout: float | None = None
) -> Created:
    """Create a step when all its parts fit, and return them with their pipes for orders.

    Args:
        state: The state directory.
        parts: Its parts.
        messages: Prints messages during the wait.
        timeout: Seconds to wait before it is refused; None for any time.

    Raises:
        CommandError: The step can never fit, or the job has ended.
    """
    job_id = parts[0].job.job_id
    began = time.monotonic()
    reminder = 0.0
    try:
        with interruptible():
            while (created := _try(state, parts)) is None:
                waited = time.monotonic() - began
                if timeout is not None and waited >= timeout:
                    raise _unable(Busy(denied=BUSY), job_id)
                if waited >= reminder:
                    word = "still" if reminder else "temporarily"
                    messages.info(f"Job {job_id} step creation {word} disabled, retrying ({BUSY})")
                    reminder += _REMIND_SECONDS
                state.close()
                time.sleep(_LOOK_SECONDS)
    except Interrupted as interrupted:
        messages.info(f"Cancelled pending job step with signal {interrupted.number}")
        raise _unable(CommandError(denied=JOB_OVER), job_id) from None
    if reminder:
        messages.info(f"Step created for job {job_id}")
    return created


def _unable(refused: CommandError, job_id: int) -> CommandError:
    """Return the error with the controller's message as srun prints it for a step."""
    denied = [f"error: Unable to create step for job {job_id}: {refused.denied}"] if refused.denied else []
    return type(refused)(*refused.lines, *denied)


def _try(state: StateDirectory, parts: Sequence[PendingPart]) -> Created | None:
    """Record the step. Return None while there is no room for one of its parts."""
    placed: list[Step] = []
    # One transaction: no other srun may take the resources before the step is entered.
    with state.transaction():
        for part in parts:
            try:
                placed.append(_placed(state, part))
            except NoRoomNow:
                return None
            except CommandError as refused:
                raise _unable(refused, part.job.job_id) from None
        # The parts of a step in a heterogeneous job share one number.
        number = state.next_step_id(parts[0].job.leader_id)
        created = []
        for draft in placed:
            step = draft._replace(step_id=number, start_time=now())
            created.append((step, SrunInbox(state.directory, step.job_id, step.label)))
            state.add_step(step)
    return created


def _placed(state: StateDirectory, part: PendingPart) -> Step:
    """Return a part with its nodes."""
    job = state.job(part.job.job_id)
    # A job that was requeued meanwhile runs in another attempt, and this srun belongs to the earlier one.
    if job is None or job.state != "RUNNING" or job.attempt != part.job.attempt:
        raise CommandError(denied=JOB_OVER)
    others = [
        step
        for step in state.steps(job.job_id)
        # The batch script uses no resources of its own, and a killed srun has freed those of its step.
        if step.state == "RUNNING" and step.step_id != BATCH_STEP and processes.is_alive(step.srun)
    ]
    found = place_step(job, others, part.request, state.settings.memory_of_node)
    return part.draft._replace(**found._asdict())
