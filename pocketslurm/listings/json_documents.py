"""`squeue --json`: the fields that programs read, under the names that 22.05 gives them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.units import UNLIMITED
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pocketslurm.listings.views import JobView


def print_jobs(views: Iterable[JobView]) -> None:
    """Print all of them as one document."""
    print_document("v0.0.38", "v0.0.38", [_job(view) for view in views])


def print_document(plugin: str, name: str, rows: list[dict[str, object]], kind: str = "jobs") -> None:
    """Print jobs, or another kind, with the plugin and the Slurm that they are told by."""
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
