"""The documents of `squeue --json` and `sacct --json` in the form of Slurm 22.05.

sacct has all fields of the plug-in openapi/dbv0.0.38, squeue those that programs read.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.units import UNLIMITED
from pocketslurm.exit_status import format_accounted_exit_code
from pocketslurm.listings.sacct_columns import FIELDS
from pocketslurm.listings.views import step_tres
from pocketslurm.queue.records import BATCH_STEP
from pocketslurm.settings import SLURM_VERSION
from pocketslurm.users import user_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pocketslurm.listings.sacct_columns import JobOrStep
    from pocketslurm.listings.views import JobView
    from pocketslurm.queue.records import Step


def squeue_document(views: Iterable[JobView]) -> str:
    """Return the jobs of squeue as a JSON document."""
    return _document([
        {
            **_names(view),
            "array_job_id": view.job.array_job_id or 0,
            "array_max_tasks": view.job.array_at_once,
            "array_task_id": view.job.array_task_id,
            "array_task_string": view.job.array_waiting,
            "batch_flag": view.job.batch,
            "batch_host": view.job.nodes[0] if view.job.nodes else "",
            "command": view.job.command,
            "comment": view.job.comment,
            "cpus": view.cpu_count,
            "cpus_per_task": view.request.cpus_per_task,
            "current_working_directory": view.job.work_dir,
            "dependency": view.dependency,
            "derived_exit_code": view.job.derived_exit_code,
            "eligible_time": int(view.job.eligible_time),
            "end_time": int(view.end),
            "exit_code": view.job.exit_code,  # a wait status: 256 for exit code 1
            "features": view.job.options.get("constraint", ""),
            "group_id": view.job.gid,
            "het_job_id": view.job.het_job_id or 0,
            "het_job_offset": view.job.het_offset,
            "job_state": view.job.shown_state,
            "memory_per_cpu": view.request.mem_per_cpu or None,
            "memory_per_node": max(0, view.request.mem_per_node) or None,
            "node_count": view.node_count,
            "nodes": view.nodelist,
            "requeue": view.job.requeue,
            "restart_cnt": view.job.restart_count,
            "standard_error": view.logs.stderr,
            "standard_input": view.logs.stdin,
            "standard_output": view.logs.stdout,
            "start_time": int(view.start),
            "state_reason": view.job.reason,
            "submit_time": int(view.job.submit_time),
            "tasks": view.task_count,
            "time_limit": _minutes(view),
            "tres_alloc_str": view.tres if view.job.nodes else "",
            "tres_req_str": view.tres,
            "user_id": view.job.uid,
            "user_name": view.job.user,
            "wckey": view.job.options.get("wckey", ""),
        }
        for view in views
    ])  # fmt: skip


def sacct_document(rows: Iterable[JobOrStep]) -> str:
    """Return the jobs of sacct with their steps as a JSON document."""
    jobs: dict[int, tuple[dict[str, object], list[object]]] = {}
    for view, step in rows:
        _, steps = jobs.setdefault(view.job.job_id, (_accounted_job(view), []))
        if step:
            steps.append(_accounted_step(view, step))
    return _document([{**details, "steps": steps} for details, steps in jobs.values()])


def _accounted_job(view: JobView) -> dict[str, object]:
    job, request = view.job, view.request
    steps = view.state.steps(job.job_id)
    limit: dict[str, object] = {"max": {"running": {"tasks": job.array_at_once}}}
    return {
        **_names(view),
        "allocation_nodes": len(job.nodes),
        "array": {
            "job_id": job.array_job_id or 0,
            "limits": limit,
            "task": job.array_waiting or None,
            "task_id": job.array_task_id,
        },
        "association": {"account": job.account, "cluster": job.cluster, "partition": None, "user": job.user},
        "comment": {"administrator": None, "job": job.comment or None, "system": None},
        "constraints": job.options.get("constraint", ""),
        "container": None,
        "derived_exit_code": _exit_code(FIELDS["DerivedExitCode"].job(view)),
        "exit_code": _exit_code(FIELDS["ExitCode"].job(view)),
        "flags": [],
        "group": job.group,
        "het": {"job_id": job.het_job_id or 0, "job_offset": job.het_offset if job.het_job_id else None},
        "kill_request_user": _user(job.killed_by),
        "mcs": {"label": ""},
        "nodes": FIELDS["NodeList"].job(view),
        "required": {
            "CPUs": request.tasks * request.cpus_per_task,
            "memory": request.mem_per_cpu or max(0, request.mem_per_node),
        },
        "reservation": {"id": 0, "name": None},
        "state": {"current": job.state, "reason": FIELDS["Reason"].job(view)},
        "time": {
            "elapsed": int(view.elapsed),
            "eligible": int(job.eligible_time),
            "end": int(job.end_time),
            "limit": _minutes(view),
            "start": int(job.start_time),
            "submission": int(job.submit_time),
            "suspended": 0,
            **_cpu_times(steps),
        },
        "tres": {"allocated": _tres(view.tres if job.nodes else ""), "requested": _tres(view.tres)},
        "user": job.user,
        "wckey": {"flags": [], "wckey": job.options.get("wckey", "")},
        "working_directory": job.work_dir,
    }


def _accounted_step(view: JobView, step: Step) -> dict[str, object]:
    usage: dict[str, list[object]] = {"average": [], "max": [], "min": [], "total": []}  # nothing measures it
    return {
        "CPU": {"governor": [], "requested_frequency": {"max": 0, "min": 0}},
        "exit_code": _exit_code(format_accounted_exit_code(step.exit_code)),
        "kill_request_user": _user(step.killed_by),
        "nodes": {"count": len(step.nodes), "list": list(step.nodes), "range": fold(step.nodes)},
        "pid": None,
        "state": step.state,
        "statistics": {"CPU": {"actual_frequency": 0}, "energy": {"consumed": 0}},
        "step": {
            "het": {"component": None},
            "id": "batch" if step.step_id == BATCH_STEP else step.step_id,
            "job_id": step.job_id,
            "name": step.name,
        },
        "task": {"distribution": FIELDS["Layout"].step(view, step)},
        "tasks": {"count": sum(map(len, step.tasks)) or 1},
        "time": {
            "elapsed": int(FIELDS["ElapsedRaw"].step(view, step)),
            "end": int(step.end_time or 0),
            "start": int(step.start_time),
            "suspended": 0,
            **_cpu_times([step]),
        },
        "tres": {"allocated": _tres(step_tres(step)), "consumed": usage, "requested": usage},
    }


_TRES_IDS = {"cpu": 1, "mem": 2, "energy": 3, "node": 4, "billing": 5, "gres/gpu": 1001}


def _tres(text: str) -> list[dict[str, object]]:
    """Return resources such as `cpu=2,mem=200M,gres/gpu=1` as a list. Memory is in MiB."""
    found: list[dict[str, object]] = []
    for name, _, count in (item.partition("=") for item in text.split(",") if item):
        kind, _, what = name.partition("/")
        number = round(float(count[:-1]) * 1024 ** "MGT".index(count[-1])) if kind == "mem" else int(count)
        found.append({"count": number, "id": _TRES_IDS[name], "name": what or None, "type": kind})
    return found


def _cpu_times(steps: Iterable[Step]) -> dict[str, object]:
    user, system = (sum(each) for each in zip((0.0, 0.0), *((s.user_cpu, s.system_cpu) for s in steps), strict=True))
    times = {"system": system, "total": user + system, "user": user}
    return {name: {"microseconds": int(time % 1 * 1e6), "seconds": int(time)} for name, time in times.items()}


def _user(number: int | None) -> str | None:
    return None if number is None else user_name(number)


def _names(view: JobView) -> dict[str, object]:
    names = ("account", "cluster", "job_id", "name", "partition", "priority", "qos")
    return {name: getattr(view.job, name) for name in names}


def _minutes(view: JobView) -> int | None:
    return None if view.job.time_limit == UNLIMITED else view.job.time_limit // 60


def _exit_code(text: str) -> dict[str, object]:
    """Return an exit code such as `1:0`, or `0:9` for a signal."""
    code, number = map(int, text.split(":"))
    if number:
        killed = {"signal_id": number, "name": signal.strsignal(number) or str(number)}
        return {"status": "SIGNALED", "return_code": None, "signal": killed}
    return {"status": "ERROR" if code else "SUCCESS", "return_code": code}


def _document(jobs: list[dict[str, object]]) -> str:
    major, minor, micro = (int(part) for part in SLURM_VERSION.split("."))
    version = {"version": {"major": major, "minor": minor, "micro": micro}, "release": SLURM_VERSION}
    return json.dumps({"meta": {"Slurm": version}, "errors": [], "jobs": jobs}, indent=2)
