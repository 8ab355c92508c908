"""Finds the causes of the attempts before the last one, and the attempt that left behind what later ones trip over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.runs.why.evidence import LINE
from hpc_kit.runs.why.failure_place import place_of
from hpc_kit.runs.why.rules import fill_sentence
from hpc_kit.runs.why.verdicts import describe_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpc_kit.runs.why.attempt import Attempt
    from hpc_kit.runs.why.evidence import Event

_LEFT_BEHIND = re.compile(
    r"(?i)\bFileExists\w*|\bfile exists\b|\balready (?:exists?|in use|running|locked|registered)\b"
    r"|\b(?:folder|directory|dir|path|run|experiment|output\w*)\b.{0,120}?\b(?:exists|not empty|must be empty)\b"
    r"|\bcould not (?:acquire|get|obtain) (?:the |a )?lock\b|\block(?: ?file)?\b.{0,80}\b(?:held|exists|taken)\b"
)
"""An error about a file, a folder, a run or a lock that exists before the program has made it."""

_LEFT_CLASSES = {"port-in-use", "file-lock"}
"""Classes of errors about what a process that has not ended, or an earlier attempt, still occupies."""


def find_earlier_causes(attempt: Attempt) -> list[tuple[Event, str]]:
    """Return the causes of the attempts before the last one, with a sentence about each."""
    found = []
    for number in range(attempt.evidence.attempts - 1):
        events = [
            event
            for event in attempt.evidence.events
            if event.attempt == number and event.rule.kind in {"cause", "end"} and event.strength >= LINE
        ]
        causes = [event for event in events if event.rule.kind == "cause"]
        if first := attempt.first(causes or events):
            rank, host = place_of(attempt, first)
            # Launchers report the ranks of the last attempt.
            who = describe_rank(attempt, rank if first.rank is not None else None, host, [])
            found.append(
                (first, f"attempt {number + 1}: {fill_sentence(first.rule.cause, {**first.groups, 'who': who})}")
            )
    return found


def attempt_that_left(class_: str, cause: str, earlier: Sequence[tuple[Event, str]]) -> int | None:
    """Return the place of the attempt whose failure left behind what the last one tripped over; None if it did not.

    Args:
        class_: The class of the failure of the last attempt.
        cause: The sentence about it.
        earlier: The causes of the attempts before.
    """
    if not _is_left_behind(class_, cause):
        return None
    own = [place for place, (event, _) in enumerate(earlier) if not was_left_behind(event)]
    # An end that Slurm ordered is no failure of the program: then its start after it is what does not work.
    return own[-1] if own and earlier[own[-1]][0].rule.kind == "cause" else None


def was_left_behind(event: Event) -> bool:
    """Return whether an error is about something that exists before the program has made it."""
    return _is_left_behind(event.rule.class_, event.line.body)


def _is_left_behind(class_: str, text: str) -> bool:
    return class_ in _LEFT_CLASSES or (
        class_ in {"python-exception", "assertion", "error-message"} and _LEFT_BEHIND.search(text) is not None
    )
