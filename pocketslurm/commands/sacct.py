"""The command sacct: prints the records of the queue; there is no accounting database."""

from __future__ import annotations

import datetime as dt
import os
import re
from itertools import takewhile
from typing import TYPE_CHECKING

from hpc_kit.slurm.datetimes import parse_datetime
from hpc_kit.slurm.errors import HpcKitError
from hpc_kit.slurm.nodelist import expand
from hpc_kit.slurm.states import parse_state_filter
from pocketslurm import option_support
from pocketslurm.errors import CommandError, PlainError, UsageError
from pocketslurm.listings.sacct_columns import NAMES, NEWER, SIZES, UNITS, JobOrStep, SacctColumn, in_unit
from pocketslurm.listings.sacct_columns import find as find_field
from pocketslurm.listings.views import JobView
from pocketslurm.option_support import NONE, OPTIONAL, REQUIRED, Table
from pocketslurm.queue import controller_start
from pocketslurm.queue.job_ids import JobSelector, column_filter, find_selected, parse_selectors
from pocketslurm.queue.state import StateDirectory, now
from pocketslurm.settings import load_settings
from pocketslurm.users import user_exists

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pocketslurm.queue.records import Job


DEFAULT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
BRIEF = "JobID,State,ExitCode"
LONG = (
    "JobID,JobIDRaw,JobName,Partition,MaxVMSize,MaxVMSizeNode,MaxVMSizeTask,AveVMSize,MaxRSS,MaxRSSNode,MaxRSSTask,"
    "AveRSS,MaxPages,MaxPagesNode,MaxPagesTask,AvePages,MinCPU,MinCPUNode,MinCPUTask,AveCPU,NTasks,AllocCPUS,Elapsed,"
    "State,ExitCode,AveCPUFreq,ReqCPUFreqMin,ReqCPUFreqMax,ReqCPUFreqGov,ReqMem,ConsumedEnergy,MaxDiskRead,"
    "MaxDiskReadNode,MaxDiskReadTask,AveDiskRead,MaxDiskWrite,MaxDiskWriteNode,MaxDiskWriteTask,AveDiskWrite,ReqTRES,"
    "AllocTRES,TRESUsageInAve,TRESUsageInMax,TRESUsageInMaxNode,TRESUsageInMaxTask,TRESUsageInMin,TRESUsageInMinNode,"
    "TRESUsageInMinTask,TRESUsageInTot,TRESUsageOutMax,TRESUsageOutMaxNode,TRESUsageOutMaxTask,TRESUsageOutAve,"
    "TRESUsageOutTot"
)

OPTIONS = Table(
    ("accounts", "A", REQUIRED), ("allclusters", "L", NONE), ("allocations", "X", NONE),
    ("allusers", "a", NONE), ("associations", "x", REQUIRED), ("batch-script", "B", NONE), ("brief", "b", NONE),
    ("clusters", "M", REQUIRED, "cluster"), ("completion", "c", NONE), ("constraints", "C", REQUIRED),
    ("delimiter", "", REQUIRED), ("duplicates", "D", NONE), ("endtime", "E", REQUIRED), ("env-vars", "", NONE),
    ("federation", "", NONE), ("file", "f", REQUIRED), ("flags", "F", REQUIRED), ("format", "o", REQUIRED, "fields"),
    ("gid", "", REQUIRED), ("group", "g", REQUIRED), ("help", "h", NONE), ("helpformat", "e", NONE),
    ("jobs", "j", REQUIRED), ("json", "", NONE), ("local", "", NONE), ("long", "l", NONE),
    ("name", "", REQUIRED), ("ncpus", "i", REQUIRED), ("nnodes", "I", REQUIRED), ("noconvert", "", NONE),
    ("nodelist", "N", REQUIRED), ("noheader", "n", NONE), ("parsable", "p", NONE), ("parsable2", "P", NONE),
    ("partition", "r", REQUIRED), ("qos", "q", REQUIRED), ("reason", "R", REQUIRED), ("starttime", "S", REQUIRED),
    ("state", "s", REQUIRED), ("timelimit-max", "K", REQUIRED), ("timelimit-min", "k", REQUIRED),
    ("truncate", "T", NONE), ("uid", "", REQUIRED), ("units", "", REQUIRED), ("usage", "U", NONE),
    ("use-local-uid", "", NONE), ("user", "u", OPTIONAL), ("verbose", "v", NONE), ("version", "V", NONE),
    ("wckeys", "W", REQUIRED), ("whole-hetjob", "", OPTIONAL),
    notes=option_support.SACCT,
)  # fmt: skip


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    options = _options(argv)
    if OPTIONS.print_help("sacct", options):
        return 0
    if "helpformat" in options:
        for first in range(0, len(NAMES), 4):
            print(" ".join(f"{name:<19}" for name in NAMES[first : first + 4]))
        return 0
    fields = _fields(options, environ)
    if (unit := options.get("units", UNITS)[:1]).upper() not in UNITS:
        raise CommandError(
            f"error: Invalid unit type '{unit}'. Possible options are '{UNITS}'", "fatal: Invalid unit type"
        )
    state = StateDirectory.open(environ)
    controller_start.wait_until_ready(state)
    # The accounting database has no other cluster, and sacct then prints nothing.
    other = state.settings.other_clusters(options.get("clusters", "all"))
    rows = [] if other else _rows(state, options)
    if "json" in options:
        from pocketslurm.listings.json_documents import sacct_document

        print(sacct_document(rows))
    else:
        _print(rows, fields, options)
    return 0


