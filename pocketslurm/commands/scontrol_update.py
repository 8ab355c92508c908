"""`scontrol update`: changes of a job or a node."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpc_kit.slurm import option_values, units
from hpc_kit.slurm.datetimes import parse_datetime
from hpc_kit.slurm.errors import HpcKitError
from hpc_kit.slurm.nodelist import expand
from pocketslurm.errors import CommandError, PlainError
from pocketslurm.queue import nodes
from pocketslurm.queue.job_ids import FINISHED, find_jobs, own_record
from pocketslurm.queue.job_size import decode_size, encode_size
from pocketslurm.queue.messages import wake
from pocketslurm.queue.submission import niceness

if TYPE_CHECKING:
    from collections.abc import Callable

    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import StateDirectory


def update(state: StateDirectory, words: list[str]) -> int:
    """Run `update NAME=VALUE ...` and return the exit status."""
    typed = _pairs(words)
    updates = {name.lower(): value for name, value in typed.items()}
    if "jobid" in updates or "job" in updates:
        return _update_jobs(state, updates.pop("jobid", "") or updates.pop("job", ""), updates, typed)
    # Without an id, JobName selects the jobs; with one, it is their new name.
    if len(updates) > 1 and "jobname" in updates:
        return _update_jobs(state, f"jobname={updates.pop('jobname')}", updates, typed)
    if "nodename" in updates:
        raise PlainError("scontrol: update NodeName is not supported by the embedded Slurm: nodes are always up")
    sys.stderr.write(
        "No valid entity in update command\n"
        'Input line must include "NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"\n'
    )
    return 1


def _pairs(words: list[str]) -> dict[str, str]:
    """Parse names and values: `TimeLimit=5` or `TimeLimit 5`."""
    updates: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        updates[name] = value if equals else next(rest, "")
    return updates


def _update_jobs(state: StateDirectory, name: str, updates: dict[str, str], typed: dict[str, str]) -> int:
    if not updates:
        raise PlainError("No changes specified")
    unknown = [field for field in typed if field.lower() not in {*CHANGES, "jobid", "job"}]
    if unknown:
        text = f"{unknown[0]}={typed[unknown[0]]}"
        raise PlainError(f"Update of this parameter is not supported: {text}\nRequest aborted")
    jobs = find_jobs(state, name)
    if not any(job.active for job in jobs):
        raise PlainError(f"{FINISHED} for job {name}")
    for job in jobs:
        if not job.active:
            continue
        with state.transaction():
            current = own_record(state, job)
            for field, value in updates.items():
                try:
                    changes = CHANGES[field](state, current, value)
                except (HpcKitError, ValueError):
                    raise PlainError(_complaint(field, value)) from None
                state.update_job(current.job_id, **changes)
                current = state.job(current.job_id) or current
        # The supervisor of a running job may have a new time limit.
        wake(state.directory, current.job_id)
    return 0


def _complaint(field: str, value: str) -> str:
    """Return the message for a value that cannot be read."""
    if field == "starttime":
        return f"Invalid time specification (pos=0): {value}\nNo changes specified"
    known = {
        "timelimit": "scontrol: error: Invalid TimeLimit value",
        "priority": f"scontrol: error: Invalid Priority value: {value}",
        "nice": "Invalid nice value, must be between -2147483645 and 2147483645",
    }
    return known.get(field) or f"Invalid {field} specification: {value}\nRequest aborted"


def _waiting(column: str) -> Callable[[StateDirectory, Job, str], dict[str, object]]:
    """Return the change of a column of a pending job."""

    def change(_: StateDirectory, job: Job, value: str) -> dict[str, object]:
        _pending(job)
        return {column: value}

    return change


def _plain(column: str) -> Callable[[StateDirectory, Job, str], dict[str, object]]:
    return lambda _state, _job, value: {column: value}


def _time_limit(_: StateDirectory, job: Job, value: str) -> dict[str, object]:
    # `+5` and `-5` change the limit by minutes, but -1 is UNLIMITED.
    sign = value[:1] if value[:1] in {"+", "-"} and value != "-1" else ""
    seconds = units.parse_time(value.removeprefix(sign))
    if sign:
        return {"time_limit": max(60, job.time_limit + (seconds if sign == "+" else -seconds))}
    return {"time_limit": seconds if seconds < 0 else -(-seconds // 60) * 60}


def _pending(job: Job) -> None:
    if job.state != "PENDING":
        raise PlainError(f"Job is no longer pending execution for job {job.display_id}")


def _excluded(_: StateDirectory, job: Job, value: str) -> dict[str, object]:
    _pending(job)
    return {"request": encode_size(decode_size(job.request)._replace(exclude=tuple(expand(value)) if value else ()))}


def _begin(_: StateDirectory, job: Job, value: str) -> dict[str, object]:
    _pending(job)
    return {"begin_time": parse_datetime(value).timestamp()}


def _dependency(_: StateDirectory, job: Job, value: str) -> dict[str, object]:
    _pending(job)
    if value:
        option_values.parse_dependency(value)
    return {"dependency": value}


def _partition(state: StateDirectory, job: Job, value: str) -> dict[str, object]:
    _pending(job)
    try:
        nodes.partition(state.settings, value)
    except CommandError as refusal:
        raise PlainError(f"{refusal.denied} for job {job.display_id}") from None
    return {"partition": value}


def _nice(_: StateDirectory, job: Job, value: str) -> dict[str, object]:
    before = niceness(job.options)
    if abs(int(value)) > 2147483645:
        raise ValueError(value)
    # A priority of 0 is a hold, which a change of the niceness neither begins nor ends.
    priority = max(1, job.priority + before - int(value)) if job.priority else 0
    return {"options": {**job.options, "nice": value}, "priority": priority}


CHANGES: dict[str, Callable[[StateDirectory, Job, str], dict[str, object]]] = {
    "account": _waiting("account"),
    "arraytaskthrottle": lambda _state, _job, value: {"array_at_once": int(value)},
    "comment": _plain("comment"),
    "dependency": _dependency,
    "excnodelist": _excluded,
    "jobname": _plain("name"),
    "name": _plain("name"),
    "nice": _nice,
    "partition": _partition,
    "priority": lambda _state, _job, value: {
        "priority": int(value),
        **({"reason": "JobHeldUser"} if value == "0" else {}),
    },
    "qos": _plain("qos"),
    "requeue": lambda _state, _job, value: {"requeue": value not in {"0", "no"}},
    "starttime": _begin,
    "timelimit": _time_limit,
}
"""Fields of a job that `scontrol update` can change."""
