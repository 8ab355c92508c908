"""What scontrol shows: jobs, steps, nodes, partitions, the configuration."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.units import format_time
from pocketslurm import processes
from pocketslurm.errors import CommandError, PlainError
from pocketslurm.listings.node_view import NodeView, node_views
from pocketslurm.listings.scontrol_job import job_text, step_text
from pocketslurm.listings.scontrol_node import node_text, partition_text
from pocketslurm.listings.views import JobView, format_timestamp
from pocketslurm.queue import job_ids, nodes
from pocketslurm.queue.state import now
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from collections.abc import Collection

    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import State
    from pocketslurm.settings import Partition

_ENTITIES = (
    ("job", "jobs", "jobid"), ("node", "nodes", "nodename"), ("partition", "partitions", "partitionname"),
    ("step", "steps", "stepid"), ("config",), ("daemons",), ("reservation", "reservations"), ("licenses",),
    ("topology",), ("aliases",), ("bbstat",), ("burstbuffer",), ("dwstat",), ("federation",),
    ("frontend",), ("assoc_mgr", "assocmgr", "associations"),
)  # fmt: skip


_NONE = {
    "reservation": "No reservations in the system",
    "daemons": "slurmctld ",
    "licenses": "No licenses configured in Slurm.",
    "frontend": "No nodes in the system",
    "assoc_mgr": "Current Association Manager state\n"
    + "".join(f"\nNo {each} currently cached in Slurm.\n\n" for each in ("users", "associations", "QOS")),
}


_NO_TOPOLOGY = "No topology information available"


class NotFound(PlainError):
    """There is no such node or partition; scontrol says so where it would have shown it."""


def show(state: State, entity: str, name: str | None, flags: Collection[str]) -> int:
    """Print one entity, or all of a kind; the exit status."""
    kinds = [names[0] for names in _ENTITIES if entity in names]
    kinds = kinds or [names[0] for names in _ENTITIES if names[0].startswith(entity)]
    if not kinds:
        raise PlainError(f"invalid entity:{entity} for keyword:show ")
    kind = kinds[0]
    oneliner = "oneliner" in flags
    if kind == "job":
        texts = _jobs(state, name, details="details" in flags)
    elif kind == "step":
        texts = _steps(state, name)
    elif kind == "node":
        texts = [node_text(state, view) for view in _nodes(state, name)]
    elif kind == "partition":
        texts = [partition_text(state, each) for each in _partitions(state, name)]
    elif kind == "config":
        print(_config(state))
        return 0
    else:
        _show_nothing(kind, name)
        return 0
    for text in texts:
        # The blank line behind a paragraph is a blank behind the line.
        print(" ".join(line.lstrip() for line in text.removesuffix("\n").split("\n")) if oneliner else text)
    return 0


def _show_nothing(kind: str, name: str | None) -> None:
    """What Slurm says where there is none of a kind."""
    if kind == "topology":
        missing = f"Topology information contains no switch or node named {name}" if name else _NO_TOPOLOGY
        print(f"scontrol: error: {missing}", file=sys.stderr)
    elif kind == "frontend" and name:
        raise NotFound(f"Node {name} not found")
    elif kind in _NONE:
        print(_NONE[kind])


def odds(state: State, name: str, words: list[str]) -> int:
    """The small commands: ping, completing, wait_job, write batch_script, listpids."""
    if name == "ping":
        print(f"Slurmctld(primary) at {os.uname().nodename} is UP")
    elif name == "completing":
        for job in state.jobs("completing"):
            since = f"EndTime={format_timestamp(job.end_time)} CompletingTime={format_time(int(now() - job.end_time))}"
            print(f"JobId={job.job_id} {since} Nodes(COMPLETING)={fold(job.nodes)}")
    elif name == "wait_job":
        jobs = _find(state, words[0])
        if not jobs[0].active:
            raise PlainError(f"scontrol: Problem running job {words[0]}")
        if jobs[0].state != "RUNNING":
            raise PlainError("scontrol: error: Job is not running")
        print(f"scontrol: Nodes are ready for job {words[0]}", file=sys.stderr)
    elif name == "write":
        _write_script(state, words)
    else:
        _list_pids(state, words)
    return 0


def _write_script(state: State, words: list[str]) -> None:
    if words[0].lower() not in {"batch_script", "batch"}:
        raise PlainError(f"invalid entity:{words[0]} for keyword:write ")
    try:
        job = _find(state, words[1])[0]
    except PlainError:
        raise PlainError("job script retrieval failed: Invalid job id specified") from None
    script, _ = state.script(job.array_job_id or job.job_id)
    if not script:
        raise PlainError("job script retrieval failed: Invalid job id specified")
    target = words[2] if len(words) > 2 else f"slurm-{words[1]}.sh"
    if target == "-":
        sys.stdout.flush()
        os.write(1, script)
        return
    with open(target, "wb") as file:  # noqa: PTH123
        file.write(script)
    print(f"batch script for job {words[1]} written to {target}")


def _list_pids(state: State, words: list[str]) -> None:
    print(f"{'PID':<8} {'JOBID':<8} {'STEPID':<8} {'LOCALID':<7} GLOBALID")
    wanted = words[0].partition(".")[0] if words else None
    for job in state.jobs("state = 'RUNNING'"):
        if wanted in {None, str(job.job_id)} and job.leader_id == job.job_id:
            for process in processes.descendants([processes.pid_of(job.supervisor)]):
                print(f"{process.pid:<8} {job.job_id:<8} {'-':<8} {'-':<7} -")


def _known(state: State) -> tuple[str, tuple[float]]:
    return "state IN ('PENDING', 'RUNNING') OR completing OR end_time > ?", (now() - state.settings.min_job_age,)


def _find(state: State, name: str) -> list[Job]:
    try:
        jobs = job_ids.select(state, name, *_known(state))
    except ValueError:
        raise PlainError("scontrol_print_job error: Invalid job id specified") from None
    if not jobs and "_" in name:
        raise NotFound(f"Job {name} not found")
    if not jobs:
        raise PlainError("slurm_load_jobs error: Invalid job id specified")
    return jobs


def _jobs(state: State, name: str | None, *, details: bool) -> list[str]:
    jobs = _find(state, name) if name else state.jobs(*_known(state))
    if not jobs:
        return ["No jobs in the system"]
    return [job_text(JobView(state, job, now()), details=details) for job in jobs]


def _steps(state: State, name: str | None) -> list[str]:
    job_name, _, step_name = (name or "").partition(".")
    jobs = _find(state, job_name) if job_name else state.jobs("state = 'RUNNING'")
    texts = [
        step_text(JobView(state, job, now()), step)
        for job in jobs
        for step in state.steps(job.job_id)
        if step.state == "RUNNING" and step_name in {"", step.label, str(step.step_id)}
    ]
    if name and not texts:
        raise PlainError(f"Job step {name} not found")
    return texts or ["No job steps in the system"]


def _nodes(state: State, name: str | None) -> list[NodeView]:
    views = node_views(state)
    if name is None:
        return views
    wanted = nodes.expand_names(name)
    found = [view for view in views if view.name in wanted]
    if not found:
        raise NotFound(f"Node {name} not found")
    return found


def _partitions(state: State, name: str | None) -> list[Partition]:
    if name is None:
        return list(state.settings.partitions)
    try:
        return [nodes.partition(state.settings, name)]
    except CommandError:
        raise NotFound(f"Partition {name} not found") from None


def _config(state: State) -> str:
    settings = state.settings
    next_id = state.meta("next_job_id") or "1"
    values = {
        "AccountingStorageType": "accounting_storage/none",
        "ClusterName": settings.cluster,
        "EnforcePartLimits": "NO",
        "FirstJobId": "1",
        "GresTypes": "gpu" if settings.gpus else "(null)",
        "JobFileAppend": "0",
        "JobRequeue": str(int(settings.requeue)),
        "KillOnBadExit": "0",
        "KillWait": f"{settings.kill_wait:g} sec",
        "MaxArraySize": str(settings.max_array_size),
        "MinJobAge": f"{settings.min_job_age:g} sec",
        "MpiDefault": settings.mpi_default,
        "NEXT_JOB_ID": next_id,
        "OverTimeLimit": "0 min",
        "PreemptMode": "OFF",
        "ProctrackType": "proctrack/cgroup",
        "SchedulerType": "sched/builtin",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU_MEMORY",
        "SlurmctldHost[0]": os.uname().nodename,
        "SlurmctldLogFile": str(state.directory / "controller.log"),
        "SLURM_CONF": str(state.directory / "slurm.json"),
        "SLURM_VERSION": SLURM_VERSION,
        "StateSaveLocation": str(state.directory),
        "TaskPlugin": "task/none",
    }
    lines = [f"Configuration data as of {format_timestamp(now())}"]
    lines += [f"{name:<23} = {value}" for name, value in values.items()]
    return "\n".join([*lines, "", f"Slurmctld(primary) at {os.uname().nodename} is UP"])