def _options(argv: list[str]) -> dict[str, str]:
    try:
        given, words = OPTIONS.parse(argv)
    except UsageError as error:
        # Unlike most commands, sacct does not refer to --help.
        raise CommandError(*error.lines) from None
    options: dict[str, str] = {}
    for name, value in given:
        joined = name in {"jobs", "format"} and options.get(name)
        options[name] = f"{options[name]},{value}" if joined else value or ""
    if options.get("user") == "" and words:
        options["user"] = words.pop(0)
    return options


def _fields(options: dict[str, str], environ: Mapping[str, str]) -> list[tuple[str, int, SacctColumn]]:
    fallback = BRIEF if "brief" in options else LONG if "long" in options else environ.get("SACCT_FORMAT", DEFAULT)
    found = []
    # An empty name ends the list: `--format=$(sacct -e | tr -s ' \\n' ,)` has one at its end.
    for part in takewhile(str.strip, options.get("format", fallback).split(",")):
        name, percent, width = part.strip().partition("%")
        if name.upper() == "ALL":
            found += [(each, field.width, field) for each, field in (_find_column(name, environ) for name in NAMES)]
            continue
        if percent and not re.fullmatch(r"-?[0-9]+", width):
            raise CommandError(f'error: Invalid field width: "{part}"')
        full, field = _find_column(name, environ)
        found.append((full, int(width) if percent else field.width, field))
    return found


def _find_column(name: str, environ: Mapping[str, str]) -> tuple[str, SacctColumn]:
    found = find_field(name)
    if found is None and name.lower() in NEWER and not load_settings(environ).strict:
        return NEWER[name.lower()]
    if name.lower() in {"allocgres", "reqgres"}:
        kind = name.lower().removesuffix("gres").title()
        raise CommandError(f"fatal: {kind}GRES has been removed, please use {kind}TRES")
    if found is None:
        raise CommandError(f'error: Invalid field requested: "{name}"')
    return found


def _print(rows: list[JobOrStep], fields: list[tuple[str, int, SacctColumn]], options: dict[str, str]) -> None:
    header = "noheader" not in options
    unit = options.get("units", "")[:1].upper() or ("M" if "noconvert" in options else "")

    def cells(row: JobOrStep) -> Iterator[str]:
        for name, _, field in fields:
            yield in_unit(field.value(row), unit) if unit and name in SIZES else field.value(row)

    if options.keys() & {"parsable", "parsable2"}:
        delimiter = options.get("delimiter", "|")
        end = delimiter if "parsable2" not in options else ""
        if header:
            print(delimiter.join(name for name, _, _ in fields) + end)
        for row in rows:
            print(delimiter.join(cells(row)) + end)
        return
    if header:
        print("".join(f"{_cut(name, width)} " for name, width, _ in fields))
        print("".join(f"{'-' * abs(width)} " for _, width, _ in fields))
    for row in rows:
        print("".join(f"{_cut(text, width)} " for text, (_, width, _) in zip(cells(row), fields, strict=True)))


