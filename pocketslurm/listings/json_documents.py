"""The documents of `--json` in the form of Slurm 22.05, with the fields that programs read."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import TYPE_CHECKING

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.units import UNLIMITED
from pocketslurm import exit_status
from pocketslurm.listings import views
from pocketslurm.listings.sacct_columns import FIELDS, JobOrStep, in_unit
from pocketslurm.listings.scontrol_show import free_memory, partitions_of, tres_of, tres_used
from pocketslurm.listings.views import NodeView, node_views
from pocketslurm.queue.records import BATCH_STEP
from pocketslurm.queue.state import now
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pocketslurm.listings.views import JobView
    from pocketslurm.queue.records import Step
    from pocketslurm.queue.state import StateDirectory
    from pocketslurm.settings import Settings


def print_jobs(views: Iterable[JobView]) -> None:
    """Print all of them as one document."""
    print_document("v0.0.38", "v0.0.38", [_job(view) for view in views])


def print_document(plugin: str, name: str, rows: list[dict[str, object]], kind: str = "jobs") -> None:
    """Print a JSON document of rows, with the plug-in and the release of Slurm."""
    major, minor, micro = (int(part) for part in SLURM_VERSION.split("."))
    meta = {
        "plugin": {"type": f"openapi/{plugin}", "name": f"Slurm OpenAPI {name}"},
        "Slurm": {"version": {"major": major, "minor": minor, "micro": micro}, "release": SLURM_VERSION},
    }
    print(json.dumps({"meta": meta, "errors": [], kind: rows}, indent=2))


def _job(view: JobView) -> dict[str, object]:
    job, logs = view.job, view.logs
    return {
        "account": job.account,
        "array_job_id": job.array_job_id or 0,
        "array_task_id": job.array_task_id,
        "array_task_string": job.array_waiting,
        "batch_flag": job.batch,
        "batch_host": job.nodes[0] if job.nodes else "",
        "cluster": job.cluster,
        "command": job.command,
        "comment": job.comment,
        "cpus": view.cpu_count,
        "current_working_directory": job.work_dir,
        "dependency": view.dependency,
        "derived_exit_code": job.derived_exit_code,
        "eligible_time": int(job.eligible_time),
        "end_time": int(view.end),
        "excluded_nodes": fold(view.request.exclude),
        "exit_code": job.exit_code,
        "group_id": job.gid,
        "het_job_id": job.het_job_id or 0,
        "het_job_id_set": view.het_job_id_set,
        "het_job_offset": job.het_offset,
        "job_id": job.job_id,
        "job_resources": _resources(view),
        "job_state": view.job.shown_state,
        "name": job.name,
        "node_count": view.node_count,
        "nodes": view.nodelist,
        "partition": job.partition,
        "priority": job.priority,
        "qos": job.qos,
        "required_nodes": fold(view.request.nodelist),
        "requeue": job.requeue,
        "restart_cnt": job.restart_count,
        "standard_error": logs.stderr,
        "standard_input": logs.stdin,
        "standard_output": logs.stdout,
        "start_time": int(view.start),
        "state_reason": job.reason,
        "submit_time": int(job.submit_time),
        "tasks": view.task_count,
        "time_limit": None if job.time_limit == UNLIMITED else job.time_limit // 60,
        "tres_alloc_str": view.tres if job.nodes else "",
        "user_id": job.uid,
        "user_name": job.user,
    }


def _resources(view: JobView) -> dict[str, object]:
    job = view.job
    if not job.nodes:
        return {}
    return {
        "nodes": view.nodelist,
        "allocated_hosts": len(job.nodes),
        "allocated_cpus": sum(job.cpus),
        "allocated_nodes": {
            str(index): {"nodename": share.node, "cpus": share.cpus, "memory": share.mem}
            for index, share in enumerate(view.shares)
        },
    }


_TRES = {"cpu": 1, "mem": 2, "node": 4, "billing": 5, "gres/gpu": 1001}


def print_rows(rows: Iterable[JobOrStep]) -> None:
    """Print the jobs, each with those of its steps that were chosen."""
    jobs: dict[int, dict[str, object]] = {}
    for view, step in rows:
        if view.job.job_id not in jobs:
            jobs[view.job.job_id] = {**_sacct_job(view), "steps": []}
        steps = jobs[view.job.job_id]["steps"]
        if step and isinstance(steps, list):
            steps.append(_step(view, step))
    print_document("dbv0.0.38", "DB v0.0.38", list(jobs.values()))


def _sacct_job(view: JobView) -> dict[str, object]:
    job, request = view.job, view.request
    end = job.end_time if not job.active else 0
    times = {"eligible": job.eligible_time, "end": end, "start": job.start_time, "submission": job.submit_time}
    limit = None if job.time_limit == UNLIMITED else job.time_limit // 60
    array = {"job_id": job.array_job_id or 0, "limits": {"max": {"running": {"tasks": job.array_at_once or 0}}}}
    per_node = in_unit(FIELDS["ReqMem"].job(view), "M").rstrip("M")
    return {
        "account": job.account,
        "comment": {"administrator": None, "job": job.comment or None, "system": None},
        "allocation_nodes": len(job.nodes),
        "array": {**array, "task": job.array_waiting or None, "task_id": job.array_task_id},
        "association": {"account": job.account, "cluster": job.cluster, "partition": None, "user": job.user},
        "cluster": job.cluster,
        "constraints": job.options.get("constraint", ""),
        "container": None,
        "derived_exit_code": _code(FIELDS["DerivedExitCode"].job(view)),
        "time": {
            "elapsed": int(view.elapsed),
            **{key: int(value) for key, value in times.items()},
            **_cpu_seconds(view.state.steps(job.job_id)),
            "suspended": 0,
            "limit": limit,
        },
        "exit_code": _code(FIELDS["ExitCode"].job(view)),
        "flags": [],
        "group": job.group,
        "het": {"job_id": job.het_job_id or 0, "job_offset": job.het_offset if job.het_job_id else None},
        "job_id": job.job_id,
        "name": job.name,
        "mcs": {"label": ""},
        "nodes": FIELDS["NodeList"].job(view),
        "partition": job.partition,
        "priority": job.priority,
        "qos": job.qos,
        "required": {"CPUs": request.tasks * request.cpus_per_task, "memory": int(float(per_node))},
        "kill_request_user": job.user if job.killed_by is not None else None,
        "reservation": {"id": 0, "name": 0},
        "state": {"current": job.state, "reason": FIELDS["Reason"].job(view)},
        "tres": {"allocated": _tres(view.tres) if job.nodes else [], "requested": _tres(view.tres)},
        "user": job.user,
        "wckey": {"wckey": job.options.get("wckey", ""), "flags": []},
        "working_directory": job.work_dir,
    }


def _step(view: JobView, step: Step) -> dict[str, object]:
    end = step.end_time or 0
    times = {"elapsed": (step.end_time or view.now) - step.start_time, "end": end, "start": step.start_time}
    batch = step.step_id == BATCH_STEP
    return {
        "nodes": {"list": list(step.nodes), "count": len(step.nodes), "range": fold(step.nodes)},
        "tres": {"allocated": _tres(views.step_tres(step))},
        "time": {**{key: int(value) for key, value in times.items()}, **_cpu_seconds([step]), "suspended": 0},
        "exit_code": _code(exit_status.format_accounted_exit_code(step.exit_code)),
        "tasks": {"count": sum(map(len, step.tasks)) or 1},
        "pid": None,
        "kill_request_user": view.job.user if step.killed_by is not None else None,
        "state": step.state,
        "step": {
            "job_id": step.job_id,
            "het": {"component": step.component},
            "id": "batch" if batch else step.step_id,
            "name": step.name,
        },
        "task": {"distribution": "Unknown" if batch else "Block"},
    }


def _cpu_seconds(steps: list[Step]) -> dict[str, object]:
    user, system = sum(step.user_cpu for step in steps), sum(step.system_cpu for step in steps)
    return {
        key: {"seconds": int(value), "microseconds": int(value % 1 * 1e6)}
        for key, value in {"system": system, "total": user + system, "user": user}.items()
    }


def _code(shown: str) -> dict[str, object]:
    code, number = map(int, shown.split(":"))
    if number:
        killed = {"signal_id": number, "name": signal.strsignal(number) or str(number)}
        return {"status": "SIGNALED", "return_code": None, "signal": killed}
    return {"status": "ERROR" if code else "SUCCESS", "return_code": code}


def _tres(text: str) -> list[dict[str, object]]:
    found = []
    for kind, count in re.findall(r"([^=,]+)=([^,]+)", text):
        group, _, name = kind.partition("/")
        number = in_unit(count, "M").rstrip("M")
        found.append({"type": group, "name": name or None, "id": _TRES.get(kind, 0), "count": int(float(number))})
    return found


_PORT = 6818
"""The default port of slurmd; nothing listens on it."""

_UNUSED = {
    "burstbuffer_network_address": "", "boards": 1, "comment": "", "cores": 1, "cpu_binding": 0, "extra": "",
    "features": "", "active_features": "", "gres_drained": "N/A", "mcs_label": "",
    "next_state_after_reboot": "invalid", "next_state_after_reboot_flags": [], "owner": None, "port": _PORT,
    "slurmd_version": SLURM_VERSION, "temporary_disk": 0, "threads": 1, "tres_weighted": 0.0, "weight": 1,
}  # fmt: skip
"""Fields with equal values on all virtual nodes."""


def print_nodes(state: StateDirectory) -> None:
    """Print all of them as one document."""
    print_document("v0.0.38", "v0.0.38", [_node(state.settings, view) for view in node_views(state)], kind="nodes")


def _node(settings: Settings, view: NodeView) -> dict[str, object]:
    uname, out = os.uname(), view.out
    booted = int(now() - time.clock_gettime(time.CLOCK_BOOTTIME))
    return {
        **_UNUSED,
        "address": view.name,
        "alloc_cpus": view.cpus_used,
        "alloc_memory": view.mem_used,
        "architecture": uname.machine,
        "boot_time": booted,
        "cpu_load": int(os.getloadavg()[0] * 100),
        "cpus": view.cpus,
        "free_memory": free_memory(),
        "gres": f"gpu:{settings.gpus}" if settings.gpus else "",
        "gres_used": f"gpu:{view.gpus_used}" if settings.gpus else "",
        "hostname": view.name,
        "idle_cpus": view.cpus - view.cpus_used,
        "last_busy": int(now()),
        "name": view.name,
        "operating_system": f"{uname.sysname} {uname.release} {uname.version}",
        "partitions": partitions_of(settings, view.name),
        "real_memory": settings.memory_of_node,
        "reason": out.reason if out else "",
        "reason_changed_at": int(out.since) if out else 0,
        "reason_set_by_user": out.user if out else None,
        "slurmd_start_time": booted,
        "sockets": view.cpus,
        "state": view.long_state.partition("+")[0].lower(),
        "state_flags": view.long_state.split("+")[1:],
        "tres": tres_of(settings),
        "tres_used": tres_used(view) or None,
    }
