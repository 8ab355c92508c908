"""The record of a run, `runs/<job_name>/<job_id>/record.json`: what was run, with what, and how it ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from hpc_kit.errors import RecordError
from hpc_kit.run_files import RECORD, write_whole
from hpc_kit.spec.resolve import Resolved

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1

SSH = "ssh"
"""What the record of a launch over ssh names in place of a Slurm."""


class RecordedLogs(Struct, frozen=True, kw_only=True):
    """Names of the logs with Slurm's patterns, relative to `runs/<job_name>/` where they lie inside."""

    batch: str
    ranks: str
    batch_error: str | None = None
    ranks_error: str | None = None


class RecordedGit(Struct, frozen=True, kw_only=True):
    """The code; `patch` names the file that holds what differs from the commit, `untracked` what git does not know."""

    root: str | None = None
    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    patch: str | None = None
    untracked: tuple[str, ...] = ()
    note: str | None = None


class RecordedFailure(Struct, frozen=True, kw_only=True):
    """The rank that failed first."""

    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None
    headline: str = ""


class RecordedOutcome(Struct, frozen=True, kw_only=True):
    """How a job ended; times in ISO 8601, as Slurm gave them."""

    state: str
    exit_status: int
    start: str | None = None
    end: str | None = None
    nodes: str = ""
    first_failure: RecordedFailure | None = None
    problem: str | None = None
    """Of a launch over ssh of which no rank failed: what did."""


class NewRecord(Struct, frozen=True, kw_only=True):
    """The whole record, as `record.json` holds it."""

    format: int = FORMAT
    job_id: str = ""
    job_name: str
    submitted: str
    cluster: str
    slurm: str
    slurm_version: str | None = None
    slurm_cluster: str | None = None
    """Slurm's own name for the cluster that took it, where that is known."""

    host: str
    user: str
    cwd: str
    root: str
    command_line: list[str]
    hpc_kit: str
    python_version: str
    logs: RecordedLogs
    resolved: Resolved
    hosts: dict[str, int] = {}
    """Of a launch over ssh: each host with its ranks."""

    git: RecordedGit = RecordedGit()
    packages: dict[str, str]
    environment: dict[str, str]
    end: RecordedOutcome | None = None
    elements: dict[str, RecordedOutcome] = {}


class RecordedLaunch(Struct, frozen=True, kw_only=True):
    """How the ranks were started."""

    nproc_per_node: int = 1


class RecordedResources(Struct, frozen=True, kw_only=True):
    """What was asked of Slurm."""

    array: str | int | None = None
    clusters: str | None = None


class RecordedJob(Struct, frozen=True, kw_only=True):
    """The part of a job that its logs are read by."""

    launch: RecordedLaunch = RecordedLaunch()
    resources: RecordedResources = RecordedResources()


class RecordedResolved(Struct, frozen=True, kw_only=True):
    """The part of a resolved job that its logs are read by."""

    job: RecordedJob = RecordedJob()
    world_size: int = 1
    sources: tuple[str, ...] = ()


class RecordedEnvironment(Struct, frozen=True, kw_only=True):
    """Which Slurm its commands meant; nothing else of the environment is carried about with a job."""

    slurm_conf: str | None = field(default=None, name="SLURM_CONF")
    slurm_state: str | None = field(default=None, name="HPC_KIT_SLURM_STATE")


class RunRecord(Struct, frozen=True, kw_only=True):
    """What is read back of a record, also of one that another version has written."""

    job_id: str
    job_name: str
    submitted: str
    logs: RecordedLogs
    cluster: str = ""
    slurm: str = "system"
    slurm_version: str | None = None
    slurm_cluster: str | None = None
    host: str = ""
    user: str = ""
    command_line: list[str] = []
    hosts: dict[str, int] = {}
    resolved: RecordedResolved = RecordedResolved()
    environment: RecordedEnvironment = RecordedEnvironment()
    end: RecordedOutcome | None = None
    elements: dict[str, RecordedOutcome] = {}


def encode_record(record: NewRecord) -> bytes:
    """The text of a record; bytes of its words that are no UTF-8 are spelt out."""
    try:
        data = msgspec.json.encode(record)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_printable(msgspec.to_builtins(record)))
    return msgspec.json.format(data, indent=2) + b"\n"


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return os.fsencode(value).decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list | tuple) else value


def read_record(run: Path) -> RunRecord | None:
    """What is known of a run; None where it has no record that can be read."""
    try:
        return msgspec.json.decode((run / RECORD).read_bytes(), type=RunRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def add_outcomes(run: Path, ends: Mapping[str | None, RecordedOutcome]) -> None:
    """Add to a record how its job ended; of a job that was requeued, the last end holds.

    Args:
        run: The run folder of the job, or of the whole array.
        ends: How it ended, by element of an array; None: the job itself.

    Raises:
        RecordError: The record is there but cannot be written.
    """
    path = run / RECORD
    try:
        data = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return
    if not isinstance(data, dict):
        return
    before = msgspec.json.encode(data)
    for element, end in ends.items():
        place, key = (data, "end") if element is None else (data.setdefault("elements", {}), element)
        place[key] = msgspec.to_builtins(end)
    if msgspec.json.encode(data) == before:
        return
    try:
        write_whole(path, msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")
    except OSError as error:
        raise RecordError(
            f"cannot write {path}", found=describe_os_error(error), remedy="free some space there"
        ) from error


def describe_os_error(error: OSError) -> str:
    """What the system said, and of which file."""
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
