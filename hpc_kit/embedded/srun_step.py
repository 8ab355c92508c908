"""A step enters its job: at once where there is room, else as soon as other steps leave some."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hpc_kit.embedded import processes
from hpc_kit.embedded.records import BATCH_STEP, Step
from hpc_kit.embedded.refused import Refused
from hpc_kit.embedded.srun_allocate import place
from hpc_kit.embedded.srun_choose import Busy
from hpc_kit.embedded.srun_job import BUSY, OVER, Interrupted, NotNow, catching
from hpc_kit.embedded.srun_orders import Inbox
from hpc_kit.embedded.state import now

if TYPE_CHECKING:
    from hpc_kit.embedded.records import Job
    from hpc_kit.embedded.srun_request import StepRequest
    from hpc_kit.embedded.srun_talk import Talk
    from hpc_kit.embedded.state import State

_LOOK_SECONDS = 0.1
_REMIND_SECONDS = 60.0


def create(
    state: State, job: Job, request: StepRequest, draft: Step, talk: Talk, *, patience: float | None = None
) -> tuple[Step, Inbox]:
    """Enter a step, as soon as it fits; where it takes orders comes with it.

    Args:
        state: The state directory.
        job: The step's job.
        request: Its size.
        draft: The step, but for its number and place.
        talk: For what is to be said meanwhile.
        patience: Seconds after which it is refused, None for any time.

    Raises:
        Refused: It never fits, or the job is over.
    """
    began = time.monotonic()
    reminder = 0.0
    try:
        with catching():
            while (created := _try(state, job, request, draft)) is None:
                waited = time.monotonic() - began
                if patience is not None and waited >= patience:
                    raise NotNow(denied=BUSY)
                if waited >= reminder:
                    word = "still" if reminder else "temporarily"
                    talk.info(f"Job {job.job_id} step creation {word} disabled, retrying ({BUSY})")
                    reminder += _REMIND_SECONDS
                state.close()
                time.sleep(_LOOK_SECONDS)
    except Interrupted as interrupted:
        talk.info(f"Cancelled pending job step with signal {interrupted.number}")
        raise Refused(denied=OVER) from None
    if reminder:
        talk.info(f"Step created for job {job.job_id}")
    return created


def _try(state: State, job: Job, request: StepRequest, draft: Step) -> tuple[Step, Inbox] | None:
    """Enter the step, or None while there is no room."""
    with state.transaction():
        present = state.job(job.job_id)
        if present is None or present.state != "RUNNING" or present.attempt != job.attempt:
            raise Refused(denied=OVER)
        others = [
            step
            for step in state.steps(job.job_id)
            if step.state == "RUNNING" and step.step_id != BATCH_STEP and processes.alive(step.srun)
        ]
        try:
            found = place(present, others, request, state.settings.memory_of_node)
        except Busy:
            return None
        step_id = state.next_step_id(job.job_id)
        step = draft._replace(
            step_id=step_id,
            nodes=found.nodes,
            cpus=found.cpus,
            mem=found.mem,
            gpus=found.gpus,
            tasks=found.tasks,
            start_time=now(),
        )
        inbox = Inbox(state.directory, job.job_id, step_id)
        state.add_step(step)
    return step, inbox
