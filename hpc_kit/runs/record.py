"""The record of a run, `runs/<job_name>/<job_id>/record.json`: what was run, in which environment, and how it ended."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from hpc_kit.errors import RecordError, explain_file_errors
from hpc_kit.run_files import RECORD, write_whole
from hpc_kit.runs.logs import LogPatterns
from hpc_kit.spec.resolve import Resolved

FORMAT = 1

_adding_outcomes = threading.Lock()
"""Threads may wait for the elements of one array, which share a record."""


class RecordedGit(Struct, frozen=True, kw_only=True):
    """State of the code. `patch` names the file with changes since the commit; `untracked` lists unknown files."""

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
    """The outcome of a job. Times are in ISO 8601, as Slurm printed them."""

    state: str
    exit_status: int
    start: str | None = None
    end: str | None = None
    nodes: str = ""
    first_failure: RecordedFailure | None = None
    problem: str | None = None
    """Cause of the end of a job of which no rank failed: of a failed launch over ssh, or of a cancelled job."""


class NewRecord(Struct, frozen=True, kw_only=True):
    """The whole record, as it is written."""

    format: int = FORMAT
    job_id: str = ""
    job_name: str
    submitted: str
    cluster: str
    slurm: str
    """`system`, `embedded`, or `ssh` for a launch without Slurm."""

    slurm_version: str | None = None
    slurm_cluster: str | None = None
    """Slurm's own name of the cluster; None: unknown."""

    host: str
    user: str
    cwd: str
    root: str
    command_line: list[str]
    hpc_kit: str
    python_version: str
    logs: LogPatterns
    resolved: Resolved
    hosts: dict[str, int] = {}
    """Hosts of a launch over ssh, each with its number of ranks."""

    git: RecordedGit = RecordedGit()
    packages: dict[str, str]
    environment: dict[str, str]
    end: RecordedOutcome | None = None
    elements: dict[str, RecordedOutcome] = {}
    """Outcomes of the elements of an array, by index."""


class RecordedLaunch(Struct, frozen=True, kw_only=True):
    """The launch options that readers of a record need."""

    nproc_per_node: int = 1


class RecordedResources(Struct, frozen=True, kw_only=True):
    """The sbatch options that readers of a record need."""

    array: str | int | None = None
    clusters: str | None = None
    dependency: str | None = None
    exclude: str | None = None
    mem: str | int | None = None
    mem_per_cpu: str | int | None = None


class RecordedJob(Struct, frozen=True, kw_only=True):
    """The part of a job that readers of a record need."""

    launch: RecordedLaunch = RecordedLaunch()
    resources: RecordedResources = RecordedResources()


class RecordedResolved(Struct, frozen=True, kw_only=True):
    """The part of a resolved job that readers of a record need."""

    job: RecordedJob = RecordedJob()
    world_size: int = 1
    sources: tuple[str, ...] = ()


class RecordedEnvironment(Struct, frozen=True, kw_only=True):
    """The variables that identify a Slurm. Readers hold nothing else of the environment in memory."""

    slurm_conf: str | None = field(default=None, name="SLURM_CONF")
    slurm_state: str | None = field(default=None, name="HPC_KIT_SLURM_STATE")


class RunRecord(Struct, frozen=True, kw_only=True):
    """The part of a record that is read back, also from a record that another version of hpc-kit wrote."""

    job_id: str
    job_name: str
    submitted: str
    logs: LogPatterns
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

    @property
    def submit_time(self) -> float | None:
        """Time of the submission in seconds since 1970; None if the record has none."""
        try:
            return dt.datetime.fromisoformat(self.submitted).timestamp()
        except ValueError:
            return None


def encode_record(record: NewRecord) -> bytes:
    """Return the text of a record. Bytes that are not valid UTF-8 are written as escapes."""
    # Names of files and arguments that are not UTF-8 reach Python with surrogates, which JSON cannot represent.
    try:
        data = msgspec.json.encode(record)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_escape(msgspec.to_builtins(record)))
    return msgspec.json.format(data, indent=2) + b"\n"


def _escape(value: Any) -> Any:
    if isinstance(value, str):
        return os.fsencode(value).decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {_escape(key): _escape(each) for key, each in value.items()}
    return [_escape(each) for each in value] if isinstance(value, list | tuple) else value


def read_record(run: Path) -> RunRecord | None:
    """Read the record of a run folder; None if it has no readable record."""
    try:
        return msgspec.json.decode((run / RECORD).read_bytes(), type=RunRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def add_outcomes(run: Path, outcomes: Mapping[str | None, RecordedOutcome]) -> None:
    """Add to a record how its job ended. The last outcome of a requeued job replaces the earlier ones.

    The index of `outcomes` is that of an array's element; None: the job itself.
    """
    with _adding_outcomes:
        _add_outcomes(run / RECORD, outcomes)


def _add_outcomes(path: Path, outcomes: Mapping[str | None, RecordedOutcome]) -> None:
    try:
        data = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return
    if not isinstance(data, dict):
        return
    # The record stays a plain table here: unknown fields of another version must survive.
    before = msgspec.json.encode(data)
    for index, outcome in outcomes.items():
        # Elements of one array end at different times, and each has its own outcome.
        table, key = (data, "end") if index is None else (data.setdefault("elements", {}), index)
        table[key] = msgspec.to_builtins(outcome)
    # Every look at an ended job comes here: do not touch the file without news.
    if msgspec.json.encode(data) == before:
        return
    with explain_file_errors(RecordError, f"cannot write {path}", "free some space there"):
        write_whole(path, msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")


def describe_os_error(error: OSError) -> str:
    """Return the system's message with the name of the file."""
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
