"""`scontrol update`: what may be changed of a job or a node that is there."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from hpc_kit.embedded import nodes
from hpc_kit.embedded.getopt import Problem
from hpc_kit.embedded.owner import user_name
from hpc_kit.embedded.request import Refused
from hpc_kit.embedded.scontrol_change import FINISHED, find, own_record
from hpc_kit.embedded.state import now
from hpc_kit.embedded.wake import poke
from hpc_kit.errors import HpcKitError
from hpc_kit.slurm import units, values
from hpc_kit.slurm.instants import parse_instant

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpc_kit.embedded.records import Job
    from hpc_kit.embedded.state import State


def update(state: State, words: list[str]) -> int:
    """`update NAME=VALUE ...`; the exit status."""
    pairs = [(name.lower(), value) for name, _, value in (word.partition("=") for word in words)]
    given = dict(pairs)
    if "jobid" in given or "job" in given:
        return _updatefind(state, given.pop("jobid", "") or given.pop("job", ""), given, words)
    if "nodename" in given:
        return _update_nodes(state, given)
    sys.stderr.write(
        "No valid entity in update command\n"
        'Input line must include "NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"\n'
    )
    return 1


def _updatefind(state: State, name: str, given: dict[str, str], words: list[str]) -> int:
    if not given:
        raise Problem("No changes specified")
    unknown = [word for word in words if word.partition("=")[0].lower() not in {*CHANGES, "jobid", "job"}]
    if unknown:
        raise Problem(f"Update of this parameter is not supported: {unknown[0]}\nRequest aborted")
    jobs = find(state, name)
    if not any(job.active for job in jobs):
        raise Problem(f"{FINISHED} for job {name}")
    for job in jobs:
        if not job.active:
            continue
        with state.transaction():
            current = own_record(state, job)
            for field, value in given.items():
                try:
                    changes = CHANGES[field](state, current, value)
                except HpcKitError:
                    raise Problem(f"Invalid {field} specification: {value}\nRequest aborted") from None
                state.update_job(current.job_id, **changes)
                current = state.job(current.job_id) or current
        poke(state.directory, current.job_id)
    return 0


def _option(name: str) -> Callable[[State, Job, str], dict[str, object]]:
    def change(_: State, job: Job, value: str) -> dict[str, object]:
        return {"options": {**job.options, name: value}}

    return change


def _plain(column: str) -> Callable[[State, Job, str], dict[str, object]]:
    return lambda _state, _job, value: {column: value}


def _time_limit(_: State, job: Job, value: str) -> dict[str, object]:
    sign = value[:1] if value[:1] in {"+", "-"} and value != "-1" else ""
    seconds = units.parse_time(value.removeprefix(sign))
    if sign:
        return {"time_limit": max(60, job.time_limit + (seconds if sign == "+" else -seconds))}
    return {"time_limit": seconds if seconds < 0 else -(-seconds // 60) * 60}


def _pending(job: Job) -> None:
    if job.state != "PENDING":
        raise Problem(f"Job is no longer pending execution for job {job.label}")


def _begin(_: State, job: Job, value: str) -> dict[str, object]:
    _pending(job)
    return {"begin_time": parse_instant(value).timestamp()}


def _dependency(_: State, job: Job, value: str) -> dict[str, object]:
    _pending(job)
    if value:
        values.parse_dependency(value)
    return {"dependency": value}


def _partition(state: State, job: Job, value: str) -> dict[str, object]:
    _pending(job)
    try:
        nodes.partition(state.settings, value)
    except Refused as refusal:
        raise Problem(f"{refusal.denied} for job {job.label}") from None
    return {"partition": value}


def _nice(_: State, job: Job, value: str) -> dict[str, object]:
    before = int(job.options.get("nice") or 0)
    # A priority of 0 is a hold, which a change of the niceness neither begins nor ends.
    priority = max(1, job.priority + before - int(value)) if job.priority else 0
    return {"options": {**job.options, "nice": value}, "priority": priority}


CHANGES: dict[str, Callable[[State, Job, str], dict[str, object]]] = {
    "account": _plain("account"),
    "arraytaskthrottle": lambda _state, _job, value: {"array_at_once": int(value)},
    "comment": _plain("comment"),
    "dependency": _dependency,
    "eligibletime": _begin,
    "jobname": _plain("name"),
    "mailtype": _option("mail-type"),
    "mailuser": _option("mail-user"),
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
    "wckey": _option("wckey"),
}
"""What `scontrol update` may change of a job."""


def _update_nodes(state: State, given: dict[str, str]) -> int:
    wanted = nodes.expand_names(given["nodename"])
    if not wanted or not set(wanted) <= set(nodes.names(state.settings)):
        raise Problem("slurm_update error: Invalid node name specified")
    new = given.get("state", "").upper()
    if new not in {"DOWN", "DRAIN", "RESUME", "IDLE", "UNDRAIN", "FAIL"}:
        raise Problem(f"Invalid input: state={given.get('state', '')}\nRequest aborted")
    if new in {"DOWN", "DRAIN", "FAIL"} and not given.get("reason"):
        raise Problem("You must specify a reason when DOWNING or DRAINING a node. Request denied")
    user = user_name(os.getuid())
    lost: list[Job] = []
    with state.transaction():
        for name in wanted:
            out = nodes.Out("DOWN" if new == "DOWN" else "DRAIN", given.get("reason", ""), user, now())
            nodes.take_out(state, name, out if new in {"DOWN", "DRAIN", "FAIL"} else None)
        if new == "DOWN":
            lost = [job for job in state.jobs("state = 'RUNNING'") if set(job.nodes) & set(wanted)]
        for job in lost:
            again = job.batch and job.requeue
            over = {"state": "PENDING" if again else "NODE_FAIL", "reason": "NodeDown", "completing": True}
            state.update_job(job.job_id, end_time=now(), **over)
            state.order(job.job_id, "cancel", "NODE FAILURE")
    for job in lost:
        poke(state.directory, job.job_id)
    return 0
