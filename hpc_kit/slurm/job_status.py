"""Builds the squeue, sacct and scontrol commands, and parses their output.

The name of a job may contain any character, also `|` and line breaks. So it is the last field, and a line that does not
begin like a row belongs to the name above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import HpcKitError
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm import units
from hpc_kit.slurm.job_ids import JOB_ID, base_id, expand_tasks
from hpc_kit.slurm.sizes import count_gres_gpus
from hpc_kit.slurm.states import JobState, parse_state

if TYPE_CHECKING:
    import datetime as dt


SQUEUE_FIELDS = {
    "job_id": "%i", "raw_id": "%A", "state": "%T", "user": "%u", "partition": "%P", "submit": "%V", "start": "%S",
    "end": "%e", "time_limit": "%l", "elapsed": "%M", "nodelist": "%N", "reason": "%r", "name": "%j",
}  # fmt: skip
"""Fields of a row in its order: our name and squeue's."""

QUEUE_FIELDS = {
    **{ours: word for ours, word in SQUEUE_FIELDS.items() if ours != "name"},
    "priority": "%Q", "nodes": "%D", "cpus": "%C", "gres": "%b", "qos": "%q",
    "name": "%j",
}  # fmt: skip
"""Fields of the jobs of all users, with the priority that orders them, and what they ask for."""

SACCT_FIELDS = {
    "job_id": "JobID", "raw_id": "JobIDRaw", "state": "State", "exit": "ExitCode", "user": "User",
    "partition": "Partition", "submit": "Submit", "start": "Start", "end": "End", "time_limit": "Timelimit",
    "elapsed": "Elapsed", "nodelist": "NodeList", "reason": "Reason", "name": "JobName",
}  # fmt: skip
"""Fields of a row in its order: our name and sacct's."""

_SCONTROL_FIELDS = {
    "state": "JobState", "reason": "Reason", "exit": "ExitCode", "partition": "Partition", "submit": "SubmitTime",
    "start": "StartTime", "end": "EndTime", "time_limit": "TimeLimit", "elapsed": "RunTime", "nodelist": "NodeList",
}  # fmt: skip

_RECORD = lazy_pattern(r"JobId=(\S+)(.*?)JobName=(.*?)\s+UserId=([^\s(]+)(.*)", re.DOTALL)
_CLUSTER = lazy_pattern(r"CLUSTER: \S+\s*")
"""Line that squeue prints above the jobs of each cluster in SLURM_CLUSTERS, also with --noheader."""

_NOTHING = frozenset({"", "(null)", "None assigned", "N/A", "None", "Unknown"})


class RequestedSize(NamedTuple):
    """The size that a job asks for."""

    nodes: int
    cpus: int
    """CPUs of the whole job."""

    gpus_per_node: int
    qos: str


class JobStatus(NamedTuple):
    """Status of one job, array task (`12_3`), component (`12+1`) or step (`12.batch`)."""

    job_id: str
    name: str
    state: JobState
    raw_state: str
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    nodelist: str = ""
    submit: dt.datetime | None = None
    start: dt.datetime | None = None
    """For a waiting job: when Slurm expects to start it."""
    end: dt.datetime | None = None
    """For a running job: when its time limit ends it."""
    time_limit: int | None = None
    """Seconds; `units.UNLIMITED` for none."""
    elapsed: int | None = None
    user: str = ""
    partition: str = ""
    raw_id: str = ""
    """SLURM_JOB_ID. For an array task or a component it differs from the number in `job_id`."""
    priority: int | None = None
    """Priority, if the whole queue was requested. 0 means that the job is held."""

    size: RequestedSize | None = None
    """Size of the job, if the whole queue was requested."""


def merge_statuses(own: Sequence[JobStatus]) -> JobStatus:
    """Return the status that counts for a whole job: of a part that runs or waits, else of the first that failed."""
    by_state = {status.state: status for status in reversed(own)}
    going = [state for state in by_state if not state.finished]
    failed = [state for state in by_state if state.failed]
    order = [JobState.RUNNING, *going, *failed, *by_state]
    return next(by_state[state] for state in order if state in by_state)


