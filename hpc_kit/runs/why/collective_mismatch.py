"""Finds collectives that the ranks of a job called differently: another operation, another size, another line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hpc_kit.runs.why.evidence import ANALYSIS_ORDER, LINE, VICTIMS, Event, LastLine, WaitingRank
from hpc_kit.runs.why.rules import rule_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpc_kit.runs.why.attempt import Attempt
    from hpc_kit.runs.why.log_reader import Line

_EQUAL_SIZES = {"ALLREDUCE", "ALLREDUCE_COALESCED", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
_EQUAL_SIZES |= {"ALLGATHER", "REDUCE_SCATTER"}
"""Collectives to which all ranks pass tensors of one size."""


def find_different_calls(attempt: Attempt) -> Event | None:
    """Return the mismatch of the calls in which the ranks of one process group waited."""
    calls: dict[tuple[str | None, int], list[WaitingRank]] = {}
    for waiting in calls_of_groups(attempt):
        if waiting.sequence is not None:
            calls.setdefault((waiting.group, waiting.sequence), []).append(waiting)
    for group in calls.values():
        operations = {each.operation for each in group}
        sizes = {each.elements for each in group}
        # The two ends of a message have different names.
        if len({each.rank for each in group}) < 2 or {"SEND", "RECV", "COALESCED"} & operations:
            continue
        if len(operations) > 1:
            found = _mismatch(attempt, "collective-mismatch-order", group, lambda each: f"called {each.operation}")
            return _ran_out_of_inputs(attempt, found) or found
        if len(sizes) > 1 and None not in sizes and operations <= _EQUAL_SIZES:
            return _different_sizes(attempt, group, sizes)
    return _different_functions(attempt)


def _different_sizes(attempt: Attempt, group: list[WaitingRank], sizes: set[str | None]) -> Event:
    """Return the cause of calls of one collective with different sizes: a barrier and a scalar have one element."""
    found = _mismatch(
        attempt, "collective-mismatch-shape", group, lambda each: f"{each.operation} of {each.elements} elements"
    )
    if uneven := _ran_out_of_inputs(attempt, found):
        return uneven
    # One element against many: the ranks are in different lines of the program, or in different steps.
    if "1" not in sizes:
        return found
    order = comparison_event(attempt, "collective-mismatch-order", found.line, found.rank)
    order.groups.update(found.groups)
    order.is_hint = True
    return order


def _ran_out_of_inputs(attempt: Attempt, mismatch: Event) -> Event | None:
    """Return the end of the inputs of the odd rank as the cause of a mismatch, if only its last lines say so."""
    finished = attempt.evidence.inputs.ended
    last = None if mismatch.rank is None else finished.get(mismatch.rank)
    if last is None or int(mismatch.groups["rank2"]) in finished:
        return None
    return comparison_event(attempt, "uneven-inputs", at_last_line(mismatch.line, last, mismatch.rank), mismatch.rank)


def calls_of_groups(attempt: Attempt) -> list[WaitingRank]:
    """Return the calls of ranks, with the process group if there are several: each group counts its calls."""
    waiting = attempt.evidence.waiting
    if len({each.group for each in waiting} - {None}) > 1:
        return [each for each in waiting if each.group]
    return [each._replace(group=None) for each in waiting]


def _different_functions(attempt: Attempt) -> Event | None:
    """Return the ranks whose tracebacks end in different collectives, if one timed out there and the others with it."""
    group = [
        WaitingRank(event.rank, None, function, None, event.line)
        for event in attempt.of_class(*VICTIMS)
        if event.traceback and event.rank is not None
        for function in [event.traceback.waits_in]
        if function
    ]
    if not attempt.of_class("collective-timeout") or {each.rank for each in group} != attempt.evidence.ranks:
        return None
    return compare_operations(attempt, group)


def compare_operations(attempt: Attempt, group: list[WaitingRank]) -> Event | None:
    """Return the mismatch of the collectives in which ranks wait, without the proof that they are of one group."""
    if len({each.operation for each in group}) < 2:
        return None
    found = _mismatch(attempt, "collective-mismatch-order", group, lambda each: f"called {each.operation}")
    found.is_hint = True
    return found


def _mismatch(attempt: Attempt, rule: str, group: list[WaitingRank], describe: Callable[[WaitingRank], str]) -> Event:
    """Return the rank whose call differs from that of most ranks, as an event."""
    odd, other = _odd_one(group, describe)
    values = Counter(map(describe, group))
    rank = odd.rank if values[describe(odd)] < values[describe(other)] else None
    found = comparison_event(
        attempt, rule, odd.line, rank, one=describe(odd), rank2=str(other.rank), other=describe(other)
    )
    found.groups["rank"] = str(odd.rank)
    # If no two of many ranks agree, they may be in collectives of different process groups.
    found.is_hint = len(values) > 2 and len(values) == len({each.rank for each in group})
    return found


def _odd_one(group: list[WaitingRank], value: Callable[[WaitingRank], str | None]) -> tuple[WaitingRank, WaitingRank]:
    """Return a rank with the rarest value, and one with the most common."""
    counts = Counter(value(each) for each in group)
    odd = min(group, key=lambda each: (counts[value(each)], -each.rank))
    other = next(each for each in sorted(group, key=lambda each: -counts[value(each)]) if value(each) != value(odd))
    return odd, other


def find_odd_rank(attempt: Attempt, mismatch: Event) -> int | None:
    """Return the rank that called something else than most ranks, by torch's messages about a mismatch.

    A message names the rank that prints it and the first rank that differs: the ranks before that one agree.
    """
    messages = [event.groups for event in attempt.named(mismatch.rule.name) if {"rank", "rank2"} <= event.groups.keys()]
    pairs = {(int(groups["rank"]), int(groups["rank2"])) for groups in messages}
    calls = {
        int(groups[rank]): groups[call]
        for groups in messages
        for rank, call in (("rank", "one"), ("rank2", "other"))
        if {"one", "other"} <= groups.keys()
    }
    rare = [rank for rank, call in calls.items() if list(calls.values()).count(call) == 1]
    if len(calls) > 2 and len(rare) == 1 and len(set(calls.values())) == 2:
        return rare[0]
    world = max([attempt.evidence.world, len(attempt.evidence.ranks), *(max(pair) + 1 for pair in pairs)])
    votes = Counter(other for _, other in pairs)
    return next((other for own, other in sorted(pairs) if 2 * other > world > own < other or votes[other] > 1), None)


def at_last_line(line: Line, last: LastLine, rank: int | None) -> Line:
    """Return the last line of a rank in the form of another line."""
    return line._replace(file=last.file, number=last.number, text=last.text, body=last.text, rank=rank)


def comparison_event(attempt: Attempt, rule: str, line: Line, rank: int | None, **groups: str) -> Event:
    """Return an event of a rule that a comparison of the ranks shows, with the values of its sentence."""
    values = {name: value for name, value in groups.items() if value}
    if rank is not None:
        values.setdefault("rank", str(rank))
    host = None if rank is None else attempt.evidence.hosts.get(rank)
    return Event(rule_named(rule), values, line, rank, host, 0, ANALYSIS_ORDER, LINE)
