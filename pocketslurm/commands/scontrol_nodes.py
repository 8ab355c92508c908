"""`scontrol update NodeName=...`: an administrator takes nodes out of the queue's reach, and back in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pocketslurm.errors import Problem
from pocketslurm.queue import messages, nodes
from pocketslurm.queue.job_size import NO_SUCH_NAME
from pocketslurm.queue.state import now
from pocketslurm.queue.wakeup import poke
from pocketslurm.users import user_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import State


def update_nodes(state: State, given: Mapping[str, str]) -> int:
    """Take nodes out, or back in, for `NodeName=... State=... Reason=...`; the exit status."""
    wanted = nodes.expand_names(given["nodename"])
    if not wanted or not set(wanted) <= set(nodes.names(state.settings)):
        raise Problem(f"slurm_update error: {NO_SUCH_NAME}")
    new = given.get("state", "").upper()
    if new not in {"DOWN", "DRAIN", "RESUME", "IDLE", "UNDRAIN", "FAIL"}:
        raise Problem(f"Invalid input: state={given.get('state', '')}\nRequest aborted")
    if new in {"DOWN", "DRAIN", "FAIL"} and not given.get("reason"):
        raise Problem("You must specify a reason when DOWNING or DRAINING a node. Request denied")
    user = user_name(os.getuid())
    lost: list[Job] = []
    with state.transaction():
        for name in wanted:
            out = nodes.Out("DOWN" if new == "DOWN" else "DRAIN", given.get("reason", ""), user, now())
            nodes.take_out(state, name, out if new in {"DOWN", "DRAIN", "FAIL"} else None)
        if new == "DOWN":
            lost = [job for job in state.jobs("state = 'RUNNING'") if set(job.nodes) & set(wanted)]
        for job in lost:
            again = job.batch and job.requeue
            over = {"state": "PENDING" if again else "NODE_FAIL", "reason": "NodeDown", "completing": True}
            state.update_job(job.job_id, end_time=now(), **over)
            state.order(job.job_id, *messages.write(messages.Cancel("NODE FAILURE")))
    for job in lost:
        poke(state.directory, job.job_id)
    return 0
