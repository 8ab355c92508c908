"""`sacct --json`: Slurm 22.05's document of the accounting database, which is another than squeue's.

Measured use is left out but for CPU seconds. An exit code is told as it is (ERROR, 3), as since
Slurm 23.02; 22.05 says SUCCESS, 0 for each.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.units import UNLIMITED
from pocketslurm import exit_status
from pocketslurm.listings import tres_view
from pocketslurm.listings.json_documents import print_document
from pocketslurm.listings.sacct_columns import FIELDS, Row, in_unit
from pocketslurm.queue.records import BATCH_STEP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pocketslurm.listings.views import JobView
    from pocketslurm.queue.records import Step

_TRES = {"cpu": 1, "mem": 2, "node": 4, "billing": 5, "gres/gpu": 1001}


def print_rows(rows: Iterable[Row]) -> None:
    """Print the jobs, each with those of its steps that were chosen."""
    jobs: dict[int, dict[str, object]] = {}
    for view, step in rows:
        if view.job.job_id not in jobs:
            jobs[view.job.job_id] = {**_job(view), "steps": []}
        steps = jobs[view.job.job_id]["steps"]
        if step and isinstance(steps, list):
            steps.append(_step(view, step))
    print_document("dbv0.0.38", "DB v0.0.38", list(jobs.values()))


def _job(view: JobView) -> dict[str, object]:
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
        "tres": {"allocated": _tres(tres_view.of_step(step))},
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
