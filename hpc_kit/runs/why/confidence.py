"""Decides whether the evidence proves an answer: each check looks for one reason to doubt it."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING

from hpc_kit.runs.why.attempt import DEADLY, STATE_ORDER, explains, had_progress_between
from hpc_kit.runs.why.evidence import ANALYSIS_ORDER, EXCEPTION, LINE, SYSTEM, VICTIMS, WARNING
from hpc_kit.runs.why.hangs import find_standstill
from hpc_kit.runs.why.later_commands import is_of_later_command
from hpc_kit.runs.why.rules import DIRECT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpc_kit.runs.why.attempt import Attempt
    from hpc_kit.runs.why.evidence import Event
    from hpc_kit.runs.why.rules import Confidence

CLEAR = 55
"""Weight from which a plain line proves a cause, if the job ended soon after it."""

LAST_LINES = 15
"""Lines at the end of a log in which an error counts as its last one."""


_ELSEWHERE = re.compile(
    r"(?i)\bsee (?:the )?(?:root cause|errors?|logs?|messages?|stack traces?|tracebacks?) (?:above|below)\b"
)
"""An exception refers to another message for its cause."""


def confidence_of(attempt: Attempt, chain: Sequence[Event], fatal: Sequence[Event]) -> Confidence:
    """Return how sure an answer is: one doubt makes it `likely`.

    Args:
        attempt: The attempt that failed.
        chain: The event that ended the program, then the event behind it, and so on. The last one is the answer.
        fatal: All events that may have ended the program.
    """
    event = chain[-1]
    doubted = (
        not _is_proof(attempt, chain)
        or not all(explains(cause, effect) for effect, cause in pairwise(chain))
        or _may_be_handled(attempt, event)
        or (event.strength == EXCEPTION and attempt.waits_or_runs())
        or _contradicts_ends(attempt, event)
        or _contradicts_state(attempt, event)
        or _may_have_succeeded(attempt, event)
        or _is_of_earlier_attempt(attempt, event)
        or is_of_later_command(attempt, event)
        or _follows_survived_error(attempt, event)
        or (event.rule.class_ == "time-limit" and find_standstill(attempt, event) is not None)
        or (len(chain) == 1 and attempt.has_no_order(event))
        or _may_have_gone_on_elsewhere(attempt, chain)
        or _has_rival(attempt, event, fatal)
    )
    return "likely" if doubted else "certain"


def _is_proof(attempt: Attempt, chain: Sequence[Event]) -> bool:
    """Return whether the line of the last event proves the sentence of its rule."""
    event = chain[-1]
    rule = event.rule
    if rule.confidence == "likely" or rule.kind in {"consequence", "symptom"} or event.strength == WARNING:
        return False
    if rule.weight < DIRECT and _ELSEWHERE.search(event.line.text):
        return False
    if event.is_handled or attempt.evidence.has_later_step or (not attempt.failed and attempt.succeeded_after(event)):
        return False
    if event.is_hint and not any(
        each.rule is rule and not each.is_hint and not each.is_handled and each.strength > WARNING
        for each in attempt.events
    ):
        return False
    if event.order == ANALYSIS_ORDER:
        # Torch itself states a mismatch. A late rank needs two others that waited for it.
        waiting = {each.rank for each in attempt.of_class(*VICTIMS)} - {None}
        return rule.name.startswith(("collective-mismatch", "world-size", "torch-versions")) or (
            rule.name == "late-rank" and (len(waiting) >= 2 or event.traceback is not None)
        )
    if event.strength == LINE and rule.kind == "soft" and len(chain) == 1 and event.lines_after > LAST_LINES:
        return False
    if event.strength != LINE or attempt.failed or chain[0].strength == EXCEPTION:
        return event.strength != LINE or rule.weight >= CLEAR
    is_last = not event.progress and not attempt.success and event.lines_after <= LAST_LINES
    return rule.weight >= CLEAR and (not event.lines_after if rule.kind == "soft" else is_last or rule.scope == "job")


def _may_have_gone_on_elsewhere(attempt: Attempt, chain: Sequence[Event]) -> bool:
    """Return whether a job may have gone on after it had waited: another file shows progress before the time limit."""
    has_waited = chain[0].rule.class_ == "time-limit" and len(chain) > 1
    is_stuck = chain[0].order == ANALYSIS_ORDER and chain[0].traceback is not None
    evidence = attempt.evidence
    files = {event.line.file for event in chain} | {stack.line.file for stack in evidence.stacks.values() if stack}
    return (has_waited or is_stuck) and not evidence.with_progress <= files


def _may_be_handled(attempt: Attempt, event: Event) -> bool:
    """Return whether the program may have gone on after an exception: a logger printed it, or another followed."""
    traceback = event.traceback
    if traceback is None or event.rule.weight >= DIRECT:
        return False
    if traceback.is_survived:
        return True
    if not attempt.failed and (traceback.is_child or (traceback.is_logged and event.lines_after > LAST_LINES)):
        return True
    return any(
        each.traceback
        and each.traceback.exceptions[-1:] != traceback.exceptions[-1:]
        and (each.rule, each.groups) != (event.rule, event.groups)
        for each in attempt.later_exceptions(event)
    )


def _contradicts_ends(attempt: Attempt, event: Event) -> bool:
    """Return whether a launcher reports another end than that of the rank: a signal, or the ends of other ranks."""
    ends = attempt.failed_ends()
    victims = {each.rank for each in attempt.of_class(*VICTIMS)} - {None}
    if event.rank is None and event.strength == EXCEPTION and event.rule.scope == "rank":
        # Each rank that failed lost another one: it is not the rank of this exception.
        return bool(ends) and all(victims.issuperset(end.ranks) for end in ends)
    if event.rank is None or event.strength == SYSTEM or event.order == ANALYSIS_ORDER:
        return False
    # Python catches no SIGKILL: the signal, and not the exception, has ended the process.
    if event.strength == EXCEPTION and any(end.signal in DEADLY for end in ends if event.rank in end.ranks):
        return True
    if event.line.rank not in {None, event.rank}:
        return False  # the rank that prints the line is another one, and it has ended
    ends = [end for end in ends if event.rank in end.ranks or victims.isdisjoint(end.ranks)]
    heard = {each.rank for each in attempt.events if each.rule.class_ != "exit-code"}
    return bool(ends) and (all(event.rank not in end.ranks for end in ends) or heard.isdisjoint(ends[0].ranks))


def _contradicts_state(attempt: Attempt, event: Event) -> bool:
    """Return whether Slurm ended the job, although a generic error came before: the program may have survived it."""
    return event.rule.weight < DIRECT and any(
        each.rule.kind == "end" and each is not event and not explains(event, each) for each in attempt.events
    )


def _may_have_succeeded(attempt: Attempt, event: Event) -> bool:
    """Return whether a job with exit code 0 prints success after an error that it had survived, or in a later step."""
    is_after = any(line.file == event.line.file and line.number > event.line.number for line in attempt.success)
    equal = [each for each in attempt.named(event.rule.name) if each.line.file == event.line.file]
    is_repeated = event.traceback is not None and len(equal) > 1 and not any(end.has_failed for end in attempt.ends)
    return attempt.completed and is_after and (is_repeated or attempt.has_good_last_step)


def _follows_survived_error(attempt: Attempt, event: Event) -> bool:
    """Return whether a thread failed before a generic error of its process, or a logger printed another error."""
    return event.rule.weight < DIRECT and any(
        each.traceback
        and (each.traceback.is_thread or each.traceback.is_logged)
        and (each.line.file, each.rank) == (event.line.file, event.rank)
        and each.order < event.order
        and not _are_related(each, event)
        for each in attempt.of_kind("cause")
    )


def _is_of_earlier_attempt(attempt: Attempt, event: Event) -> bool:
    """Return whether other files show a later attempt than the file of an event, which may be an old one."""
    return event.attempt < attempt.evidence.attempts - 1 and event.order < STATE_ORDER


def _has_rival(attempt: Attempt, event: Event, fatal: Sequence[Event]) -> bool:
    """Return whether another error may be the cause, and nothing shows which was first."""
    if event.rule.kind == "end":
        return False
    # Slurm reports kills for want of memory at the end of a step, whatever ended it.
    if event.rule.class_ == "host-memory" and attempt.of_class("time-limit"):
        return event.traceback is None
    if any(_precedes(each, event) for each in attempt.of_kind("cause") if not _are_related(each, event)):
        return True
    others = [each for each in fatal if not _are_related(each, event)]
    place = attempt.place_in_report(event)
    if event.rank is not None and place < math.inf and attempt.ends:
        # The launcher reported the end of another rank, with an error of its own, before.
        return any(each.strength == EXCEPTION and attempt.place_in_report(each) < place for each in others)
    return any(
        (each.line.time is None or event.line.time is None)
        and (each.rank != event.rank or (event.rank is None and event.traceback and each.traceback))
        and (each.rule.weight >= DIRECT) == (event.rule.weight >= DIRECT)
        for each in others
    )


def _are_related(one: Event, other: Event) -> bool:
    """Return whether two events are one failure: one line, cause and effect, or one class with one exception."""
    is_same = one.rule.class_ == other.rule.class_ and (
        one.rule.weight >= DIRECT or one.groups.get("exception") == other.groups.get("exception")
    )
    return is_same or one.line == other.line or explains(one, other) or explains(other, one)


def _precedes(line: Event, event: Event) -> bool:
    """Return whether a plain line states another cause directly, and the program did not go on after it."""
    return (
        line.strength == LINE
        and line.rule.weight >= DIRECT
        and not (line.is_hint or line.is_handled)
        and line.rule.class_ != "unreachable-host"
        and line.line.file == event.line.file
        and (line.rank in {None, event.rank} or event.rank is None)
        and line.order < event.order
        and not had_progress_between(line, event)
    )