def status_of_job(statuses: Mapping[str, JobStatus], job_id: str) -> JobStatus | None:
    """Return the status of one job among many, merged from array tasks or components if necessary."""
    if job_id in statuses:
        return statuses[job_id]
    own = [status for key, status in statuses.items() if base_id(key) == job_id]
    return merge_statuses(own) if own else None


def parse_squeue(text: str) -> list[JobStatus]:
    """Parse the output of `squeue_argv`."""
    return [status for row in _split_rows(text, SQUEUE_FIELDS) for status in _statuses(row)]


def parse_queue(text: str) -> list[JobStatus]:
    """Parse the output of `queue_argv`."""
    return [status for row in _split_rows(text, QUEUE_FIELDS) for status in _statuses(row)]


def parse_sacct(text: str) -> list[JobStatus]:
    """Parse the output of `sacct_argv`: jobs, and their steps where they were asked for."""
    return [status for row in _split_rows(text, SACCT_FIELDS) for status in _statuses(row)]


def parse_scontrol_job(text: str) -> list[JobStatus]:
    """Parse the output of `scontrol show job`, also with --oneliner."""
    found: list[JobStatus] = []
    for record in re.split(r"^(?=JobId=[0-9])", text, flags=re.MULTILINE):
        match = _RECORD.match(record)
        if match is None:
            continue
        number, ids, name, user, fields = match.groups()
        row = {ours: _field(fields, theirs) for ours, theirs in _SCONTROL_FIELDS.items()}
        row |= {"name": name, "user": user, "job_id": _full_id(number, ids), "raw_id": number}
        found.extend(_statuses(row))
    return found


def _split_rows(text: str, fields: dict[str, str]) -> Iterator[dict[str, str]]:
    lines: list[str] = []
    for line in text.removesuffix("\n").split("\n"):
        if _CLUSTER.fullmatch(line):
            # An empty line precedes each cluster but the first.
            lines[-1:] = [each.removesuffix("\n") for each in lines[-1:]]
            continue
        head, bar, _ = line.partition("|")
        # A line of a job name may contain bars, too, but hardly begins with an id and has all fields.
        if bar and JOB_ID.fullmatch(head.strip()) and line.count("|") >= len(fields) - 1:
            lines.append(line)
        elif lines:
            lines[-1] += f"\n{line}"
    for line in lines:
        yield dict(zip(fields, line.split("|", len(fields) - 1), strict=True))


def _statuses(row: dict[str, str]) -> Iterator[JobStatus]:
    """Yield the status of a row, or of each task if the row contains several waiting tasks."""
    state = parse_state(row["state"])
    # squeue has no field for the exit status. That of a completed job is 0.
    exit_code, colon, signal = row.get("exit", "0:0" if state is JobState.COMPLETED else "").partition(":")
    ended = state.finished and colon
    first, *others = expand_tasks(row["job_id"].strip())
    priority = row.get("priority", "")
    status = JobStatus(
        job_id=first,
        name=row["name"],
        state=state,
        raw_state=row["state"],
        reason=None if row["reason"] in _NOTHING else row["reason"],
        exit_code=_parse_number(exit_code) if ended else None,
        signal=_parse_number(signal) if ended else None,
        nodelist="" if row["nodelist"] in _NOTHING else row["nodelist"],
        submit=_parse_moment(row["submit"]),
        start=_parse_moment(row["start"]),
        end=_parse_moment(row["end"]),
        time_limit=_parse_seconds(row["time_limit"]),
        elapsed=_parse_seconds(row["elapsed"]),
        user=row["user"],
        partition=row["partition"],
        raw_id=row["raw_id"].partition(".")[0],
        priority=_parse_number(priority),
        size=_parse_size(row) if state is JobState.PENDING else None,
    )
    yield status
    # There may be ten thousand waiting tasks, so the other fields are parsed once.
    for job_id in others:
        yield status._replace(job_id=job_id)