def _cut(text: str, width: int) -> str:
    size = abs(width)
    if len(text) > size:
        return text[: size - 1] + "+"
    return text.ljust(size) if width < 0 else text.rjust(size)


def _rows(state: StateDirectory, options: dict[str, str]) -> list[JobOrStep]:
    moment = now()
    rows = []
    for job, steps in _chosen(state, options):
        view = JobView(state, job, moment)
        if not steps:
            rows.append(JobOrStep(view))
        if "allocations" not in options and job.start_time:
            listed = state.steps(job.job_id)
            rows += [JobOrStep(view, step) for step in listed if not steps or step.label in steps]
    return rows


def _chosen(state: StateDirectory, options: dict[str, str]) -> list[tuple[Job, set[str]]]:
    """Return the jobs, each with the names of selected steps."""
    if "jobs" in options:
        try:
            ids = parse_selectors(options["jobs"])
        except ValueError as error:
            raise CommandError(f"fatal: Bad job/step specified: {error}") from None
        found = _by_ids(state, ids)
    else:
        found = [(job, set[str]()) for job in state.jobs()]
    # The started tasks of an array come first, by index, and the record of the waiting ones last.
    found.sort(
        key=lambda pair: (
            pair[0].array_job_id or pair[0].job_id,
            pair[0].array_task_id is None,
            pair[0].array_task_id or 0,
        )
    )
    passes = JobFilter(options)
    return [(job, steps) for job, steps in found if passes(job)]


def _by_ids(state: StateDirectory, ids: list[JobSelector]) -> list[tuple[Job, set[str]]]:
    found: dict[tuple[int, int | None], tuple[Job, set[str]]] = {}
    for each in ids:
        for job in find_selected(state, each):
            _, steps = found.setdefault((job.job_id, job.array_task_id), (job, set()))
            if each.step:
                steps.add(each.step)
    return list(found.values())


class JobFilter:
    """Selects the jobs that match the options."""

    def __init__(self, options: dict[str, str]) -> None:
        columns = {"partition": "partition", "name": "name", "accounts": "account", "qos": "qos"}
        self._has_columns = column_filter(options, columns)
        self._wckeys = set(options["wckeys"].split(",")) if "wckeys" in options else set()
        self._users = {word for name in ("user", "uid") for word in options.get(name, "").split(",") if word}
        # Root sees the jobs of all users, others see their own jobs.
        if "user" not in options and "uid" not in options and os.getuid():
            self._users = {str(os.getuid())}
        if unknown := sorted(word for word in self._users if not user_exists(word)):
            raise CommandError(f"error: Invalid user id: {unknown[0]}")
        if "allusers" in options or "jobs" in options:
            self._users = set()
        self._hosts = set(expand(options["nodelist"])) if "nodelist" in options else set()
        self._states = _states(options)
        # Without ids and states, sacct lists the jobs since midnight.
        by_id = "jobs" in options
        self._since = _instant(options.get("starttime"), 0.0 if by_id or self._states else _midnight())
        self._until = _instant(options.get("endtime"), float("inf"))

    def __call__(self, job: Job) -> bool:
        """Return whether a job matches."""
        in_time = (job.end_time or float("inf")) >= self._since and job.submit_time <= self._until
        return (
            in_time
            and self._has_columns(job)
            and (not self._wckeys or job.options.get("wckey") in self._wckeys)
            and (not self._users or job.user in self._users or str(job.uid) in self._users)
            and (not self._hosts or bool(self._hosts & set(job.nodes)))
            and (not self._states or not self._states.isdisjoint({job.state, job.shown_state}))
        )


def _states(options: dict[str, str]) -> frozenset[str]:
    try:
        return parse_state_filter(options["state"]) if options.get("state") else frozenset()
    except ValueError as error:
        raise CommandError(f"fatal: unrecognized job state value '{error}'") from None


def _instant(text: str | None, default: float) -> float:
    if not text:
        return default
    try:
        # Slurm counts in seconds if the unit is missing.
        return parse_datetime(re.sub(r"^now([+-]\d+)$", r"now\1seconds", text)).timestamp()
    except HpcKitError:
        raise PlainError(f"Invalid time specification (pos=0): {text}") from None


def _midnight() -> float:
    return dt.datetime.now().replace(hour=0, minute=0, second=0, microsecond=0).timestamp()  # noqa: DTZ005
