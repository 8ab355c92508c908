"""Compares the ranks of a job: who waited for whom in a collective, and which rank called something else."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from hpc_kit.run_files import format_ranks
from hpc_kit.runs.why.evidence import (
    LINE,
    LINES_OF_END,
    VICTIMS,
    WARNING,
    Event,
    LastLine,
    Waiting,
    reports_end_of_inputs,
    script_options,
)
from hpc_kit.runs.why.failure_place import count_nodes
from hpc_kit.runs.why.rules import rule_named
from hpc_kit.runs.why.stack_dumps import find_late_stacks
from hpc_kit.slurm.sizes import size_of_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpc_kit.runs.why.attempt import Attempt
    from hpc_kit.runs.why.log_reader import Line

ANALYSIS_ORDER = 1 << 30
"""Order of events that come from a comparison of the ranks."""

MAX_RANKS = 4096
"""Ranks beyond which missing ones are not looked for."""

_COUNTS_CLIENTS = re.compile(r"\d+/\d+ clients joined")

_NOT_MET = {*VICTIMS, "rendezvous-timeout", "late-rank", "unreachable-host", "nccl-version"}
"""Classes of failures that ranks with different versions of torch have when they meet."""

_STARTS_PYTHON = re.compile(r"\s*(?:(?:exec|time|nohup) )*(?:\S*/)?python[\d.]* ")
_STARTS_PROCESSES = re.compile(
    r"\b(?:srun|mpirun|mpiexec|torchrun|torch\.distributed|accelerate|deepspeed|ray|ssh|pdsh|clush|parallel|horovodrun|ibrun|orterun|aprun|prterun|jsrun|flux"
    r"|xargs)\b|launch|nproc|^\s*(?:bash |sh |\.?/)\S*\.sh\b"
)
"""A script that starts several processes, or may do so."""

_EQUAL_SIZES = {"ALLREDUCE", "ALLREDUCE_COALESCED", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
_EQUAL_SIZES |= {"ALLGATHER", "REDUCE_SCATTER"}
"""Collectives to which all ranks pass tensors of one size."""


def find_late(attempt: Attempt) -> list[Event]:
    """Return the rank for which the remaining ranks waited in a collective, as an event."""
    waits = [event for event in attempt.of_class(*VICTIMS) if event.strength > WARNING and event.rule.weight > 5]
    if not waits:
        found = _find_stuck(attempt)
    else:
        found = _different_calls(attempt) or _behind(attempt) or _find_stuck(attempt) or _silent_rank(attempt, waits)
    return [found] if found else []


def _different_calls(attempt: Attempt) -> Event | None:
    """Return the mismatch of the calls in which the ranks of one process group waited."""
    calls: dict[tuple[str | None, int], list[Waiting]] = {}
    for waiting in _calls(attempt):
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


def _different_sizes(attempt: Attempt, group: list[Waiting], sizes: set[str | None]) -> Event:
    """Return the cause of calls of one collective with different sizes: a barrier and a scalar have one element."""
    found = _mismatch(
        attempt, "collective-mismatch-shape", group, lambda each: f"{each.operation} of {each.elements} elements"
    )
    if uneven := _ran_out_of_inputs(attempt, found):
        return uneven
    # One element against many: the ranks are in different lines of the program, or in different steps.
    if "1" not in sizes:
        return found
    order = _event(attempt, "collective-mismatch-order", found.line, found.rank)
    order.groups.update(found.groups)
    order.is_hint = True
    return order


def _ran_out_of_inputs(attempt: Attempt, mismatch: Event) -> Event | None:
    """Return the end of the inputs of the odd rank as the cause of a mismatch, if only its last lines say so."""
    finished = attempt.evidence.inputs.ended
    last = None if mismatch.rank is None else finished.get(mismatch.rank)
    if last is None or int(mismatch.groups["rank2"]) in finished:
        return None
    return _event(attempt, "uneven-inputs", _at(mismatch.line, last, mismatch.rank), mismatch.rank)


def _at(line: Line, last: LastLine, rank: int | None) -> Line:
    """Return the last line of a rank in the form of another line."""
    return line._replace(file=last.file, number=last.number, text=last.text, body=last.text, rank=rank)


def _calls(attempt: Attempt) -> list[Waiting]:
    """Return the calls of ranks, with the process group if there are several: each group counts its calls."""
    waiting = attempt.evidence.waiting
    if len({each.group for each in waiting} - {None}) > 1:
        return [each for each in waiting if each.group]
    return [each._replace(group=None) for each in waiting]


def _different_functions(attempt: Attempt) -> Event | None:
    """Return the ranks whose tracebacks end in different collectives, if one timed out there and the others with it."""
    group = [
        Waiting(event.rank, None, function, None, event.line)
        for event in attempt.of_class(*VICTIMS)
        if event.traceback and event.rank is not None
        for function in [event.traceback.waits_in]
        if function
    ]
    if not attempt.of_class("collective-timeout") or {each.rank for each in group} != attempt.evidence.ranks:
        return None
    return _different_operations(attempt, group)


def _different_operations(attempt: Attempt, group: list[Waiting]) -> Event | None:
    """Return the mismatch of the collectives in which ranks wait, without the proof that they are of one group."""
    if len({each.operation for each in group}) < 2:
        return None
    found = _mismatch(attempt, "collective-mismatch-order", group, lambda each: f"called {each.operation}")
    found.is_hint = True
    return found


def _mismatch(attempt: Attempt, rule: str, group: list[Waiting], describe: Callable[[Waiting], str]) -> Event:
    """Return the rank whose call differs from that of most ranks, as an event."""
    odd, other = _odd_one(group, describe)
    values = Counter(map(describe, group))
    rank = odd.rank if values[describe(odd)] < values[describe(other)] else None
    found = _event(attempt, rule, odd.line, rank, one=describe(odd), rank2=str(other.rank), other=describe(other))
    found.groups["rank"] = str(odd.rank)
    # If no two of many ranks agree, they may be in collectives of different process groups.
    found.is_hint = len(values) > 2 and len(values) == len({each.rank for each in group})
    return found


def _behind(attempt: Attempt) -> Event | None:
    """Return the rank that has called fewer collectives than the remaining ranks."""
    counted = list(attempt.evidence.enqueued.items())
    groups = Counter(group for (group, _), _ in counted)
    largest = max(groups, key=lambda group: groups[group], default=None)
    enqueued = {rank: count for (group, rank), (count, _) in counted if group == largest}
    lines = {rank: line for (group, rank), (_, line) in counted if group == largest}
    if not enqueued:
        # The call in which each rank timed out is numbered, too.
        waiting = [each for each in _calls(attempt) if each.sequence is not None]
        if len({(each.operation, each.group) for each in waiting}) != 1:
            return None  # of several groups, whose numbers cannot be compared
        enqueued = {each.rank: each.sequence or 0 for each in waiting}
        lines = {each.rank: each.line for each in waiting}
    if len(enqueued) < 2 or len(set(enqueued.values())) < 2:
        return None
    least = min(enqueued.values())
    late = sorted(rank for rank, count in enqueued.items() if count == least)
    # If most ranks are behind, the few ahead may be the odd ones.
    if len(late) * 2 > len(enqueued):
        return None
    most = max(enqueued.values())
    last = attempt.evidence.last_of(late[0])
    line = lines[late[0]] if last is None else _at(lines[late[0]], last, late[0])
    detail = f"its last collective had the number {least}, that of other ranks {most}"
    found = _event(attempt, "late-rank", line, late[0], detail=detail)
    found.about = tuple(late)
    return found


def _silent_rank(attempt: Attempt, waits: list[Event]) -> Event | None:
    evidence = attempt.evidence
    timed_out = {event.rank for event in waits if event.rule.class_ == "collective-timeout" and event.rank is not None}
    reporting = {event.rank for event in waits if event.rank is not None}
    if timed_out and len(timed_out) < len(reporting) and reporting >= evidence.ranks:
        # The late rank came after the remaining ranks had given up: it met closed connections.
        reporting = timed_out
    if timed_out and (found := _finished_early(attempt, reporting)):
        return found
    absent = find_ranks_without_log(attempt)
    # The highest rank shows that there are all ranks below it. Of half of them, the log may not be among the files.
    highest = max(evidence.ranks, default=-1) + 1
    world = max(evidence.world, highest if len(evidence.ranks) * 2 > highest else 0)
    known = evidence.ranks | {*absent, *range(world if world <= MAX_RANKS else 0)}
    # srun also ends ranks that report nothing. If only one is silent, the remaining ranks lost that one.
    if timed_out or len(known - reporting) > 1:
        reporting |= {rank for end in attempt.ends if end.is_victim and end.reporter == "srun" for rank in end.ranks}
    silent = sorted(known - reporting)
    # With so many silent ranks, it is their logs that are missing.
    if not reporting or not silent or len(silent) * 2 > len(known):
        return None
    by_rank = {key[1]: last for key, last in evidence.last.items()}
    if len(silent) > 1 and absent:
        return None
    # A silent rank that ended by itself is to blame for the others that are silent.
    if any(_ended(attempt, each) for each in silent):
        return None
    rank = next((each for each in silent if each in by_rank), silent[0])
    last = by_rank.get(rank)
    line = waits[0].line
    if last is not None:
        line = _at(line, last, rank)
    ended = [each.text for each in by_rank.values() if reports_end_of_inputs(each.text)]
    if last is not None and last.text in ended and len(ended) < len(by_rank):
        return _event(attempt, "uneven-inputs", line, rank)
    batches = evidence.inputs.batches
    if rank in batches and batches[rank] < min((batches.get(each, 0) for each in reporting), default=0):
        return _event(attempt, "uneven-inputs", line, rank)
    found = _event(attempt, "late-rank" if timed_out else "rank-vanished", line, rank)
    found.is_hint = last is None or len(silent) > 1  # its log may not be among the files, and another may be late
    return found


def find_ranks_without_log(attempt: Attempt) -> list[int]:
    """Return the ranks whose logs are not among the files, if each rank writes to a log of its own."""
    evidence = attempt.evidence
    scripts = list(evidence.scripts.values())
    tasks = size_of_job(script_options(scripts[0])).ntasks if len(scripts) == 1 else None
    size = max(evidence.world, tasks or 0)
    # The log of a node contains several ranks. Those that printed nothing have no other log.
    is_own = {rank for _, rank in evidence.last if rank is not None} <= evidence.own_logs
    return sorted(set(range(size)) - evidence.own_logs) if evidence.own_logs and is_own and size <= MAX_RANKS else []


def _finished_early(attempt: Attempt, reporting: set[int]) -> Event | None:
    """Return the only rank that had finished its batches when the remaining ranks waited for it."""
    lasts = {key[1]: last for key, last in attempt.evidence.last.items() if key[1] is not None}
    finished = [rank for rank, last in lasts.items() if reports_end_of_inputs(last.text)]
    if len(finished) != 1 or finished[0] in reporting:
        return None
    rank = finished[0]
    waits = attempt.of_class("collective-timeout")
    return _event(attempt, "uneven-inputs", _at(waits[0].line, lasts[rank], rank), rank)


def find_by_comparison(attempt: Attempt, culprit: Event) -> Event | None:
    """Return the cause of a failed rendezvous that a comparison of the ranks shows. Set the odd rank of a mismatch."""
    for find in (
        _explain_hang,
        _find_versions,
        _find_missing_nodes,
        _find_missing_tasks,
        _find_lone_process,
        _find_absent,
    ):
        if found := find(attempt, culprit):
            return found
    if culprit.rule.class_ == "rendezvous-timeout" and (
        detail := _different_masters(attempt) or _several_stores(attempt)
    ):
        culprit.groups["detail"] = detail
    if culprit.rule.class_.startswith("collective-") and "rank2" in culprit.groups and culprit.order != ANALYSIS_ORDER:
        culprit.rank = _find_odd_rank(attempt, culprit)
    return None


def _explain_hang(attempt: Attempt, culprit: Event) -> Event | None:
    """Return the rank that held up the remaining ones, if Slurm ended a job that hung, as an event."""
    if culprit.rule.class_ not in {"time-limit", "cancelled", "terminated"}:
        return None
    return (
        _find_stuck(attempt)
        or find_stuck_workers(attempt)
        or _find_deadlock(attempt)
        or _find_lock(attempt)
        or _find_dead_thread(attempt)
    )


def _find_dead_thread(attempt: Attempt) -> Event | None:
    """Return the exception that ended a thread of a rank which printed nothing more."""
    found = [event for event in attempt.of_kind("cause") if event.traceback and event.traceback.is_thread]
    last = next((event for event in reversed(found) if event.lines_after <= LINES_OF_END), None)
    if last is not None and not last.progress:
        last.is_hint = True
        return last
    return None


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
        found = _event(attempt, "deadlock", calls[0].line, None, detail=f"all are in {names.pop()}")
        found.traceback = stacks[calls[0].rank].traceback
        return found
    return None if names & {"recv", "send"} else _different_operations(attempt, calls)


def _find_lock(attempt: Attempt) -> Event | None:
    """Return the lock for which the program still waited at its end."""
    waits = [event for event in attempt.of_class("file-lock") if event.rule.kind == "symptom"]
    return next((event for event in reversed(waits) if event.lines_after <= LINES_OF_END), None)


def find_stuck_workers(attempt: Attempt) -> Event | None:
    """Return the workers for which a DataLoader waits, and which wait themselves, by the stacks of py-spy."""
    loaders = attempt.evidence.loaders
    if not loaders.stuck or not loaders.is_awaited:
        return None
    stack = loaders.stuck[-1]
    detail = f"they wait in {stack.library}" if stack.library else ""
    found = _event(attempt, "dataloader-hang", stack.line, None, detail=detail)
    found.traceback = stack.traceback
    return found


def _find_stuck(attempt: Attempt) -> Event | None:
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
    found = _event(attempt, "late-rank", stuck.line, late[0], detail=f"stacks: {ranks} in {place}")
    found.traceback = stuck.traceback
    found.about = tuple(late)
    is_complete = len(stacks) >= max(attempt.evidence.world, len(attempt.evidence.ranks))
    found.is_hint = not is_complete
    return found


def _find_absent(attempt: Attempt, culprit: Event) -> Event | None:
    """Return the only rank that did not come to a rendezvous, if it wrote a log, as an event."""
    if culprit.rule.class_ != "rendezvous-timeout":
        return None
    came = {event.rank for event in attempt.of_class("rendezvous-timeout", "rendezvous")}
    absent = sorted(attempt.evidence.ranks - came)
    last = {key[1]: line for key, line in attempt.evidence.last.items()}
    if len(absent) != 1 or len(came - {None}) < len(attempt.evidence.ranks) - 1 or absent[0] not in last:
        return None
    end = last[absent[0]]
    return _event(attempt, "late-rank", _at(culprit.line, end, absent[0]), absent[0])


def _different_masters(attempt: Attempt) -> str:
    """Return the addresses of the first node that the nodes stated, if each of them stated another one."""
    stated = {place: name.partition(".")[0] for place, name in attempt.evidence.nodes.masters.items()}
    names = sorted(set(stated.values()))
    # An address and a name may be of one host.
    if len(names) < max(2, len(stated)) or any(name.isdigit() for name in names):
        return ""
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"each node waits at another address ({shown}), which must be that of one node"


def _several_stores(attempt: Attempt) -> str:
    """Return that several processes opened a store, which only rank 0 does. Each of them counted its own clients."""
    events = attempt.of_class("rendezvous-timeout")
    servers = [event for event in events if event.strength > LINE and _COUNTS_CLIENTS.search(event.line.text)]
    count = len({event.rank for event in servers} - {None})
    # Without labels, tracebacks right after each other are of several processes: one process prints its retry between.
    failed = sum(len(end.ranks) for end in attempt.failed_ends())
    if {event.rank for event in servers} == {None} and len(servers) <= failed:
        count = len(servers) if all(map(_is_right_after, servers[1:], servers)) else 0
    return f"{count} processes each took their own host for that of rank 0" if count > 1 else ""


def _is_right_after(event: Event, before: Event) -> bool:
    """Return whether only the lines of a traceback are between its exception and that of another one."""
    lines = len(event.traceback.lines) if event.traceback else 0
    return event.line.file != before.line.file or event.line.number - before.line.number <= lines


def _find_versions(attempt: Attempt, culprit: Event) -> Event | None:
    """Return the rank whose torch differs from that of the remaining ranks, if the ranks did not find each other."""
    stated = attempt.evidence.torch
    versions = Counter(version for version, _ in stated.values())
    if culprit.rule.class_ not in _NOT_MET or len(versions) < 2:
        return None
    # Of two equally frequent versions, that of rank 0 is the usual one.
    usual = max(versions, key=lambda version: (versions[version], version == stated.get(0, ("",))[0]))
    odd = min(rank for rank, (version, _) in stated.items() if version != usual)
    other = min(rank for rank, (version, _) in stated.items() if version == usual)
    version, line = stated[odd]
    found = _event(attempt, "torch-versions", line, odd, detail=f"rank {odd} {version}, rank {other} {usual}")
    found.is_hint = culprit.rule.class_ != "nccl-version"  # versions of torch may differ, and work
    return found


def _find_missing_nodes(attempt: Attempt, culprit: Event) -> Event | None:
    """Return torchrun's number of nodes as the cause of a failed rendezvous, if the job has fewer nodes."""
    wanted, number = attempt.evidence.wanted_nodes, count_nodes(attempt)
    if culprit.rule.class_ != "rendezvous-timeout" or wanted is None or not number or number >= wanted[0]:
        return None
    nodes = "1 node" if number == 1 else f"{number} nodes"
    return _event(
        attempt, "world-size", wanted[1], None, detail=f"torchrun waits for {wanted[0]} nodes, and the job has {nodes}"
    )


