"""Finds the ranks that came late or not at all: to a collective, or to the rendezvous before the first one."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from hpc_kit.runs.why.collective_mismatch import (
    at_last_line,
    calls_of_groups,
    comparison_event,
    find_different_calls,
    find_odd_rank,
)
from hpc_kit.runs.why.evidence import (
    ANALYSIS_ORDER,
    LINE,
    VICTIMS,
    WARNING,
    Event,
    reports_end_of_inputs,
    script_options,
)
from hpc_kit.runs.why.failure_place import count_job_nodes
from hpc_kit.runs.why.hangs import MAX_SHOWN, explain_hang, find_stuck
from hpc_kit.slurm.sizes import size_of_job

if TYPE_CHECKING:
    from hpc_kit.runs.why.attempt import Attempt
    from hpc_kit.runs.why.evidence import Evidence
    from hpc_kit.runs.why.log_reader import Line

MAX_RANKS = 4096
"""Ranks beyond which missing ones are not looked for."""

_COUNTS_CLIENTS = re.compile(r"\d+/\d+ clients joined")

_NOT_MET = {*VICTIMS, "rendezvous-timeout", "late-rank", "unreachable-host", "nccl-version"}
"""Classes of failures that ranks with different versions of torch have when they meet."""

_LEAVES = re.compile(
    r"(?i)\bnothing (?:left )?to (?:do|process|train|evaluate)\b"
    r"|\b(?:exiting|leaving|quitting|stopping|returning early|shutting down)\b(?! in \d)"
)
"""The last line of a rank states that it ends by itself."""

_LABELS = re.compile(r"^ *(?:\[[^\]]*\]:?|\d+:) *(?:\[[^\]]*\]:? *)*")

_STARTS_PYTHON = re.compile(r"\s*(?:(?:exec|time|nohup) )*(?:\S*/)?python[\d.]* ")
_STARTS_PROCESSES = re.compile(
    r"\b(?:srun|mpirun|mpiexec|torchrun|torch\.distributed|accelerate|deepspeed|ray|ssh|pdsh|clush|parallel|horovodrun|ibrun|orterun|aprun|prterun|jsrun|flux"
    r"|xargs)\b|launch|nproc|^\s*(?:bash |sh |\.?/)\S*\.sh\b"
)
"""A script that starts several processes, or may do so."""


def find_late(attempt: Attempt) -> list[Event]:
    """Return the rank for which the remaining ranks waited in a collective, as an event."""
    waits = [event for event in attempt.of_class(*VICTIMS) if event.strength > WARNING and event.rule.weight > 5]
    if not waits:
        found = find_stuck(attempt)
    else:
        found = find_different_calls(attempt) or _behind(attempt) or find_stuck(attempt) or _silent_rank(attempt, waits)
    return [found] if found else []


def _behind(attempt: Attempt) -> Event | None:
    """Return the rank that has called fewer collectives than the remaining ranks."""
    counted = list(attempt.evidence.enqueued.items())
    groups = Counter(group for (group, _), _ in counted)
    largest = max(groups, key=lambda group: groups[group], default=None)
    enqueued = {rank: count for (group, rank), (count, _) in counted if group == largest}
    lines = {rank: line for (group, rank), (_, line) in counted if group == largest}
    if not enqueued:
        # The call in which each rank timed out is numbered, too.
        waiting = [each for each in calls_of_groups(attempt) if each.sequence is not None]
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
    line = lines[late[0]] if last is None else at_last_line(lines[late[0]], last, late[0])
    detail = f"its last collective had the number {least}, that of other ranks {most}"
    found = comparison_event(attempt, "late-rank", line, late[0], detail=detail)
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
        ended = {rank for end in attempt.ends if end.is_victim and end.reporter == "srun" for rank in end.ranks}
        reporting |= ended - evidence.busy
    silent = sorted(known - reporting)
    # With so many silent ranks, it is their logs that are missing.
    if not reporting or not silent or len(silent) * 2 > len(known):
        return None
    by_rank = {key[1]: last for key, last in evidence.last.items()}
    if len(silent) > 1 and absent:
        return None
    # If a silent rank ended by itself, the remaining silent ranks waited for it.
    if any(_ended(attempt, each) for each in silent):
        return None
    rank = next((each for each in silent if each in by_rank), silent[0])
    last = by_rank.get(rank)
    line = waits[0].line
    if last is not None:
        line = at_last_line(line, last, rank)
    if found := _ended_itself(attempt, rank, line, reporting, is_awaited=bool(timed_out)):
        return found
    rule, detail = (
        ("late-rank", "" if last else _output_before(evidence, waits[0])) if timed_out else ("rank-vanished", "")
    )
    found = comparison_event(attempt, rule, line, rank, detail=detail)
    found.is_hint = last is None or len(silent) > 1  # its log may not be among the files, and another may be late
    return found


def _output_before(evidence: Evidence, wait: Event) -> str:
    """Return the line before the first message of a rank that waited in vain, if all ranks write to that file."""
    text = wait.groups.get("before", "").strip()
    return f"the last output before: {text[:MAX_SHOWN]}" if text and wait.rank not in evidence.own_logs else ""


def _ended_itself(attempt: Attempt, rank: int, line: Line, reporting: set[int], *, is_awaited: bool) -> Event | None:
    """Return the awaited rank, if its last line states why it ended, or if it had fewer batches."""
    evidence = attempt.evidence
    texts = {key[1]: last.text for key, last in evidence.last.items()}
    last = texts.get(rank, "")
    ended = [text for text in texts.values() if reports_end_of_inputs(text)]
    if last in ended and len(ended) < len(texts):
        return comparison_event(attempt, "uneven-inputs", line, rank)
    if is_awaited and _LEAVES.search(last):
        return comparison_event(attempt, "rank-left-early", line, rank, detail=_LABELS.sub("", last)[:120])
    batches = evidence.inputs.batches
    if rank in batches and batches[rank] < min((batches.get(each, 0) for each in reporting), default=0):
        return comparison_event(attempt, "uneven-inputs", line, rank)
    return None


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
    return comparison_event(attempt, "uneven-inputs", at_last_line(waits[0].line, lasts[rank], rank), rank)


def find_by_comparison(attempt: Attempt, culprit: Event) -> Event | None:
    """Return the cause of a failed rendezvous that a comparison of the ranks shows. Set the odd rank of a mismatch."""
    for find in (
        explain_hang,
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
        culprit.rank = find_odd_rank(attempt, culprit)
    return None


def _find_absent(attempt: Attempt, culprit: Event) -> Event | None:
    """Return the only rank that did not come to a rendezvous, if it wrote a log, as an event."""
    if culprit.rule.class_ != "rendezvous-timeout":
        return None
    joined = culprit.groups.get("joined")
    if joined is not None and int(joined) >= len(attempt.evidence.ranks):
        return None  # the waiting rank has counted all ranks that wrote logs
    came = {event.rank for event in attempt.of_class("rendezvous-timeout", "rendezvous")}
    absent = sorted(attempt.evidence.ranks - came)
    last = {key[1]: line for key, line in attempt.evidence.last.items()}
    if len(absent) != 1 or len(came - {None}) < len(attempt.evidence.ranks) - 1 or absent[0] not in last:
        return None
    end = last[absent[0]]
    return comparison_event(attempt, "late-rank", at_last_line(culprit.line, end, absent[0]), absent[0])


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
    # If two versions are equally frequent, the usual one is that of rank 0.
    usual = max(versions, key=lambda version: (versions[version], version == stated.get(0, ("",))[0]))
    odd = min(rank for rank, (version, _) in stated.items() if version != usual)
    other = min(rank for rank, (version, _) in stated.items() if version == usual)
    version, line = stated[odd]
    found = comparison_event(attempt, "torch-versions", line, odd, detail=f"rank {odd} {version}, rank {other} {usual}")
    found.is_hint = culprit.rule.class_ != "nccl-version"  # versions of torch may differ, and work
    return found


def _find_missing_nodes(attempt: Attempt, culprit: Event) -> Event | None:
    """Return torchrun's number of nodes as the cause of a failed rendezvous, if the job has fewer nodes."""
    wanted, number = attempt.evidence.wanted_nodes, count_job_nodes(attempt)
    if culprit.rule.class_ != "rendezvous-timeout" or wanted is None or not number or number >= wanted[0]:
        return None
    nodes = "1 node" if number == 1 else f"{number} nodes"
    return comparison_event(
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
        return comparison_event(
            attempt, "world-size", line, None, detail=f"the ranks wait for {size}, the script starts {tasks}"
        )
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
    found = comparison_event(attempt, "world-size", line, None, detail=detail)
    found.is_hint = True  # the program itself may start processes
    return found


def _ended(attempt: Attempt, rank: int) -> bool:
    lost = any(event.rank == rank for event in attempt.of_class("connection-lost"))
    ends = [end for end in attempt.ends if rank in end.ranks and end.has_failed]
    return not lost and any(end.signal != "Killed" or not attempt.was_killed_late(end.line) for end in ends)
