"""Properties of jobs, nodes and resources as text, for squeue, sacct, sinfo and scontrol."""

from __future__ import annotations

import os
import time
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.option_values import fold_indices
from hpc_kit.slurm.units import UNLIMITED, format_time, parse_memory
from pocketslurm.errors import CommandError
from pocketslurm.queue import batch_step, node_selection, nodes
from pocketslurm.queue.dependencies import outlook
from pocketslurm.queue.job_ids import array_indices
from pocketslurm.queue.job_size import WHOLE_NODE, decode_size
from pocketslurm.queue.scheduler import expected_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.job_size import JobRequest
    from pocketslurm.queue.node_selection import NodeShare
    from pocketslurm.queue.records import Job, Step
    from pocketslurm.queue.state import StateDirectory


_WITH_REASON = frozenset({"PENDING", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "FAILED"})
"""States for which squeue prints the reason in the place of the nodes."""


def format_duration(seconds: float) -> str:
    """Format a duration as squeue does: `0:02`, `1:00:00`, `1-00:00:00`."""
    text = format_time(max(0, int(seconds)))
    if "-" in text:
        return text
    hours, minutes, rest = text.split(":")
    return f"{int(hours)}:{minutes}:{rest}" if int(hours) else f"{int(minutes)}:{rest}"


def format_timestamp(when: float, never: str = "N/A") -> str:
    """Format a point in time as Slurm does: in the format of SLURM_TIME_FORMAT, if that is one of strftime."""
    chosen = os.environ.get("SLURM_TIME_FORMAT", "")
    form = chosen if "%" in chosen else "%Y-%m-%dT%H:%M:%S"
    return time.strftime(form, time.localtime(when)) if when else never


def format_limit(seconds: int) -> str:
    """Format a time limit as sacct and scontrol do."""
    return "UNLIMITED" if seconds == UNLIMITED else format_time(seconds)


_LONG_LIST = 61
"""Letters of waiting array indices that squeue prints; SLURM_BITSTR_LEN=0 sets no limit."""


