"""Finds the cause of a job that stood still until Slurm, or its user, ended it: by stacks, locks, threads and times."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from hpc_kit.run_files import format_ranks
from hpc_kit.runs.why.attempt import STATE_ORDER
from hpc_kit.runs.why.collective_mismatch import at_last_line, compare_operations, comparison_event
from hpc_kit.runs.why.evidence import LINES_OF_END, SYSTEM_MESSAGE, Event, WaitingRank, script_options
from hpc_kit.runs.why.log_reader import read_end_lines, read_end_times, time_of_day
from hpc_kit.runs.why.stack_dumps import find_late_stacks
from hpc_kit.slurm.partitions import parse_limit
from hpc_kit.slurm.units import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpc_kit.runs.why.attempt import Attempt
    from hpc_kit.runs.why.evidence import LastLine, Stamp
    from hpc_kit.runs.why.log_reader import Line
    from hpc_kit.runs.why.stack_dumps import Stack

FEW_LINES = 3
"""Lines of output which show that a program has begun."""

LONG_SILENCE = 1800.0
"""Seconds without a line after which a program may have hung."""

GAPS = 3
"""Multiple of the longest time between two lines that a silence must exceed."""

MIN_GAPS = 5
"""Times between lines that must be known."""

END_BYTES = 1 << 20
"""Bytes at the end of a log in which the times between lines are looked for."""

BUFFER_BYTES = 1 << 13
"""Bytes of output that Python keeps before it writes them to a file."""

SAME_MOMENT = 300.0
"""Most seconds between the last lines of ranks that stopped together."""

MAX_SHOWN = 80
"""Characters of a line in a sentence."""

_STEP = re.compile(r"(?i)\b(?:global[_ ]?step|step|iter(?:ation)?|it|epoch|batch|update)s?\b[ =:#/\[(]*\d")
"""A program reports a step of its training."""

_MONITOR = re.compile(
    r"(?i)^(?!.*\bloss\b)(?:.*\bno (?:new |more |further )?(?:steps?|progress|output|updates?|logs?|heartbeats?)\b"
    r"|.*\bstill (?:waiting|alive|running|hanging|blocked|stuck|no)\b|.*\bheart-?beats?\b|.*\bkeep-?alive\b"
    r"|[\W\d]*(?:watch(?:dog|er)?|monitor)\b|.*\b(?:gpu|sm|cpu)[-_ ]?(?:util\w*|usage|load)\b"
    r"|.*\bstall(?:ed)?\b|.*\b(?:stacks?|tracebacks?|threads?)\b.*\b(?:dump\w*|of rank|faulthandler|py-spy)\b)"
)
"""A monitor of the job prints a line, which is no sign of progress."""

_IN_STACK = re.compile(r"\s+File |(?:Current thread|Thread) 0x|\s*$|\s+\S|.*Warning: ")
"""A line of a stack, or of a warning."""

_NUMBER = re.compile(r"\d+")

DAY = 86400.0
HALF_HOUR = 1800.0
ZONE_GRACE = 120.0
"""Seconds by which the difference between two clocks may not be a multiple of half an hour."""


def explain_hang(attempt: Attempt, culprit: Event) -> Event | None:
    """Return the rank that held up the remaining ones, if Slurm ended a job that hung, as an event."""
    if culprit.rule.class_ not in {"time-limit", "cancelled", "terminated"}:
        return None
    return (
        _find_deadlock(attempt)
        or find_stuck(attempt)
        or find_stuck_workers(attempt)
        or _find_lock(attempt)
        or _find_dead_thread(attempt)
        or (find_standstill(attempt, culprit) if culprit.rule.name == "time-limit" else None)
    )


def find_stuck(attempt: Attempt) -> Event | None:
    """Return the rank for which the remaining ranks waited, by the last dumps of their stacks."""
    stacks = _last_stacks(attempt)
    late = find_late_stacks(stacks)
    is_hang = all(stack.is_timeout for stack in stacks.values()) or bool(attempt.of_class("collective-timeout"))
    if not late or not is_hang:
        return None
    places = Counter(stack.place for key, stack in stacks.items() if key not in late)
    place, _ = places.most_common(1)[0]
    waiting = [key for key, stack in stacks.items() if key not in late and stack.place == place]
    rank, stuck = late[0] if isinstance(late[0], int) else None, stacks[late[0]]
    found = comparison_event(
        attempt, "late-rank", stuck.line, rank, detail=f"stacks: {_rank_words(waiting)} in {place}"
    )
    found.traceback = stuck.traceback
    found.about = tuple(key for key in late if isinstance(key, int))
    found.is_hint = not _is_complete(attempt, stacks)
    if rank is None:
        one = "one process" if stuck.process is None else f"process {stuck.process}"
        count = f"{len(late)} of {len(stacks)} processes"
        found.groups["processes"] = one if len(late) == 1 else f"the group of {count}"
    return found


def _last_stacks(attempt: Attempt) -> dict[int | str, Stack]:
    """Return the last stacks of the ranks, or of processes without a label. Empty if one of them has gone on."""
    dumped = attempt.evidence.stacks
    chosen = {key: stack for key, stack in dumped.items() if isinstance(key, int)} or dumped
    stacks = {key: stack for key, stack in chosen.items() if stack is not None and not stack.has_moved}
    if len(stacks) < len(chosen) or chosen is not dumped:
        return stacks if len(stacks) == len(chosen) else {}
    # A log without labels also contains the stacks of launchers and of other programs.
    programs = Counter(stack.program for stack in stacks.values())
    usual = max(programs, key=lambda program: programs[program], default="")
    stacks = {key: stack for key, stack in stacks.items() if stack.program == usual}
    known = attempt.evidence.processes
    ranks = [{rank for rank, _ in known.get(stack.process or -1, ())} for stack in stacks.values()]
    is_known = all(len(each) == 1 for each in ranks) and len(set().union(*ranks)) == len(stacks)
    return {each.pop(): stack for each, stack in zip(ranks, stacks.values(), strict=True)} if is_known else stacks


def _is_complete(attempt: Attempt, stacks: Mapping[int | str, Stack]) -> bool:
    """Return whether there is a stack of each rank. The number of processes without a label must be known."""
    world = max(attempt.evidence.world, len(attempt.evidence.ranks))
    return len(stacks) >= world if all(isinstance(key, int) for key in stacks) else len(stacks) == world


def _rank_words(keys: Sequence[int | str]) -> str:
    """Return the words for ranks, or for processes without a label."""
    ranks = sorted(key for key in keys if isinstance(key, int))
    return format_ranks(ranks) if ranks else f"{len(keys)} processes" if len(keys) > 1 else "another process"


def _find_deadlock(attempt: Attempt) -> Event | None:
    """Return the calls in which all ranks wait for each other, by the dumps of their stacks."""
    stacks = _last_stacks(attempt)
    calls: dict[str | None, list[int | str]] = {}
    for key, stack in stacks.items():
        calls.setdefault(stack.traceback.waits_in, []).append(key)
    if None in calls or len(stacks) < max(2, attempt.evidence.world, len(attempt.evidence.ranks)):
        return None
    if calls.keys() <= {"recv", "send"}:
        usual, first = next(iter(calls)), next(iter(stacks.values()))
        found = comparison_event(attempt, "deadlock", first.line, None, detail=f"all are in {usual}")
        found.traceback = first.traceback
        return found if len(calls) == 1 else None
    ranks = [(key, stack) for key, stack in stacks.items() if isinstance(key, int)]
    if "recv" in calls or "send" in calls or len(calls) < 2:
        return None
    if ranks:
        group = [WaitingRank(rank, None, stack.traceback.waits_in, None, stack.line) for rank, stack in ranks]
        return compare_operations(attempt, group)
    named = sorted(calls.items(), key=lambda call: len(call[1]))
    odd = stacks[named[0][1][0]]
    detail = ", ".join(f"{len(keys)} of {len(stacks)} processes in {call}" for call, keys in named)
    found = comparison_event(attempt, "collective-mismatch-order", odd.line, None, detail=detail)
    found.traceback, found.is_hint = odd.traceback, True
    return found


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


def find_standstill(attempt: Attempt, end: Event) -> Event | None:
    """Return that the job did nothing for a long time before it was ended: its stacks or the times of its log show it.

    Args:
        attempt: The attempt.
        end: The end of the job.
    """
    time = {"time": end.groups.get("time", "")}
    stacks = _last_stacks(attempt)
    if len(stacks) > 1 and all(stack.is_timeout for stack in stacks.values()):
        places: dict[str, list[int | str]] = {}
        for key, stack in stacks.items():
            places.setdefault(stack.place, []).append(key)
        usual = max(places.values(), key=len)
        reason = f"{_rank_words(usual)} {'is' if len(usual) == 1 else 'are'} in {stacks[usual[0]].place}"
        reason += f", and {len(stacks) - len(usual)} elsewhere" if len(places) > 1 else ""
        found = comparison_event(attempt, "stood-still", stacks[usual[0]].line, None, reason=reason, **time)
        found.traceback = stacks[usual[0]].traceback
        return found
    has_begun = end.progress_line or attempt.evidence.with_progress
    if end.order != STATE_ORDER and end.line.number > FEW_LINES and not has_begun:
        before = end.groups.get("before", "").strip()
        reason = f"no step was printed, and the last line was: {before[:120]}" if before else "no step was printed"
        return comparison_event(attempt, "stood-still", end.line, None, reason=reason, **time)
    last, silence = attempt.evidence.last_stamp, _silence(attempt, end)
    if last is None or silence <= LONG_SILENCE or silence <= _usual_silence(attempt, last, silence):
        return _find_last_step(attempt, end)
    since = (dt.datetime(2024, 1, 1) + dt.timedelta(seconds=last.time - DAY)).strftime("%b %d %H:%M:%S")  # noqa: DTZ001
    shown = {"since": since, "silence": format_time(int(silence)), **time}
    if odd := _odd_last_line(attempt):
        rank, last_line, shown["detail"] = odd
        return comparison_event(attempt, "stood-still", at_last_line(last.line, last_line, rank), rank, **shown)
    return comparison_event(attempt, "stood-still", last.line, None, **shown)


def _find_last_step(attempt: Attempt, end: Event) -> Event | None:
    """Return that no step was printed for a long time before an end, and at most a monitor printed lines after it.

    The times of the log need no date.
    """
    if len(attempt.evidence.logs) != 1:
        return None
    ((log, labels, count),) = attempt.evidence.logs
    ends = [each.line for each in (end, *attempt.of_kind("end"))]
    first = min((line.number for line in ends if line.file == log.name), default=count + 1)
    read = [line for line in read_end_lines(log, labels, END_BYTES) if line.number + count < first]
    lines = [line for line in read if not (_IN_STACK.match(line.body) or SYSTEM_MESSAGE.search(line.text))]
    timed = _unwrap([(at, line) for line in lines if (at := time_of_day(line)) is not None])
    steps = [(at, line) for at, line in timed if _STEP.search(line.body) and not _MONITOR.search(line.body)]
    if len(steps) <= MIN_GAPS:
        return None
    since, step = steps[-1]
    silence, elapsed = timed[-1][0] - since, _elapsed(attempt, end)
    clock = next((line.time for line in ends if line.time is not None), None)
    if clock is not None and read[0].number + count <= FEW_LINES and elapsed < DAY:
        # The job began before its first line, and clocks may differ by a time zone.
        silence = max(silence, min((clock - since) % DAY, elapsed - (since - timed[0][0])))
    # What the program prints right after its last step is the last sign of it.
    own = [line for line in lines if line.number > step.number and not _MONITOR.search(line.body)]
    is_over = len(own) <= FEW_LINES and all(at - since <= SAME_MOMENT for at, line in timed if line in own)
    if silence <= max(LONG_SILENCE, _usual_time_of_steps(steps)) or not is_over:
        return None
    shown = " and ".join(repr(line.body[:MAX_SHOWN]) for line in (step, *own[-1:]))
    reason = f"it had printed no step for the last {format_time(int(silence))}, and may have hung after {shown}"
    found = own[-1] if own else step
    line = found._replace(number=count + found.number)
    groups = {"since": format_time(int(since % DAY)), "reason": reason, "time": end.groups.get("time", "")}
    return comparison_event(attempt, "stood-still", line, None, **groups)


def _usual_time_of_steps(steps: Sequence[tuple[float, Line]]) -> float:
    """Return the seconds without a step that are no sign of a hang: of slow steps, or of output that Python kept."""
    size, first = 0, steps[-1][0]
    for at, line in reversed(steps):
        first, size = at, size + len(line.text)
        if size > BUFFER_BYTES:
            break
    return max(steps[-1][0] - first, GAPS * max(later - before for (before, _), (later, _) in pairwise(steps)))


def _unwrap(times: Sequence[tuple[float, Line]]) -> list[tuple[float, Line]]:
    """Return times of day as times that increase, also after midnight."""
    days, found, before = 0.0, [], 0.0
    for at, line in times:
        days += DAY if at < before - DAY / 2 else 0.0
        found.append((at + days, line))
        before = at
    return found


def _odd_last_line(attempt: Attempt) -> tuple[int, LastLine, str] | None:
    """Return the only rank whose last line differs from that of all remaining ranks, its line, and a comparison.

    It may wait elsewhere than they do. Where only some ranks print their progress, the last lines show nothing.
    """
    lasts = {rank: last for (_, rank), last in attempt.evidence.last.items() if rank is not None}
    times = [last.time for last in lasts.values() if last.time is not None]
    if len(times) < max(3, len(lasts)) or max(times) - min(times) > SAME_MOMENT:
        return None
    texts = {rank: _NUMBER.sub("", last.body) for rank, last in lasts.items()}
    usual, count = Counter(texts.values()).most_common(1)[0]
    odd = [rank for rank, text in texts.items() if text != usual]
    if len(odd) != 1 or count != len(lasts) - 1:
        return None
    others = sorted(lasts.keys() - odd)
    one, other = lasts[odd[0]].body[:MAX_SHOWN], lasts[others[0]].body[:MAX_SHOWN]
    return odd[0], lasts[odd[0]], f"rank {odd[0]} ended with {one!r}, and {format_ranks(others)} with {other!r}"


def _silence(attempt: Attempt, end: Event) -> float:
    """Return the seconds between the last time in the logs of the program and its end; 0 if nothing shows them."""
    last, began = attempt.evidence.last_stamp, attempt.evidence.began
    if last is None or began is None:
        return 0.0
    worked = last.time - began
    times = [each.line.time for each in (end, *attempt.of_kind("end")) if each.line.time is not None]
    by_clock = max(times) - last.time if times else None
    if elapsed := _elapsed(attempt, end):
        # The job began before its first line, and clocks may differ by a time zone.
        return elapsed - worked if by_clock is None else min(elapsed - worked, by_clock)
    if by_clock is None or (by_clock <= worked and min(by_clock % HALF_HOUR, -by_clock % HALF_HOUR) < ZONE_GRACE):
        return 0.0  # it may be the difference between two time zones
    return by_clock


def _elapsed(attempt: Attempt, end: Event) -> float:
    """Return the seconds that the job ran, by its states or by the limit that ended it; 0 if nothing shows them."""
    limits = [parse_limit(row.elapsed) for row in attempt.rows]
    if not any(limits) and end.rule.class_ == "time-limit":
        texts = [script_options(lines).get("time", "") for lines in attempt.evidence.scripts.values()]
        limits = [parse_limit(text) for text in (*(row.time_limit for row in attempt.rows), *texts)]
    return max((limit for limit in limits if limit), default=0)


def _usual_silence(attempt: Attempt, last: Stamp, silence: float) -> float:
    """Return the seconds without a line that are no sign of a hang, by the times in the end of the log."""
    worked = last.time - (attempt.evidence.began or last.time)
    if silence > worked:
        return worked
    times = read_end_times(last.log, last.labels, END_BYTES)
    gaps = [after - before for before, after in pairwise(times)]
    if len(gaps) < MIN_GAPS:
        return worked
    kept = times[-1] - min(read_end_times(last.log, last.labels, BUFFER_BYTES), default=times[-1])
    return max(GAPS * max(gaps), kept if last.is_cut else 0.0)
