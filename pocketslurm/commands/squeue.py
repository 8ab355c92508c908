"""The command squeue: filters, sorts and prints jobs and steps."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from hpc_kit.slurm.states import STATE_CODES, parse_state_filter
from pocketslurm import option_support
from pocketslurm.errors import PlainError
from pocketslurm.listings import columns
from pocketslurm.listings.squeue_columns import BY_LETTER, BY_NAME, EVERYTHING, SORT_KEYS
from pocketslurm.listings.views import JobView
from pocketslurm.option_support import NONE, OPTIONAL, REQUIRED, Table
from pocketslurm.queue import controller_start, nodes
from pocketslurm.queue.job_ids import column_filter, find_by_text, recent_jobs
from pocketslurm.queue.state import StateDirectory, now
from pocketslurm.users import user_exists

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pocketslurm.queue.records import Job
    from pocketslurm.settings import Settings


DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
_ACTIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED", "COMPLETING"})

OPTIONS = Table(
    ("accounts", "A", REQUIRED), ("all", "a", NONE), ("array", "r", NONE), ("array-unique", "", NONE),
    ("Format", "O", REQUIRED), ("format", "o", REQUIRED), ("federation", "", NONE), ("help", "", NONE),
    ("hide", "", NONE), ("iterate", "i", REQUIRED), ("jobs", "j", OPTIONAL), ("local", "", NONE), ("long", "l", NONE),
    ("licenses", "L", REQUIRED), ("clusters", "M", REQUIRED, "cluster"), ("me", "", NONE), ("name", "n", REQUIRED),
    ("noconvert", "", NONE), ("nodelist", "w", REQUIRED, "node nodes"), ("noheader", "h", NONE),
    ("partitions", "p", REQUIRED), ("priority", "P", NONE), ("qos", "q", REQUIRED), ("reservation", "R", REQUIRED),
    ("sibling", "", NONE, "sib"), ("sort", "S", REQUIRED), ("start", "", NONE), ("steps", "s", OPTIONAL),
    ("states", "t", REQUIRED), ("usage", "", NONE), ("user", "u", REQUIRED, "users"), ("verbose", "v", NONE),
    ("version", "V", NONE), ("json", "", NONE),
    notes=option_support.SQUEUE,
)  # fmt: skip
VARIABLES = {
    "SQUEUE_ACCOUNT": "accounts", "SQUEUE_FORMAT": "format", "SQUEUE_FORMAT2": "Format", "SQUEUE_NAMES": "name",
    "SQUEUE_PARTITION": "partitions", "SQUEUE_QOS": "qos", "SQUEUE_SORT": "sort", "SQUEUE_STATES": "states",
    "SQUEUE_USERS": "user", "SQUEUE_ARRAY": "array",
}  # fmt: skip
"""Variables that set an option if the command line does not."""


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    parsed, words = OPTIONS.parse(argv)
    options = {name: value or "" for name, value in parsed}
    with_value = {name for name, value in parsed if value is not None}
    if OPTIONS.print_help("squeue", options):
        return 0
    # getopt takes an optional value only from the same word (-j12); squeue also accepts `-j 12`.
    if "jobs" in options and "jobs" not in with_value and words:
        options["jobs"] = words.pop(0)
        with_value.add("jobs")
    if "jobs" in with_value and not options["jobs"]:
        options["states"] = ""  # -j "$UNSET" is an empty list of jobs, not the whole queue
    if words:
        raise PlainError(f"squeue: error: Unrecognized option: {words[0]}")
    _from_environment(options, environ)
    state = StateDirectory.open(environ)
    option_support.check_clusters("squeue", options.get("clusters", "all"), state.settings)
    controller_start.wait_until_ready(state)
    moment = now()
    views = [JobView(state, job, moment) for job in _jobs(state, options)]
    if "array" in options:
        views = [JobView(state, job, moment) for view in views for job in view.tasks_apart()]
    if "json" in options:
        from pocketslurm.listings.json_documents import squeue_document

        print(squeue_document(views))
    else:
        _print(views, options)
    return 0


def _from_environment(options: dict[str, str], environ: Mapping[str, str]) -> None:
    # One option that chooses columns also replaces the variables of the other ones.
    chosen = {"format", "Format", "long", "start"} & options.keys()
    for variable, name in VARIABLES.items():
        if variable in environ and name not in options and not (chosen and name in {"format", "Format"}):
            options[name] = environ[variable]


def _print(views: list[JobView], options: dict[str, str]) -> None:
    if "Format" in options:
        layout, fields = columns.parse_long(options["Format"]), BY_NAME
    else:
        fallback = START if "start" in options else DEFAULT
        fallback = LONG if "long" in options else fallback
        layout, fields = columns.parse_short_format(options.get("format") or fallback, EVERYTHING), BY_LETTER
    layout, unknown = layout.without_unknown(fields)
    # Print known columns anyway: a format for another release still works.
    for key in unknown:
        sys.stderr.write(f"squeue: error: Invalid job format specification: {key}\n")
    shown = [(column, fields[column.key]) for column in layout.columns]
    if "noheader" not in options:
        if "long" in options:
            print(time.strftime("%a %b %d %H:%M:%S %Y"))
        print(layout.prefix + "".join(column.fit(field.heading) for column, field in shown))
    for view in sort(views, options.get("sort") or ("S" if "start" in options else "P,t,-p")):
        print(layout.prefix + "".join(column.fit(field.value(view), whole=field.whole) for column, field in shown))


def sort(views: list[JobView], keys: str) -> list[JobView]:
    """Sort by letters, the first of them the most important: `P,t,-p`, or `Pt-p`."""
    # Python's sort is stable, so the most important key is sorted last.
    views = sorted(views, key=SORT_KEYS["i"])
    for letter, backwards in reversed(columns.parse_sort(keys)):
        if letter not in BY_LETTER or letter == "s":
            raise PlainError(f"squeue: error: Invalid sort specification: {letter}")
        views.sort(key=SORT_KEYS.get(letter, BY_LETTER[letter].value), reverse=backwards)
    return views


def _jobs(state: StateDirectory, options: dict[str, str]) -> list[Job]:
    states = _states(options.get("states", "PD" if "start" in options else None))
    if options.get("jobs"):
        try:
            jobs = find_by_text(state, options["jobs"], *recent_jobs(state))
        except ValueError as error:
            raise PlainError(f"squeue: error: Invalid job id: {error}") from None
        if not jobs and "," not in options["jobs"]:
            raise PlainError("slurm_load_jobs error: Invalid job id specified")
    elif states <= _ACTIVE:
        jobs = state.active_jobs()
    else:
        jobs = state.jobs(*recent_jobs(state))
    wanted = _filters(options, state.settings)
    return [job for job in jobs if job.shown_state in states and all(check(job) for check in wanted)]


def _states(text: str | None) -> frozenset[str]:
    """Return the states of --states; none if it is empty."""
    if not text:
        return _ACTIVE if text is None else frozenset()
    try:
        return parse_state_filter(text)
    except ValueError as error:
        raise PlainError(
            f"squeue: error: Invalid job state specified: {error}\n"
            f"squeue: error: Valid job states include: {','.join(STATE_CODES)}\n"
        ) from None


def _filters(options: dict[str, str], settings: Settings) -> list[Callable[[Job], bool]]:
    """Return a condition for each filtering option."""
    columns_of = {"name": "name", "partitions": "partition", "accounts": "account", "qos": "qos"}
    found = [column_filter(options, columns_of)]
    users = set(options["user"].split(",")) if "user" in options else set()
    for user in users:
        if not user.isdigit() and not user_exists(user):
            sys.stderr.write(f"squeue: error: Invalid user: {user}\n\n")
    if "me" in options:
        users.add(str(os.geteuid()))
    if users:
        found.append(lambda job: job.user in users or str(job.uid) in users)
    if "nodelist" in options:
        hosts = set(nodes.expand_names(options["nodelist"]) or [options["nodelist"]])
        if unknown := sorted(hosts - set(nodes.names(settings))):
            raise PlainError(f"squeue: error: Invalid node name {unknown[0]}")
        found.append(lambda job: bool(hosts & set(job.nodes)))
    # No job has a reservation or a licence.
    if options.keys() & {"reservation", "licenses"}:
        found.append(lambda _: False)
    return found