class JobView:
    """One job, seen at one moment."""

    def __init__(self, state: StateDirectory, job: Job, now: float) -> None:
        self.state = state
        self.job = job
        self.now = now

    @cached_property
    def request(self) -> JobRequest:
        """Return the size that the job asked for."""
        return decode_size(self.job.request)

    @cached_property
    def shares(self) -> list[NodeShare]:
        """Its share of each node; for a pending job, the shares that it would get of empty nodes."""
        job = self.job
        if job.nodes:
            rows = zip(job.nodes, job.tasks, job.cpus, job.mem, job.gpus, strict=True)
            return [
                node_selection.NodeShare(node, tasks, cpus, mem, tuple(gpus)) for node, tasks, cpus, mem, gpus in rows
            ]
        try:
            partition = nodes.partition(self.state.settings, job.partition)
        except CommandError:
            return []
        totals = nodes.in_partition(self.state.settings, partition)
        return node_selection.select_nodes(self.request, totals, totals) or []

    @property
    def label(self) -> str:
        """The id as users know it; a long list of waiting tasks is cut."""
        waiting = self.job.array_waiting
        if len(waiting) <= _LONG_LIST or os.environ.get("SLURM_BITSTR_LEN") == "0":
            return self.job.display_id
        return self.job._replace(array_waiting=f"{waiting[: _LONG_LIST - 1]}...").display_id

    @property
    def het_job_id_set(self) -> str:
        """The numbers of a heterogeneous job's components: `12-14`; empty for an ordinary job."""
        if self.job.het_job_id is None:
            return ""
        return fold_indices((part.job_id for part in self.state.components(self.job)), steps=False)

    @property
    def nodelist(self) -> str:
        """The nodes as a list such as `n[1-2]`; empty before the start."""
        return fold(self.job.nodes)

    @property
    def place(self) -> str:
        """Nodes, or the reason in brackets."""
        job = self.job
        return f"({job.reason})" if job.state in _WITH_REASON and not job.completing else self.nodelist

    @property
    def node_count(self) -> int:
        """The number of nodes that the job has, or the fewest that it needs."""
        if self.job.nodes:
            return len(self.job.nodes)
        # slurmctld estimates the nodes of a pending job from the size of a node.
        request, cpus = self.request, self.state.settings.cpus
        per_node = -(-request.ntasks // request.tasks_per_node) if request.tasks_per_node else 0
        fitting = cpus // request.cpus_per_task
        # A job whose tasks fit on no node counts as one of one node.
        by_cpus = 1 if request.overcommit or not fitting else -(-request.ntasks // fitting)
        return max(request.min_nodes, per_node, by_cpus)

    @property
    def cpu_count(self) -> int:
        """The number of CPUs that the job has or needs."""
        if self.job.nodes:
            return sum(self.job.cpus)
        if self.request.overcommit:
            return self.request.min_nodes
        # Until the nodes of a range are chosen, slurmctld counts one task.
        if not self.request.ntasks and self.request.max_nodes > self.request.min_nodes:
            return self.request.cpus_per_task
        return self.request.tasks * self.request.cpus_per_task

    @property
    def task_count(self) -> int:
        """Tasks that were asked for, at least one a node."""
        return self.request.ntasks or max(self.request.tasks, self.node_count)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        job = self.job
        if not job.start_time:
            return 0.0
        return max(0.0, (job.end_time or self.now) - job.start_time)

    @property
    def end(self) -> float:
        """The end of the job, or the time at which its limit ends it."""
        job = self.job
        if job.end_time or not job.start_time:
            return job.end_time
        return expected_end(job)

    @property
    def start(self) -> float:
        """The start of the job, or the earliest possible one; the end of a job that never started."""
        job = self.job
        if job.start_time or job.state != "PENDING":
            return job.start_time or job.end_time
        return job.begin_time if job.begin_time > self.now else 0.0

    @property
    def time_limit(self) -> str:
        """The time limit as squeue prints it."""
        return "UNLIMITED" if self.job.time_limit == UNLIMITED else format_duration(self.job.time_limit)

    @property
    def time_left(self) -> str:
        """The rest of the time limit."""
        if self.job.time_limit == UNLIMITED:
            return "UNLIMITED"
        return format_duration(self.job.time_limit - self.elapsed)

    @property
    def memory(self) -> tuple[str, str]:
        """`Node` or `CPU`, and the memory of each."""
        request = self.request
        if request.mem_per_cpu:
            return "CPU", megabytes(request.mem_per_cpu)
        return "Node", megabytes(0 if request.mem_per_node == WHOLE_NODE else request.mem_per_node)

    @property
    def array_task(self) -> str:
        """The index of the task, or the indices of the pending tasks."""
        job = self.job
        if job.array_task_id is not None:
            return str(job.array_task_id)
        limit = f"%{job.array_at_once}" if job.array_at_once else ""
        return f"{job.array_waiting}{limit}" if job.array_job_id is not None else "N/A"

    @property
    def dependency(self) -> str:
        """The unmet dependencies."""
        if not self.job.dependency or self.job.state != "PENDING":
            return ""
        return outlook(self.state, self.job, self.now).text

    @property
    def tres(self) -> str:
        """`cpu=3,mem=400M,node=2,billing=3,gres/gpu=2`."""
        mem = sum(share.mem for share in self.shares)
        gpus = sum(len(share.gpus) for share in self.shares)
        parts = [f"cpu={self.cpu_count}", f"mem={megabytes(mem)}" if mem else "", f"node={self.node_count}"]
        parts += [f"billing={self.cpu_count}", f"gres/gpu={gpus}" if gpus else ""]
        return ",".join(part for part in parts if part)

    @property
    def logs(self) -> batch_step.LogFiles:
        """The log files of the batch script."""
        return batch_step.log_files(self.job)

    def tasks_apart(self) -> list[Job]:
        """Return the pending tasks of an array as separate jobs."""
        job = self.job
        if job.array_job_id is None or job.array_task_id is not None:
            return [job]
        return [job._replace(array_task_id=index, array_waiting="") for index in array_indices(job.array_waiting)]


def megabytes(size: int) -> str:
    """Format memory as Slurm does, in the largest unit that needs at most two decimals: `1000M`, `1.50G`, `2G`."""
    if not size:
        return "0"
    number, unit = float(size), "M"
    for larger in "GT":
        if number < 1024 or number % 512:
            break
        number, unit = number / 1024, larger
    return f"{number:.2f}{unit}" if number % 1 else f"{int(number)}{unit}"


def null(text: str) -> str:
    """Return the text, or `(null)` if it is empty."""
    return text or "(null)"


def step_id(view: JobView, step: Step) -> str:
    """Return the id of a step as users write it; a component of a heterogeneous job counts by its own job id."""
    return f"{view.job.display_id if view.job.het_job_id is None else view.job.job_id}.{step.label}"


SHORT = {"idle": "idle", "mixed": "mix", "allocated": "alloc", "n/a": "n/a"}

NODE_STATES = (
    "unknown", "down", "idle", "allocated", "?", "mixed", "future", "drain", "drained", "draining", "no_respond",
    "reserved", "perfctrs", "cloud", "completing", "powering_down", "powered_down", "power_down", "powering_up", "fail",
    "maint", "reboot", "reboot^",
)  # fmt: skip
"""The states that sinfo knows, in its order."""


class NodeView(NamedTuple):
    """One node, with the resources that its jobs use."""

    name: str
    cpus: int
    cpus_used: int
    mem_used: int
    gpus_used: int
    missing: bool = False
    """It represents no node."""

    @property
    def state(self) -> str:
        """`idle`, `mixed` or `allocated`; `n/a` if it represents no node."""
        if self.missing:
            return "n/a"
        if self.cpus_used >= self.cpus:
            return "allocated"
        return "mixed" if self.cpus_used else "idle"


def node_views(state: StateDirectory) -> list[NodeView]:
    """Return every node, in order."""
    holding = state.jobs("state = 'RUNNING' OR completing")
    views = []
    for node in nodes.all_of(state):
        held = [(job, job.nodes.index(node.name)) for job in holding if node.name in job.nodes]
        views.append(
            NodeView(
                node.name,
                node.cpus,
                min(node.cpus, sum(job.cpus[index] for job, index in held)),
                min(node.mem, sum(job.mem[index] for job, index in held)),
                sum(len(job.gpus[index]) for job, index in held),
            )
        )
    return views


def gpu_requests(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options per GPU under scontrol's names, in its order."""
    found = {
        "CpusPerTres": _gpu_items(options.get("cpus-per-gpu", "")),
        "MemPerTres": _gpu_items(str(parse_memory(options["mem-per-gpu"])) if options.get("mem-per-gpu") else ""),
        "TresBind": f"gpu:{options['gpu-bind']}" if options.get("gpu-bind") else "",
        "TresPerJob": _gpu_items(options.get("gpus", "")),
        "TresPerNode": ",".join(filter(None, (_gpu_items(options.get("gpus-per-node", "")), _gres_option(options)))),
        "TresPerTask": _gpu_items(options.get("gpus-per-task", "")),
    }
    return {name: text for name, text in found.items() if text}


def step_tres(step: Step) -> str:
    """Return the resources of a step: `cpu=2,gres/gpu=1,mem=200M,node=1`."""
    mem, gpus = sum(step.mem), sum(map(len, step.gpus))
    found = (f"cpu={sum(step.cpus) or 1}", f"gres/gpu={gpus}" if gpus else "", f"mem={megabytes(mem)}" if mem else "")
    return ",".join(part for part in (*found, f"node={len(step.nodes)}") if part)


def _gpu_items(text: str) -> str:
    return ",".join(f"gres:gpu:{item}" for item in text.split(",") if item)


def _gres_option(options: Mapping[str, str]) -> str:
    items = [item.removeprefix("gres:") for item in options.get("gres", "").split(",")]
    return ",".join(f"gres:{item}" for item in items if item and item.lower() != "none")
