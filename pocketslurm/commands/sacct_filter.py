"""Which jobs sacct's options let through."""

from __future__ import annotations

import datetime as dt
import os
import re
from typing import TYPE_CHECKING

from hpc_kit.errors import HpcKitError
from hpc_kit.slurm.datetimes import error_position, parse_datetime
from hpc_kit.slurm.nodelist import expand
from pocketslurm.errors import Problem, Refused
from pocketslurm.job_states import parse_states
from pocketslurm.users import is_known

if TYPE_CHECKING:
    from pocketslurm.queue.records import Job


class Filter:
    """Which jobs the options let through."""

    def __init__(self, options: dict[str, str]) -> None:
        self._words = {
            column: set(options[name].split(","))
            for name, column in (("partition", "partition"), ("name", "name"), ("accounts", "account"), ("qos", "qos"))
            if name in options
        }
        self._users = {word for name in ("user", "uid") for word in options.get(name, "").split(",") if word}
        if "user" not in options and "uid" not in options and os.getuid():
            self._users = {str(os.getuid())}
        if unknown := sorted(word for word in self._users if not is_known("uid", word)):
            raise Refused(f"error: Invalid user id: {unknown[0]}")
        if "allusers" in options or "jobs" in options:
            self._users = set()
        self._hosts = set(expand(options["nodelist"])) if "nodelist" in options else set()
        self._states = _states(options)
        by_id = "jobs" in options
        self._since = _instant(options.get("starttime"), 0.0 if by_id or self._states else _midnight())
        self._until = _instant(options.get("endtime"), float("inf"))

    def __call__(self, job: Job) -> bool:
        """Whether this job is one of them."""
        in_time = (job.end_time or float("inf")) >= self._since and job.submit_time <= self._until
        return (
            in_time
            and all(getattr(job, column) in words for column, words in self._words.items())
            and (not self._users or job.user in self._users or str(job.uid) in self._users)
            and (not self._hosts or bool(self._hosts & set(job.nodes)))
            and (not self._states or not self._states.isdisjoint({job.state, job.shown_state}))
        )


def _states(options: dict[str, str]) -> frozenset[str]:
    try:
        return parse_states(options["state"]) if options.get("state") else frozenset()
    except ValueError as error:
        raise Refused(f"fatal: unrecognized job state value '{error}'") from None


def _instant(text: str | None, otherwise: float) -> float:
    if not text:
        return otherwise
    try:
        return parse_datetime(re.sub(r"^now([+-]\d+)$", r"now\1seconds", text)).timestamp()
    except HpcKitError:
        raise Problem(f"Invalid time specification (pos={error_position(text)}): {text}") from None


def _midnight() -> float:
    return dt.datetime.now().replace(hour=0, minute=0, second=0, microsecond=0).timestamp()  # noqa: DTZ005
