"""When a job would start: the running ones are taken to end at their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketslurm.errors import Refused
from pocketslurm.queue import node_selection, nodes
from pocketslurm.queue.state import now

if TYPE_CHECKING:
    from pocketslurm.queue.job_size import Request
    from pocketslurm.queue.node_selection import Share
    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import State

YEAR = 365 * 86400
"""How long Slurm takes a job without a limit to run."""


def expected_end(job: Job) -> float:
    """When a running job ends at the latest."""
    return job.start_time + job.suspended + (job.time_limit if job.time_limit >= 0 else YEAR)


def forecast(state: State, job: Job, request: Request) -> tuple[float, list[Share]]:
    """The moment, and what it would be given.

    Raises:
        Refused: Never.
    """
    partition = nodes.partition(state.settings, job.partition)
    totals = nodes.in_partition(state.settings, partition)
    running = sorted(state.jobs("state = 'RUNNING' OR completing"), key=expected_end)
    moment = max(now(), job.begin_time)
    while True:
        shares = node_selection.allocate(request, node_selection.free_nodes(totals, running), totals)
        if shares is not None:
            return moment, shares
        if not running:
            raise Refused(denied=node_selection.NO_NODES)
        moment = max(moment, expected_end(running.pop(0)))
