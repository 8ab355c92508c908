"""A scheduling pass: finds the pending jobs that start now, and the reasons of all other ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pocketslurm import processes
from pocketslurm.errors import NOT_AVAILABLE, CommandError
from pocketslurm.queue import job_ids, node_selection, nodes
from pocketslurm.queue.dependencies import Verdict, outlook, ready_tasks
from pocketslurm.queue.job_size import JobRequest, decode_size
from pocketslurm.queue.node_selection import ComponentRequest, candidates, select_for_components
from pocketslurm.queue.state import now

if TYPE_CHECKING:
    from pocketslurm.queue.node_selection import NodeResources, NodeShare
    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import StateDirectory


DEPTH = 1000
"""Number of pending jobs that one pass considers. The next jobs follow when these have left the queue."""

REQUEUED_HELD = "job requeued in held state"
LAUNCH_FAILED_HELD = "launch failed requeued held"
HELD = ("JobHeldUser", "JobHeldAdmin", REQUEUED_HELD, LAUNCH_FAILED_HELD)


class PassResult(NamedTuple):
    """The result of a scheduling pass."""

    started: list[Job]
    next_pass_at: float
    """Time of the next pass if nothing else happens before; 0 if none is necessary."""


class SchedulingPass:
    """A pass over the queue, inside one transaction."""

    def __init__(self, state: StateDirectory, now: float) -> None:
        self.state = state
        self.now = now
        self.next_pass_at = 0.0
        self.started: list[Job] = []
        # A completing job has ended, but its processes still use the nodes.
        self.running = state.jobs("state = 'RUNNING' OR completing")
        self.totals = nodes.all_of(state)
        self.free = node_selection.free_nodes(self.totals, self.running)
        # Nodes reserved for earlier jobs. Otherwise a large job would wait as long as small ones come.
        self.reserved: set[str] = set()

    def run(self) -> PassResult:
        """Start the jobs that can start, and store the reasons of the other jobs."""
        first = f"priority DESC, job_id LIMIT {DEPTH}"
        for job in self.state.jobs("state = 'PENDING' AND NOT completing AND het_offset = 0", order=first):
            parts = self.state.components(job)
            reasons = [self._why_not_yet(part) for part in parts]
            if not any(reasons):
                reasons = self._start(parts)
            for part, reason in zip(parts, reasons, strict=True):
                if reason and reason != part.reason and self.state.job(part.job_id):
                    self.state.update_job(part.job_id, reason=reason)
        return PassResult(self.started, self.next_pass_at)

    def _wake_at(self, moment: float) -> None:
        if moment and (not self.next_pass_at or moment < self.next_pass_at):
            self.next_pass_at = moment

    def _why_not_yet(self, job: Job) -> str | None:
        """Return the reason why a job cannot start yet, before nodes are considered; None if there is none."""
        if job.holder and not processes.is_alive(job.holder):
            # The srun or salloc that waits for the job was killed.
            self._drop(job, "CANCELLED", "None")
            return "None"
        if job.deadline:
            self._wake_at(job.deadline)
            if job.deadline <= self.now:
                self._drop(job, "DEADLINE", "DeadLine")
                return "DeadLine"
        if job.dependency and (reason := self._check_dependency(job)):
            return reason
        if job.priority == 0:
            # The reason of a held job shows who may release it.
            return job.reason if job.reason in HELD else "JobHeldUser"
        if job.begin_time > self.now:
            self._wake_at(job.begin_time)
            return "BeginTime"
        if not job.eligible_time:
            self.state.update_job(job.job_id, eligible_time=self.now)
        return None

    def _drop(self, job: Job, state: str, reason: str) -> None:
        """End a job that has not started."""
        self.state.update_components(job.leader_id, state=state, reason=reason, end_time=self.now)

    def _check_dependency(self, job: Job) -> str | None:
        found = outlook(self.state, job, self.now)
        self._wake_at(found.next_look_at)
        if found.verdict is Verdict.MET:
            # With aftercorr, some tasks of an array may still wait for their task of the other array.
            if not ready_tasks(self.state, job):
                self.state.update_job(job.job_id, dependency="")
            return None
        if found.verdict is Verdict.OPEN:
            return "Dependency"
        if job.options.get("kill-on-invalid-dep", "").lower() == "yes":
            self._drop(job, "CANCELLED", "DependencyNeverSatisfied")
        return "DependencyNeverSatisfied"

    def _start(self, parts: list[Job]) -> list[str | None]:
        """Start a job with all of its components, or the tasks of an array that fit. Return the pending reasons."""
        never = [self._why_never(job) for job in parts]
        if any(never):
            return never
        job = parts[0]
        if job.array_job_id is None:
            return self._place(parts)
        if job.array_task_id is None:
            return [self._start_array(job, decode_size(job.request), self._totals(job))]
        return ["JobArrayTaskLimit"] if self._is_full(job) else self._place(parts)

    def _why_never(self, job: Job) -> str | None:
        partition = nodes.partition(self.state.settings, job.partition)
        try:
            never = node_selection.impossible(
                decode_size(job.request), nodes.in_partition(self.state.settings, partition)
            )
        except CommandError:
            never = "BadConstraints"
        return never or ("PartitionTimeLimit" if nodes.over_limit(partition, job.time_limit) else None)

    def _totals(self, job: Job) -> list[NodeResources]:
        """Return the usable nodes of a job's partition with all their resources."""
        names = nodes.of_partition(self.state.settings, nodes.partition(self.state.settings, job.partition))
        return [node for node in self.totals if node.name in names]

    def _start_array(self, job: Job, request: JobRequest, totals: list[NodeResources]) -> str | None:
        ready = ready_tasks(self.state, job)
        for index in job_ids.array_indices(job.array_waiting):
            if self._is_full(job):
                return "JobArrayTaskLimit"
            if ready is not None and index not in ready:
                continue
            shares = node_selection.select_nodes(request, self._free(totals), totals)
            if shares is None:
                return self._reserve(request, totals)
            # The task becomes a job of its own, and the record of the array keeps the waiting tasks.
            task = job_ids.split_array_task(self.state, job, index)
            job = self.state.job(job.job_id) or job
            self._begin(task, shares)
        return None if ready is None or not job.array_waiting else "Dependency"

    def _is_full(self, job: Job) -> bool:
        """Return whether the array of a job has reached its limit of running tasks."""
        running = sum(other.array_job_id == job.array_job_id for other in self.running)
        return bool(job.array_at_once) and running >= job.array_at_once

    def _place(self, parts: list[Job]) -> list[str | None]:
        """Start a job if all of its components find nodes. As with Slurm, no two components share a node."""
        requests = [(decode_size(job.request), self._totals(job)) for job in parts]
        found = select_for_components(
            [ComponentRequest(request, self._free(totals), totals) for request, totals in requests]
        )
        if found is None:
            return self._pending_reasons(requests)
        for job, shares in zip(parts, found, strict=True):
            self._begin(job, shares)
        return [None] * len(parts)

    def _free(self, totals: list[NodeResources]) -> list[NodeResources]:
        """Return the free resources of these nodes that are not reserved for earlier jobs."""
        names = {node.name for node in totals} - self.reserved
        return [node for node in self.free if node.name in names]

    def _pending_reasons(self, requests: list[tuple[JobRequest, list[NodeResources]]]) -> list[str | None]:
        """Return the reasons of components without nodes; a job that could never start reserves no nodes."""
        if len(requests) == 1 or select_for_components(
            [ComponentRequest(request, totals, totals) for request, totals in requests]
        ):
            return [self._reserve(*each) for each in requests]
        names = {node.name for _, totals in requests for node in totals}
        too_many = sum(request.min_nodes for request, _ in requests) > len(names)
        return ["PartitionNodeLimit" if too_many else "Resources"] * len(requests)

    def _reserve(self, request: JobRequest, totals: list[NodeResources]) -> str:
        """Reserve the nodes that a job could use, so that no later job gets them. Return the job's reason."""
        wanted = candidates(request, totals)
        is_behind = bool(wanted & self.reserved)
        self.reserved |= wanted
        return "Priority" if is_behind else "Resources"

    def _begin(self, job: Job, shares: list[NodeShare]) -> None:
        changes: dict[str, object] = {
            "state": "RUNNING",
            "reason": "None",
            "nodes": [share.node for share in shares],
            "tasks": [share.tasks for share in shares],
            "cpus": [share.cpus for share in shares],
            "mem": [share.mem for share in shares],
            "gpus": [list(share.gpus) for share in shares],
            "start_time": self.now,
            "end_time": 0.0,
            "eligible_time": job.eligible_time or self.now,
            "attempt": job.attempt + 1,
            "supervisor": "",
            "next_step": 0,
            "exit_code": 0,
            "derived_exit_code": 0,
        }
        self.state.update_job(job.job_id, **changes)
        started = job._replace(**changes)  # type: ignore[arg-type]
        # One supervisor runs all components of a heterogeneous job.
        if started.leader_id == started.job_id:
            self.started.append(started)
        self.running.append(started)
        self.free = node_selection.free_nodes(self.free, [started])


YEAR = 365 * 86400
"""Assumed run time of a job without a limit, as in Slurm."""


def expected_end(job: Job) -> float:
    """Return the latest end of a running job."""
    return job.start_time + (job.time_limit if job.time_limit >= 0 else YEAR)


def expected_start(state: StateDirectory, job: Job, request: JobRequest) -> tuple[float, list[NodeShare]]:
    """Return the expected start of a job, and its shares of nodes then.

    Raises:
        CommandError: The job can never start on these nodes.
    """
    partition = nodes.partition(state.settings, job.partition)
    totals = nodes.in_partition(state.settings, partition)
    running = sorted(state.jobs("state = 'RUNNING' OR completing"), key=expected_end)
    moment = max(now(), job.begin_time)
    while True:
        shares = node_selection.select_nodes(request, node_selection.free_nodes(totals, running), totals)
        if shares is not None:
            return moment, shares
        if not running:
            raise CommandError(denied=NOT_AVAILABLE)
        moment = max(moment, expected_end(running.pop(0)))