def _parse_size(row: dict[str, str]) -> RequestedSize | None:
    nodes, cpus = _parse_number(row.get("nodes", "")), _parse_number(row.get("cpus", ""))
    if not nodes or cpus is None:
        return None
    # Slurm 22.05 prints gres:gpu:4, later releases gres/gpu:4.
    gres = re.sub(r"\bgres[:/]", "", row["gres"])
    return RequestedSize(nodes, cpus, count_gres_gpus(gres) or 0, "" if row["qos"] in _NOTHING else row["qos"])


def _parse_number(text: str) -> int | None:
    """Return a number; None for a field that the accounting has cut."""
    return int(text) if text.isdecimal() else None


def _full_id(number: str, ids: str) -> str:
    array, task = _field(ids, "ArrayJobId"), _field(ids, "ArrayTaskId")
    if array and task:
        return f"{array}_{task}" if task.isdigit() else f"{array}_[{task}]"
    het, offset = _field(ids, "HetJobId"), _field(ids, "HetJobOffset")
    return f"{het}+{offset}" if het and offset else number


def _field(text: str, key: str) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", text)
    return match[1] if match else ""


@cache
def _parse_moment(text: str) -> dt.datetime | None:
    import datetime as dt

    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return None


@cache
def _parse_seconds(text: str) -> int | None:
    try:
        return units.parse_time(text.strip())
    except HpcKitError:
        return None


SQUEUE_FORMAT = "|".join(SQUEUE_FIELDS.values())
QUEUE_FORMAT = "|".join(QUEUE_FIELDS.values())
SACCT_FORMAT = ",".join(SACCT_FIELDS.values())

MAX_IDS = 200
"""With more ids, squeue is asked for all jobs of this user."""


def squeue_argv(ids: Sequence[str] | None = None) -> list[str]:
    """Return the squeue command for these jobs or for all of this user. It also shows jobs that have just ended."""
    which = f"--jobs={','.join(ids)}" if ids is not None and len(ids) <= MAX_IDS else "--me"
    return ["squeue", "--noheader", "--array", "--states=all", which, f"--format={SQUEUE_FORMAT}"]


def queue_argv() -> list[str]:
    """Return the squeue command for the jobs of all users. The waiting tasks of an array are one line."""
    return ["squeue", "--noheader", "--states=all", f"--format={QUEUE_FORMAT}"]


def sacct_argv(ids: Sequence[str], *, clusters: str | None = None) -> list[str]:
    """Return the sacct command for these jobs.

    `clusters` is the value of SLURM_CLUSTERS, which sacct does not read, unlike the other commands.
    """
    scope = [*sacct_clusters(clusters), "--allocations"]
    return ["sacct", "--noheader", "--parsable2", *scope, f"--jobs={','.join(ids)}", f"--format={SACCT_FORMAT}"]


def sacct_clusters(clusters: str | None) -> list[str]:
    """Return sacct's option for the clusters of SLURM_CLUSTERS."""
    return [f"--clusters={clusters}"] if clusters else []


def scontrol_job_argv(job_id: str | None = None) -> list[str]:
    """Return the scontrol command for one job, or for all jobs that the controller remembers."""
    return ["scontrol", "show", "job", *([job_id] if job_id else [])]


def suggest_remedy(words: str) -> str:
    """Suggest what to do if a command of Slurm fails."""
    if re.search("configuration source", words, re.IGNORECASE):
        return "run this on a login node of the cluster, or add --cluster local for the embedded Slurm"
    if re.search("munge|authentication", words, re.IGNORECASE):
        return "tell the administrators that munge, which authenticates users, does not run on this host"
    return "try again later; `scontrol ping` shows whether the controller is up"


def scancel_argv(ids: Sequence[str], signal: str | None = None) -> list[str]:
    """Return the scancel command that cancels jobs, or sends a signal to their steps."""
    return ["scancel", *([f"--signal={signal}"] if signal else []), *ids]
