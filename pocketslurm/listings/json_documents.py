"""The documents of `squeue --json` and `sacct --json`: the fields that programs read, in the form of Slurm 22.05."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from hpc_kit.slurm.units import UNLIMITED
from pocketslurm.exit_status import format_accounted_exit_code
from pocketslurm.listings.sacct_columns import FIELDS
from pocketslurm.queue.records import BATCH_STEP
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pocketslurm.listings.sacct_columns import JobOrStep
    from pocketslurm.listings.views import JobView


def squeue_document(views: Iterable[JobView]) -> str:
    """Return the jobs of squeue as a JSON document."""
    return _document([
        {
            **_names(view),
            "array_job_id": view.job.array_job_id or 0,
            "array_task_id": view.job.array_task_id,
            "array_task_string": view.job.array_waiting,
            "command": view.job.command,
            "comment": view.job.comment,
            "cpus": view.cpu_count,
            "current_working_directory": view.job.work_dir,
            "dependency": view.dependency,
            "end_time": int(view.end),
            "exit_code": view.job.exit_code,  # a wait status: 256 for exit code 1
            "het_job_id": view.job.het_job_id or 0,
            "het_job_offset": view.job.het_offset,
            "job_state": view.job.shown_state,
            "node_count": view.node_count,
            "nodes": view.nodelist,
            "restart_cnt": view.job.restart_count,
            "standard_error": view.logs.stderr,
            "standard_output": view.logs.stdout,
            "start_time": int(view.start),
            "state_reason": view.job.reason,
            "submit_time": int(view.job.submit_time),
            "tasks": view.task_count,
            "time_limit": _minutes(view),
            "tres_alloc_str": view.tres if view.job.nodes else "",
            "user_id": view.job.uid,
            "user_name": view.job.user,
        }
        for view in views
    ])  # fmt: skip


def sacct_document(rows: Iterable[JobOrStep]) -> str:
    """Return the jobs of sacct with their steps as a JSON document."""
    jobs: dict[int, tuple[dict[str, object], list[object]]] = {}
    for view, step in rows:
        job = view.job
        times = {"elapsed": view.elapsed, "end": job.end_time, "start": job.start_time, "submission": job.submit_time}
        details: dict[str, object] = {
            **_names(view),
            "array": {"job_id": job.array_job_id or 0, "task": job.array_waiting or None, "task_id": job.array_task_id},
            "comment": {"administrator": None, "job": job.comment or None, "system": None},
            "exit_code": _exit_code(FIELDS["ExitCode"].job(view)),
            "het": {"job_id": job.het_job_id or 0, "job_offset": job.het_offset if job.het_job_id else None},
            "nodes": FIELDS["NodeList"].job(view),
            "state": {"current": job.state, "reason": FIELDS["Reason"].job(view)},
            "time": {**{name: int(value) for name, value in times.items()}, "limit": _minutes(view)},
            "user": job.user,
            "working_directory": job.work_dir,
        }
        _, steps = jobs.setdefault(job.job_id, (details, []))
        if step:
            number = "batch" if step.step_id == BATCH_STEP else step.step_id
            steps.append(
                {
                    "exit_code": _exit_code(format_accounted_exit_code(step.exit_code)),
                    "nodes": {"count": len(step.nodes), "list": list(step.nodes)},
                    "state": step.state,
                    "step": {"job_id": step.job_id, "id": number, "name": step.name},
                    "time": {"end": int(step.end_time or 0), "start": int(step.start_time)},
                }
            )
    return _document([{**details, "steps": steps} for details, steps in jobs.values()])


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
