"""The command scontrol: shows objects; holds, releases, requeues and changes jobs."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from hpc_kit.slurm.errors import HostlistError
from hpc_kit.slurm.nodelist import expand, fold
from pocketslurm import option_support
from pocketslurm.commands import scontrol_update
from pocketslurm.errors import PlainError
from pocketslurm.listings import scontrol_show
from pocketslurm.option_support import NONE, REQUIRED, Table
from pocketslurm.queue import controller_start, messages, nodes, submission
from pocketslurm.queue.job_ids import FINISHED, find_jobs, own_record
from pocketslurm.queue.messages import wake
from pocketslurm.queue.scheduler import REQUEUED_HELD
from pocketslurm.queue.state import StateDirectory, now
from pocketslurm.queue.submission import put_back
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.records import Job


OPTIONS = Table(
    ("all", "a", NONE), ("details", "d", NONE), ("federation", "", NONE), ("future", "F", NONE), ("help", "h", NONE),
    ("hide", "", NONE), ("local", "", NONE), ("clusters", "M", REQUIRED, "cluster"), ("oneliner", "o", NONE),
    ("quiet", "Q", NONE), ("sibling", "", NONE), ("uid", "u", REQUIRED), ("verbose", "v", NONE), ("version", "V", NONE),
    notes=option_support.SCONTROL,
)  # fmt: skip

COMMANDS = {
    "hold": (1, 99), "uhold": (1, 99), "release": (1, 99), "requeue": (1, 99), "requeuehold": (1, 99),
    "update": (1, 99), "show": (1, 2), "ping": (0, 0), "version": (0, 0), "help": (0, 0),
}  # fmt: skip
"""The commands, with the fewest and the most words that may follow."""

_LISTS = ("hostnames", "hostlist", "hostlistsorted")
_REFUSED = {
    **dict.fromkeys(
        ("abort", "cancel_reboot", "reboot", "reconfigure", "setdebug", "setdebugflags", "shutdown", "takeover"),
        "there is no daemon, and nodes are always up",
    ),
    **dict.fromkeys(("create", "delete"), "there are no reservations"),
    **dict.fromkeys(("listpids", "pidinfo"), "ps shows the processes: each has SLURM_JOB_ID in its environment"),
    "notify": "write to the file of the job: see StdOut of scontrol show job",
    "resume": "scancel --signal=CONT lets the tasks of a job continue",
    "suspend": "scancel --signal=STOP stops the tasks of a job",
    "top": "change the order by scontrol update JobId=... Priority=...",
    "wait_job": "nodes need no boot",
    "write": "Command of scontrol show job is the path of the script",
    **dict.fromkeys(("show aliases", "show frontend", "show slurmd", "show topology"), "all nodes are this machine"),
    **dict.fromkeys(("show assoc_mgr", "show federation"), "there is no accounting, and one cluster"),
    **dict.fromkeys(("show burstbuffer", "show bbstat", "show dwstat"), "there is no burst buffer"),
    "show daemons": "there is no daemon",
    "show licenses": "there are no licences",
}
"""Commands of Slurm's scontrol that are refused, with the reason or the alternative."""

_ENOUGH = 5
"""Minimum number of letters of an abbreviated name: `show hostname` is enough."""


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    parsed, words = OPTIONS.parse(argv)
    flags = {name: value or "" for name, value in parsed}
    if flags.keys() & {"version", "help"}:
        print(f"slurm {SLURM_VERSION}" if "version" in flags else _help())
        return 0
    if not words:
        raise PlainError("scontrol: error: name a command: the embedded Slurm has no interactive scontrol")
    command, *arguments = words
    name = _command(command, arguments)
    if "clusters" in flags:
        option_support.check_clusters("scontrol", flags["clusters"], StateDirectory.open(environ).settings)
    if name in {"version", "help"}:
        print(f"slurm {SLURM_VERSION}" if name == "version" else _help())
    elif name == "ping":
        print(f"Slurmctld(primary) at {os.uname().nodename} is UP")
    elif name == "show":
        try:
            _show(flags, arguments, environ)
        except scontrol_show.NotFound as error:
            print(error)
            return 1
    else:
        return _act(name, arguments, environ)
    return 0


def _command(typed: str, rest: list[str]) -> str:
    low = typed.lower()
    possible = [low] if low in COMMANDS else [name for name in COMMANDS if name.startswith(low)]
    for refused in (low, f"{low} {rest[0].lower()}" if rest else ""):
        if refused in _REFUSED:
            raise PlainError(f"scontrol: {refused} is not supported by the embedded Slurm: {_REFUSED[refused]}")
    if not possible:
        raise PlainError(f"invalid keyword: {typed}")
    fewest, most = COMMANDS[possible[0]]
    if not fewest <= len(rest) <= most:
        few = "few" if len(rest) < fewest else "many"
        raise PlainError(f"too {few} arguments for keyword:{typed}")
    return possible[0]


def _help() -> str:
    return f"scontrol [<OPTION>] [<COMMAND>]\n    Valid <COMMAND> values are: {', '.join(sorted(COMMANDS))}"


def _open(environ: Mapping[str, str]) -> StateDirectory:
    state = StateDirectory.open(environ)
    controller_start.wait_until_ready(state)
    return state


