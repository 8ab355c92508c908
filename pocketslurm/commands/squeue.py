"""The command squeue: filters, sorts and prints jobs and steps."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.states import STATE_CODES, parse_state_filter
from pocketslurm import option_support
from pocketslurm.errors import PlainError
from pocketslurm.getopt import NONE, OPTIONAL, REQUIRED, Table
from pocketslurm.listings import columns
from pocketslurm.listings.squeue_columns import BY_LETTER, BY_NAME, EVERYTHING, SORT_KEYS
from pocketslurm.listings.views import JobView, format_duration, format_timestamp, step_id
from pocketslurm.queue import controller_start, nodes
from pocketslurm.queue.job_ids import find_by_text
from pocketslurm.queue.state import StateDirectory, now
from pocketslurm.settings import SLURM_VERSION
from pocketslurm.users import user_or_group_exists

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pocketslurm.listings.views import JobView
    from pocketslurm.queue.records import Job, Step
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
    """Run the command; its exit status."""
    given, words = OPTIONS.parse(argv)
    options = {name: value or "" for name, value in given}
    with_value = {name for name, value in given if value is not None}
    if "version" in options:
        print(f"slurm {SLURM_VERSION}")
        return 0
    if "help" in options or "usage" in options:
        print("Usage: squeue [OPTIONS]\nOptions: those of Slurm 22.05's squeue; `pocketslurm reference` lists them")
        return 0
    for key in ("jobs", "steps"):
        if key in options and key not in with_value and words:
            options[key] = words.pop(0)
            with_value.add(key)
    if "jobs" in with_value and not options["jobs"]:
        options["states"] = ""  # an empty list, as of a variable that is not set, is not the whole queue
    if words:
        raise PlainError(f"squeue: error: Unrecognized option: {words[0]}")
    if not options.get("iterate", "0").isdecimal():
        raise PlainError(f"squeue: error: --iterate={options['iterate']}\n")
    _from_environment(options, environ)
    state = StateDirectory.open(environ)
    option_support.check_clusters("squeue", options.get("clusters", "all"), state.settings)
    controller_start.wait_until_ready(state)
    while True:
        _show(state, options)
        if "iterate" not in options:
            return 0
        state.close()
        print(flush=True)
        time.sleep(max(1, int(options["iterate"])))


def _from_environment(options: dict[str, str], environ: Mapping[str, str]) -> None:
    chosen = {"format", "Format", "long", "start", "steps"} & options.keys()
    for variable, name in VARIABLES.items():
        if variable in environ and name not in options and not (chosen and name in {"format", "Format"}):
            options[name] = environ[variable]


def _show(state: StateDirectory, options: dict[str, str]) -> None:
    moment = now()
    jobs = _jobs(state, options, moment)
    views = [JobView(state, job, moment) for job in jobs]
    if "array" in options:
        views = [JobView(state, job, moment) for view in views for job in view.tasks_apart()]
    if "json" in options:
        from pocketslurm.listings.json_documents import print_jobs

        print_jobs(views)
    elif "steps" in options:
        from pocketslurm.commands.squeue import _print_steps

        _print_steps(views, options)
    else:
        _print(views, options)


def _print(views: list[JobView], options: dict[str, str]) -> None:
    if "Format" in options:
        layout, fields = columns.parse_long(options["Format"]), BY_NAME
    else:
        fallback = LONG if "long" in options else START if "start" in options else DEFAULT
        layout, fields = columns.parse_short_format(options.get("format") or fallback, EVERYTHING), BY_LETTER
    layout, unknown = layout.known(fields)
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
    views = sorted(views, key=SORT_KEYS["i"])
    for letter, backwards in reversed(columns.parse_sort(keys)):
        if letter not in BY_LETTER or letter == "s":
            raise PlainError(f"squeue: error: Invalid sort specification: {letter}")
        views.sort(key=SORT_KEYS.get(letter, BY_LETTER[letter].value), reverse=backwards)
    return views


def _jobs(state: StateDirectory, options: dict[str, str], moment: float) -> list[Job]:
    known = "state IN ('PENDING', 'RUNNING') OR completing OR end_time > ?"
    since = (moment - state.settings.min_job_age,)
    states = _states(options.get("states", "PD" if "start" in options else None))
    if options.get("jobs"):
        try:
            jobs = find_by_text(state, options["jobs"], known, since)
        except ValueError as error:
            raise PlainError(f"squeue: error: Invalid job id: {error}") from None
        if not jobs and "," not in options["jobs"]:
            raise PlainError("slurm_load_jobs error: Invalid job id specified")
    elif states <= _ACTIVE:
        jobs = state.active_jobs()
    else:
        jobs = state.jobs(known, since)
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
    found: list[Callable[[Job], bool]] = []
    users = set(options["user"].split(",")) if "user" in options else set()
    for user in users:
        if not user.isdigit() and not user_or_group_exists("uid", user):
            sys.stderr.write(f"squeue: error: Invalid user: {user}\n\n")
    if "me" in options:
        users.add(str(os.geteuid()))
    if users:
        found.append(lambda job: job.user in users or str(job.uid) in users)
    columns_of = {"name": "name", "partitions": "partition", "accounts": "account", "qos": "qos"}
    for option, column in columns_of.items():
        if option in options:
            words = set(options[option].split(","))
            found.append(lambda job, column=column, words=words: getattr(job, column) in words)  # type: ignore[misc]
    if "nodelist" in options:
        hosts = set(nodes.expand_names(options["nodelist"]) or [options["nodelist"]])
        if unknown := sorted(hosts - set(nodes.names(settings))):
            raise PlainError(f"squeue: error: Invalid node name {unknown[0]}")
        found.append(lambda job: bool(hosts & set(job.nodes)))
    if options.keys() & {"reservation", "licenses"}:
        found.append(lambda _: False)
    return found


_STEP_FORMAT = "%.15i %.8j %.9P %.8u %.9M %N"


_STEP_COLUMNS: dict[str, tuple[str, Callable[[JobView, Step], str]]] = {
    "A": ("TASKS", lambda _, step: str(sum(map(len, step.tasks)) or 1)),
    "i": ("STEPID", step_id),
    "j": ("NAME", lambda _, step: step.name),
    "l": ("TIME_LIMIT", lambda view, _: view.time_limit),
    "M": ("TIME", lambda view, step: format_duration((step.end_time or view.now) - step.start_time)),
    "N": ("NODELIST", lambda _, step: fold(step.nodes)),
    "P": ("PARTITION", lambda view, _: view.job.partition),
    "S": ("START_TIME", lambda _, step: format_timestamp(step.start_time)),
    "U": ("USER", lambda view, _: str(view.job.uid)),
    "u": ("USER", lambda view, _: view.job.user),
}


def _print_steps(views: list[JobView], options: dict[str, str]) -> None:
    """Print them; `--steps` may name some of them."""
    layout = columns.parse_short_format(options.get("format") or _STEP_FORMAT, _STEP_FORMAT)
    shown = [(column, *_STEP_COLUMNS[column.key]) for column in layout.columns if column.key in _STEP_COLUMNS]
    wanted = set(options["steps"].split(",")) if options.get("steps") else None
    if "noheader" not in options:
        print(layout.prefix + "".join(column.fit(heading) for column, heading, _ in shown))
    for view in views:
        for step in view.state.steps(view.job.job_id):
            names = {step_id(view, step), f"{view.job.display_id}.{step.label}", view.job.display_id}
            if step.state == "RUNNING" and (wanted is None or wanted & names):
                print(layout.prefix + "".join(column.fit(value(view, step)) for column, _, value in shown))