def _find_missing_tasks(attempt: Attempt, culprit: Event) -> Event | None:
    """Return the batch script as the cause, if all of its tasks came to a rendezvous of more ranks."""
    joined, size = culprit.groups.get("joined"), culprit.groups.get("size")
    for name, lines in attempt.evidence.scripts.items():
        text = "\n".join(lines)
        if joined is None or size is None or re.search(r"torchrun|torch\.distributed|accelerate|deepspeed|nproc", text):
            continue
        tasks = size_of_job(script_options(lines)).ntasks
        if str(tasks) != joined or joined == size:
            continue
        number = next((at for at, each in enumerate(lines, 1) if re.search(rf"=[\"']?{size}\b", each)), 1)
        line = culprit.line._replace(file=name, number=number, text=lines[number - 1], body=lines[number - 1])
        return _event(attempt, "world-size", line, None, detail=f"the ranks wait for {size}, the script starts {tasks}")
    return None


def _find_lone_process(attempt: Attempt, culprit: Event) -> Event | None:
    """Return the batch script as the cause if it asks for several tasks, and starts its program without srun."""
    scripts = list(attempt.evidence.scripts.items())
    if culprit.rule.class_ not in {"rendezvous-timeout", "collective-timeout"} or len(scripts) != 1:
        return None
    ((name, lines),) = scripts
    tasks = size_of_job(script_options(lines)).ntasks or 1
    number = next((at for at, each in enumerate(lines, 1) if _STARTS_PYTHON.match(each)), 0)
    if tasks < 2 or not number or attempt.evidence.ranks - {0} or any(map(_STARTS_PROCESSES.search, lines)):
        return None
    line = culprit.line._replace(file=name, number=number, text=lines[number - 1], body=lines[number - 1])
    detail = f"the script asks for {tasks} tasks, and starts one process, because the line has no srun"
    found = _event(attempt, "world-size", line, None, detail=detail)
    found.is_hint = True  # the program itself may start processes
    return found


def _find_odd_rank(attempt: Attempt, mismatch: Event) -> int | None:
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


def _ended(attempt: Attempt, rank: int) -> bool:
    lost = any(event.rank == rank for event in attempt.of_class("connection-lost"))
    ends = [end for end in attempt.ends if rank in end.ranks and end.has_failed]
    return not lost and any(end.signal != "Killed" or not attempt.was_killed_late(end.line) for end in ends)


def _event(attempt: Attempt, rule: str, line: Line, rank: int | None, **groups: str) -> Event:
    values = {name: value for name, value in {"rank": str(rank), **groups}.items() if value}
    return Event(
        rule_named(rule),
        values,
        line,
        rank,
        attempt.evidence.hosts.get(rank) if rank is not None else None,
        0,
        ANALYSIS_ORDER,
        LINE,
    )


def _odd_one(group: list[Waiting], value: Callable[[Waiting], str | None]) -> tuple[Waiting, Waiting]:
    """Return a rank with the rarest value, and one with the most common."""
    counts = Counter(value(each) for each in group)
    odd = min(group, key=lambda each: (counts[value(each)], -each.rank))
    other = next(each for each in sorted(group, key=lambda each: -counts[value(each)]) if value(each) != value(odd))
    return odd, other