def _act(name: str, words: list[str], environ: Mapping[str, str]) -> int:
    state = _open(environ)
    if name == "update":
        status = scontrol_update.update(state, words)
    elif name in {"requeue", "requeuehold"}:
        status = requeue(state, words, held=name == "requeuehold")
    else:
        status = hold_or_release(state, name, words)
    if not status:
        controller_start.ensure_running(state)
    return status


def _show(flags: Mapping[str, str], words: list[str], environ: Mapping[str, str]) -> None:
    # `show job=12` is `show job 12`.
    entity, equals, value = words[0].partition("=")
    rest = [value, *words[1:]] if equals else words[1:]
    entity = entity.lower()
    lists = [name for name in _LISTS if len(entity) >= _ENOUGH and name.startswith(entity)]
    if lists:
        entity = lists[0]
        _show_hosts(entity, rest[0] if rest else environ.get("SLURM_NODELIST", ""), is_argument=bool(rest))
    else:
        scontrol_show.show(_open(environ), entity, rest[0] if rest else None, flags)


def _show_hosts(entity: str, text: str, *, is_argument: bool) -> None:
    if not text and entity == "hostnames":
        if not is_argument:
            raise PlainError("scontrol: error: host list is empty")
        return
    if not text:
        raise PlainError("invalid encode argument")
    try:
        if text.startswith("/"):
            with open(text) as file:  # noqa: PTH123
                text = ",".join(file.read().replace("\n", ",").strip(",").split(","))
        hosts = expand(text)
    except (OSError, HostlistError) as error:
        what = error.what if isinstance(error, HostlistError) else error
        raise PlainError(f"Invalid hostlist: {text} ({what})") from None
    if entity == "hostnames":
        print("\n".join(hosts))
    else:
        print(fold(sorted(hosts, key=nodes.natural) if entity == "hostlistsorted" else hosts))


NOT_LEADER = "Job not heterogeneous job leader"
# Holding and releasing


def hold_or_release(state: StateDirectory, verb: str, words: list[str]) -> int:
    """Run `hold`, `uhold` or `release` and return the exit status."""
    status = 0
    for word in ",".join(words).split(","):
        try:
            jobs = _unfinished(state, word)
        except PlainError as problem:
            reason = str(problem).partition(" for job")[0]
            sys.stderr.write(f"{problem}\nslurm_suspend error: {reason}\n")
            status = 1
            continue
        with state.transaction():
            for job in jobs:
                if job.state == "PENDING":
                    _hold(state, own_record(state, job), verb)
    return status


def _unfinished(state: StateDirectory, word: str) -> list[Job]:
    jobs = [job for job in find_jobs(state, word) if job.active]
    if not jobs:
        raise PlainError(f"{FINISHED} for job {word}")
    return jobs


def _hold(state: StateDirectory, job: Job, verb: str) -> None:
    if verb == "release":
        if job.priority == 0:
            priority = submission.TOP_PRIORITY - job.job_id - submission.niceness(job.options)
            state.update_job(job.job_id, priority=priority, reason="None")
        return
    admin = os.getuid() == 0 and verb == "hold"
    state.update_job(job.job_id, priority=0, reason="JobHeldAdmin" if admin else "JobHeldUser")


# Requeueing


def requeue(state: StateDirectory, words: list[str], *, held: bool) -> int:
    """Run `requeue` or `requeuehold` and return the exit status."""
    status = 0
    # A job may requeue itself. This process then gets SIGTERM, too, and must still print its messages.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for word in [part for part in words if not part.lower().startswith("state=")]:
        try:
            problems = _requeue_all(state, find_jobs(state, word), held=held)
        except PlainError as problem:
            problems = [str(problem)]
        sys.stderr.write("".join(f"{problem}\n" for problem in problems))
        status = status or int(bool(problems))
    return status


def _requeue_all(state: StateDirectory, jobs: list[Job], *, held: bool) -> list[str]:
    problems = []
    # Of a heterogeneous job, the leader stands for all components; a single component gets an error.
    for job in [job for job in jobs if job.leader_id == job.job_id or len(jobs) == 1]:
        with state.transaction():
            current = own_record(state, job)
            problem = _requeue(state, current, held=held)
        if problem:
            problems.append(
                f"{problem} for job {_id_in_message(job)}"
                if len(jobs) == 1 or job.het_job_id
                else f"{job.display_id}: {problem}"
            )
        elif current.state == "RUNNING":
            wake(state.directory, current.job_id)
    return problems


def _id_in_message(job: Job) -> str:
    return job.display_id if job.het_job_id is None else str(job.job_id)


def _requeue(state: StateDirectory, job: Job, *, held: bool) -> str:
    """Requeue one job. Return the reason why that is impossible, or an empty text."""
    if job.leader_id != job.job_id:
        return NOT_LEADER
    if job.state == "PENDING":
        if held:
            state.update_components(job.job_id, priority=0, reason=REQUEUED_HELD)
        return "" if held or job.completing else "Job is pending execution"
    if not job.requeue:
        return "Requested operation is presently disabled"
    if not job.batch:
        return "Only batch jobs are accepted or processed"
    if job.completing:
        return "Job can not be altered now, try again later"
    if held:
        state.update_components(job.job_id, priority=0, reason=REQUEUED_HELD)
        job = job._replace(priority=0, reason=REQUEUED_HELD)
    if job.state == "RUNNING":
        state.update_components(job.job_id, state="PENDING", completing=True, end_time=now())
        state.add_order(job.job_id, messages.Cancel("JOB REQUEUE"))
    else:
        put_back(state, job)
    return ""
