"""Finds the cause of a job that stood still until Slurm, or its user, ended it: by stacks, locks, threads and times."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hpc_kit.run_files import format_ranks
from hpc_kit.runs.why.collective_mismatch import compare_operations, comparison_event
from hpc_kit.runs.why.evidence import LINES_OF_END, Event, Waiting
from hpc_kit.runs.why.stack_dumps import find_late_stacks

if TYPE_CHECKING:
    from hpc_kit.runs.why.attempt import Attempt


def explain_hang(attempt: Attempt, culprit: Event) -> Event | None:
    """Return the rank that held up the remaining ones, if Slurm ended a job that hung, as an event."""
    if culprit.rule.class_ not in {"time-limit", "cancelled", "terminated"}:
        return None
    return (
        find_stuck(attempt)
        or find_stuck_workers(attempt)
        or _find_deadlock(attempt)
        or _find_lock(attempt)
        or _find_dead_thread(attempt)
    )


def find_stuck(attempt: Attempt) -> Event | None:
    """Return the rank for which the remaining ranks waited, by the last dumps of their stacks."""
    stacks = {rank: stack for rank, stack in attempt.evidence.stacks.items() if stack is not None}
    late = find_late_stacks(stacks)
    is_hang = all(stack.is_timeout for stack in stacks.values()) or bool(attempt.of_class("collective-timeout"))
    if not late or not is_hang or len(stacks) < len(attempt.evidence.stacks):
        return None
    if any(stack.has_moved for stack in stacks.values()):
        return None
    places = Counter(stack.place for rank, stack in stacks.items() if rank not in late)
    place = max(places, key=lambda each: places[each])
    ranks = format_ranks([rank for rank, stack in sorted(stacks.items()) if rank not in late and stack.place == place])
    stuck = stacks[late[0]]
    found = comparison_event(attempt, "late-rank", stuck.line, late[0], detail=f"stacks: {ranks} in {place}")
    found.traceback = stuck.traceback
    found.about = tuple(late)
    is_complete = len(stacks) >= max(attempt.evidence.world, len(attempt.evidence.ranks))
    found.is_hint = not is_complete
    return found


def _find_deadlock(attempt: Attempt) -> Event | None:
    """Return the calls in which all ranks wait for each other, by the dumps of their stacks."""
    evidence = attempt.evidence
    stacks = {rank: stack for rank, stack in evidence.stacks.items() if stack is not None and not stack.has_moved}
    calls = [
        Waiting(rank, None, stack.traceback.collective, None, stack.line) for rank, stack in sorted(stacks.items())
    ]
    names = {each.operation for each in calls}
    if len(calls) < max(2, evidence.world, len(evidence.ranks)) or None in names:
        return None
    if names in ({"recv"}, {"send"}):
        found = comparison_event(attempt, "deadlock", calls[0].line, None, detail=f"all are in {names.pop()}")
        found.traceback = stacks[calls[0].rank].traceback
        return found
    return None if names & {"recv", "send"} else compare_operations(attempt, calls)


def find_stuck_workers(attempt: Attempt) -> Event | None:
    """Return the workers for which a DataLoader waits, and which wait themselves, by the stacks of py-spy."""
    loaders = attempt.evidence.loaders
    if not loaders.stuck or not loaders.is_awaited:
        return None
    stack = loaders.stuck[-1]
    detail = f"they wait in {stack.library}" if stack.library else ""
    found = comparison_event(attempt, "dataloader-hang", stack.line, None, detail=detail)
    found.traceback = stack.traceback
    return found


def _find_lock(attempt: Attempt) -> Event | None:
    """Return the lock for which the program still waited at its end."""
    waits = [event for event in attempt.of_class("file-lock") if event.rule.kind == "symptom"]
    return next((event for event in reversed(waits) if event.lines_after <= LINES_OF_END), None)


def _find_dead_thread(attempt: Attempt) -> Event | None:
    """Return the exception that ended a thread of a rank which printed nothing more."""
    found = [event for event in attempt.of_kind("cause") if event.traceback and event.traceback.is_thread]
    last = next((event for event in reversed(found) if event.lines_after <= LINES_OF_END), None)
    if last is not None and not last.progress:
        last.is_hint = True
        return last
    return None
