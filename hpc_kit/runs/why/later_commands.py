"""Finds the commands of a batch script that failed only because an earlier command had failed before."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.runs.why.earlier_attempts import was_left_behind
from hpc_kit.runs.why.evidence import EXCEPTION, WARNING
from hpc_kit.runs.why.rules import DIRECT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpc_kit.runs.why.attempt import Attempt
    from hpc_kit.runs.why.evidence import Event

_LAUNCHER = re.compile(r"/bin/(?:torchrun|accelerate|deepspeed)$|/torch/distributed/(?:run|launcher/api|launch)\.py$")
"""The file of a launcher in a traceback."""

_MISSES_INPUT = re.compile(
    r"FileNotFoundError|No such file|num_samples=0"
    r"|(?i:\bempty\b|\bno (?:\w+ ){0,3}(?:checkpoint|weights|model|file)s?\b"
    r"|(?:checkpoint|weights|model|file)s? (?:\S+ ){0,3}(?:not found|does ?n[o']t exist|missing))"
)
"""The exception of a program that does not find what another one writes."""


def is_of_later_command(attempt: Attempt, event: Event) -> bool:
    """Return whether a script went on after its tasks, or another program, had failed."""
    return (
        event.strength == EXCEPTION
        and event.line.rank is None
        and (
            _reported_between(attempt, 0, event)
            or any(_is_of_program_before(attempt, each, event) for each in attempt.of_kind("cause"))
        )
    )


def follows_failure(attempt: Attempt, event: Event, causes: Iterable[Event]) -> bool:
    """Return whether a command, or another try, failed only because an earlier one had: the first failure is the cause.

    Args:
        attempt: The attempt.
        event: The failure of the command.
        causes: All failures of the attempt.
    """
    if event.strength != EXCEPTION or event.line.rank is not None:
        return False
    before = [each for each in causes if _is_own_failure_before(attempt, each, event)]
    # A script may start its program again without a word.
    is_again = was_left_behind(event) and event.traceback is not None and event.traceback.begins_program
    if is_again and any(
        each.traceback and each.traceback.begins_program and not was_left_behind(each) for each in before
    ):
        return True
    misses = misses_input(event)
    return any(
        misses and _reported_between(attempt, each.line.number, event) for each in before if each.strength > WARNING
    ) or any(
        _is_of_program_before(attempt, each, event) and _is_of_ranks(each) and (misses or each.rule.weight >= DIRECT)
        for each in before
    )


def misses_input(event: Event) -> bool:
    """Return whether a program did not find a file, or found nothing in it."""
    if event.traceback is None:
        return event.rule.class_ == "missing-file"
    return event.rule.class_ == "missing-file" or any(
        _MISSES_INPUT.search(text) for text, _ in event.traceback.exceptions
    )


def are_of_two_programs(one: Event, other: Event) -> bool:
    """Return whether two exceptions ended different programs, by the first lines of their tracebacks."""
    first, second = _program_of(one), _program_of(other)
    return bool(first and second) and first != second


def _program_of(event: Event) -> str:
    """Return the file of the program that an exception ended; empty if something caught it or it is unknown."""
    traceback = event.traceback
    if traceback is None or not traceback.frames or traceback.is_logged or traceback.is_thread or traceback.is_child:
        return ""
    file, _, name = traceback.frames[0]
    return file if name == "<module>" else ""


def _is_own_failure_before(attempt: Attempt, event: Event, later: Event) -> bool:
    """Return whether a failure came first, and neither progress nor success followed before the later one."""
    return (
        event.line.file == later.line.file
        and event.line.number < later.line.number
        and event.strength > WARNING
        and (event.strength == EXCEPTION or event.rule.weight >= DIRECT)
        and not event.is_handled
        and not any(
            line.file == event.line.file
            and event.line.number < line.number < later.line.number
            and attempt.reports_success(line)
            for line in attempt.success
        )
    )


def _is_of_program_before(attempt: Attempt, event: Event, later: Event) -> bool:
    return are_of_two_programs(event, later) and _is_own_failure_before(attempt, event, later)


def _is_of_ranks(event: Event) -> bool:
    """Return whether an exception ended a rank, a launcher, or a program that had trained: no optional first step."""
    frames = event.traceback.frames if event.traceback else []
    return event.rank is not None or event.progress_line > 0 or any(_LAUNCHER.search(file) for file, _, _ in frames)


def _reported_between(attempt: Attempt, first: int, event: Event) -> bool:
    """Return whether a launcher reported the end of tasks between a line and an event in its file."""
    return any(
        end.reporter == "srun" and end.line.file == event.line.file and first < end.line.number < event.line.number
        for end in attempt.failed_ends()
    )
