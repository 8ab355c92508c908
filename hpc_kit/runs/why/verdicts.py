"""The answer: the sentence about an event, its place, its proofs and its advice."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpc_kit.run_files import format_ranks
from hpc_kit.runs.why.evidence import (
    ANALYSIS_ORDER,
    C10D,
    KERNEL,
    SYSTEM_MESSAGE,
    VICTIMS,
    WARNING,
    LastLine,
    script_options,
)
from hpc_kit.runs.why.failure_place import has_several_hosts, hosts_of, place_of, same_host
from hpc_kit.runs.why.hangs import find_standstill
from hpc_kit.runs.why.memory_figures import add_figures, describe_foreign_memory, used_up_memory
from hpc_kit.runs.why.rules import DIRECT, Confidence, fill_sentence, rule_named
from hpc_kit.runs.why.slurm_tables import expand_nodes
from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.pending_reasons import explain_reason
from hpc_kit.slurm.states import JobState, explain_state

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hpc_kit.runs.why.attempt import Attempt
    from hpc_kit.runs.why.evidence import Event
    from hpc_kit.runs.why.log_reader import Line
    from hpc_kit.runs.why.slurm_tables import JobRow

OWN_ERROR = 44
"""Weight from which an error is one of its rank itself: that of any exception."""

NO_FAILURE = "no-failure"
UNKNOWN = "unknown"


@dataclass(slots=True)
class Proof:
    """A line that shows the cause."""

    file: str
    line: int
    text: str


@dataclass(slots=True)
class Verdict:
    """The answer: what failed, where, and what to do."""

    cause: str
    """One sentence. It begins with "unknown" or "did not fail" if that is the answer."""
    class_: str
    rank: int | None = None
    """The rank that failed first."""
    host: str | None = None
    evidence: list[Proof] = field(default_factory=list)
    traceback: str | None = None
    fix: str = ""
    confidence: Confidence = "likely"
    also: list[str] = field(default_factory=list)
    """Ranks that failed because of it."""
    earlier: list[str] = field(default_factory=list)
    """Causes of earlier attempts."""
    ranks: list[int] = field(default_factory=list)
    """All ranks that failed with the same error, in order."""
    exit_code: int | None = None
    """Exit code of the rank, as a shell shows it."""
    is_own_failure: bool = False
    """The job itself failed: no command of Slurm, of its user or of an administrator ended it."""


_REASON_CLASSES = (
    (r"Dependency", "dependency"),
    (r"QOS|Assoc|Max|AccountingPolicy|PartitionTimeLimit|PartitionNodeLimit|JobArrayTaskLimit", "limit-reached"),
    (r"(?i)launch.?fail", "launch-failure"),
    (r"JobHeld|held state|requeued held", "held"),
    (r"InvalidAccount|AccountNotAllowed", "invalid-account"),
    (r"InvalidQOS", "invalid-qos"),
    (r"BadConstraints|PartitionConfig", "invalid-request"),
    (r"ReqNodeNotAvail|Node|PartitionDown|PartitionInactive|unavailable", "nodes-unavailable"),
)


_OF_NODES = {"launch-failure", "nodes-unavailable", "node-failure"}
"""Classes of failures of which the reason for which a node is out of service may be the cause."""

_SAVES = re.compile(r"(?i)\b(?:sav|writ|stor)ing\b|\b(?:save|write|store|dump)s? ")
"""The last line before Slurm ended an attempt says that the program writes a file."""

_GIVES_REASON = re.compile(
    r"(?i)\b(?:errors?|fail(?:ed|ure|s)?|fatal|abort(?:ing|ed)?|giv(?:e|ing) up|stopp(?:ed|ing)|exiting|quitting|cannot"
    r"|can ?not|can't|could ?n[o']t|unable|no such|not (?:found|enough|set|supported|available|a)|missing|invalid|empty"
    r"|unsupported|unknown|unexpected|refus(?:ed|ing)|must|expected|required?|too (?:many|few|large|small|long|short)"
    r"|mismatch|wrong|diverged|no (?:\w+ ){1,3}(?:found|left|given)|exceed(?:s|ed)?)\b"
)
"""A program states why it ends."""

_LABEL = re.compile(r"^ *\d+: ")
"""The label of `srun --label`."""

_OBJECT = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>: ?")
"""The name of an object in front of the message of its exception, as urllib3 prints it."""

_REFUSED_OPTIONS = {"invalid-account": "account", "invalid-partition": "partition", "invalid-qos": "qos"}
"""The option of the script that Slurm refused."""


_LINES_TO_ADVICE = 2
"""The last line of an exception may be empty."""


def verdict_of(attempt: Attempt, event: Event, confidence: Confidence) -> Verdict:
    """Return the answer that an event is the cause."""
    rule = event.rule
    rank, host = place_of(attempt, event)
    ranks = _ranks_alike(attempt, event) if rule.scope == "rank" else []
    values = _message_values(attempt, event, rank)
    values["who"] = values.get("processes") or describe_rank(attempt, rank, host, ranks)
    # Several ranks have a common host only if they all are on it.
    if len(ranks) > 1 and len(hosts_of(attempt, ranks, {rank: host})) != 1 and has_several_hosts(attempt):
        host = None
    values |= {"host": host} if host and "host" not in values else {}
    values |= {"rank": str(rank)} if rank is not None and "rank" not in values else {}
    remedy = _add_own_error(attempt, event, values)
    last = _last_words(attempt, event, rank) if rule.class_ in {"exit-code", "rank-vanished"} else None
    cause = _describe_cause(attempt, event, values, host, last)
    is_mismatch = rule.class_.startswith("collective-")
    # A victim only lost its connection: the rank to blame is another one, or unknown.
    is_victim = rule.class_ in VICTIMS
    proofs = _proofs(attempt, event)
    if last is not None:
        proofs.insert(0, Proof(last.file, last.number, last.text.strip()[:500]))
    # No log contains the reason of a SIGKILL, but Slurm's accounting shows that the job had used all its memory.
    if rule.class_ == "killed" and (row := used_up_memory(attempt)) and row.line:
        cause = f"{cause.partition(';')[0]}; it had used {row.max_rss} of {row.req_mem}: out of host memory"
        rule = rule_named("kernel-oom-kill")
        proofs.append(proof_of(row.line))
    # The rank that reports a mismatch is the odd one only if it was compared with another one.
    is_compared = "rank2" in event.groups if is_mismatch else event.order == ANALYSIS_ORDER
    is_unplaced = is_victim or ((is_mismatch or rule.scope == "job") and not is_compared)
    shown_rank = None if is_unplaced else rank
    return Verdict(
        cause,
        UNKNOWN if cause.startswith("unknown: ") else rule.class_,
        shown_rank,
        None if is_unplaced or (rule.scope == "job" and rank is None) else host,
        proofs,
        _traceback(attempt, event),
        remedy or add_figures(attempt, rule.class_, fill_sentence(rule.fix, values)),
        confidence,
        _also(attempt, event, rank),
        ranks=[] if shown_rank is None else sorted({shown_rank, *ranks}),
        exit_code=next((end.exit_code for end in attempt.failed_ends() if rank in end.ranks), None),
        is_own_failure=rule.kind != "end",
    )


def _describe_cause(
    attempt: Attempt, event: Event, values: dict[str, str], host: str | None, last: LastLine | None
) -> str:
    """Return the sentence about an event, with its line of code and what else is known about it."""
    rule = event.rule
    cause = _OBJECT.sub("", fill_sentence(rule.cause, values))
    if event.traceback and (frame := event.traceback.own_frame):
        place = f"{frame[0].rpartition('/')[2]}:{frame[1]}"
        cause += f" ({place}{', in ' + frame[2] if frame[2] and frame[2] != '<module>' else ''})"
    # An exit code alone is no cause.
    if last is not None:
        cause = re.split(", and no line| without a", cause)[0]
        cause += f" after it had printed: {_LABEL.sub('', last.text.strip())[:120]}"
    elif rule.class_ == "exit-code":
        cause = "unknown: " + cause
        if (shown := _last_line(attempt, event, event.rank)) is not None:
            cause += f"; its last line: {_LABEL.sub('', shown.text.strip())[:120]}"
    cause += _remark(attempt, event, host) or describe_foreign_memory(event.line.text)
    if _follows_success(attempt, event):
        cause += "; the training had finished before"
    if attempt.completed and rule.kind != "symptom":
        cause += "; the program or its script hid the exit status, so Slurm booked COMPLETED"
    elif attempt.waits_or_runs() and not attempt.of_kind("end"):
        cause += "; the job has not ended yet"
    return cause


def _follows_success(attempt: Attempt, event: Event) -> bool:
    """Return whether a command of the script failed after the program had reported success."""
    return (
        event.rule.kind in {"cause", "soft"}
        and event.line.rank is None
        and not (event.traceback and event.traceback.is_logged)
        and any(
            line.file == event.line.file and line.number < event.line.number and attempt.reports_success(line)
            for line in attempt.success
        )
    )


def _last_words(attempt: Attempt, event: Event, rank: int | None) -> LastLine | None:
    """Return the last line of a rank, if it may be the reason for which the program ended itself."""
    last = _last_line(attempt, event, rank)
    return last if last is not None and _GIVES_REASON.search(last.text) else None


def _last_line(attempt: Attempt, event: Event, rank: int | None) -> LastLine | None:
    """Return the last line of a rank, or the line above the report of its end if no line names a rank."""
    last, before = attempt.evidence.last_of(rank), event.groups.get("before", "")
    named = any(owner is not None for _, owner in attempt.evidence.last)
    if before.strip() and not named and not SYSTEM_MESSAGE.search(before):
        last = LastLine(event.line.number - 1, before, event.line.file)
    return None if last is None or last.time is not None or C10D.search(last.text) else last


def _remark(attempt: Attempt, event: Event, host: str | None) -> str:
    """Return the reason for a cancellation, a late rank or a broken node that other evidence states."""
    class_, (pages, process) = event.rule.class_, attempt.evidence.nodes.largest
    if event.rule.name == "node-out-of-memory" and pages:
        return f"; its largest process was {process} with {pages * 4 / 1024**2:.0f} GiB"
    if class_ in _OF_NODES and host and (known := _reason_of_node(attempt, [host])):
        return f"; Slurm lists {host} with the reason {known[1]}"
    if class_ == "corrupt-file":
        ends = [each for each in attempt.evidence.events if each.rule.kind == "end"]
        ends = [each for each in ends if _SAVES.search(each.groups.get("before", ""))]
        return (
            f"; attempt {ends[-1].attempt + 1} ended after: {ends[-1].groups['before'].strip()[:120]}" if ends else ""
        )
    job = attempt.job
    if class_ == "time-limit" and job and job.state.finished and not job.is_step and job.state is not JobState.TIMEOUT:
        return f"; it was the limit of the step (srun --time): the job itself is {job.state}"
    comment = next((row.comment for row in attempt.rows if row.comment), "")
    if class_ == "cancelled" and comment:
        return f"; comment of an administrator: {comment}"
    if class_ == "cancelled" and (still := find_standstill(attempt, event)):
        return fill_sentence("; it stood still[ since {since}][: {reason}][, for {silence}]", still.groups)
    if class_ == "late-rank" and host:
        for each in attempt.of_class("io-error"):
            if KERNEL.search(each.line.text) and each.host and same_host(host, each.host):
                return f"; the log of {host} reports trouble with a file system: {each.line.body.strip()[:120]}"
    return ""


def _reason_of_node(attempt: Attempt, hosts: Sequence[str]) -> tuple[str, str, Line] | None:
    """Return the first of some hosts that Slurm lists as out of service, the reason, and the line."""
    for nodes, reason, line in attempt.evidence.nodes.reasons:
        for host in expand_nodes(nodes):
            if any(same_host(host, each) for each in hosts):
                return host, reason, line
    return None


def _nodes_of(attempt: Attempt) -> list[str]:
    """Return the nodes that the listings name for the job."""
    return [host for row in attempt.rows for host in (row.batch_host, *expand_nodes(row.nodes)) if host]


def _message_values(attempt: Attempt, event: Event, rank: int | None) -> dict[str, str]:
    """Return the values of a message, with those that further lines of it state without contradiction."""
    values: dict[str, str] = {}
    for other in _alike(attempt, event):
        if other.rank in {event.rank, rank} and not other.is_handled:
            for name, value in other.groups.items():
                values[name] = "" if values.get(name, value) != value else value
    about = {"rank", "rank2", "task", "host", "pid"}  # the place is that of the event itself
    values = {name: value for name, value in values.items() if value and name not in about} | event.groups
    if total := values.pop("total2", ""):
        values["total"] = total
    scripts = list(attempt.evidence.scripts.values())
    if (option := _REFUSED_OPTIONS.get(event.rule.class_)) and "name" not in values and len(scripts) == 1:
        values |= {"name": stated} if (stated := script_options(scripts[0]).get(option)) else {}
    if event.rule.class_ == "log-folder" and (log := next((row.log for row in attempt.rows if row.log), "")):
        values.setdefault("path", log)
    if event.rule.name == "launch-failure":
        same = [each.groups["host"] for each in attempt.events if each.rule is event.rule and "host" in each.groups]
        values |= {"host": fold(sorted(set(same)))} if same else {}
    if event.rule.name == "python-exception":
        values["exception"] = values.get("exception", "").rpartition(".")[2] or values.get("exception", "an exception")
    return values


def _add_own_error(attempt: Attempt, event: Event, values: dict[str, str]) -> str:
    """Complete the values of an error that hpc-kit printed. Return hpc-kit's advice, which another rank may show."""
    if not event.line.body.startswith("hpc-kit: "):
        return _advice_below(attempt, event)
    text = values.get("what", "")
    same = [event, *(each for each in attempt.events if text.startswith(each.groups.get("what", "\n")))]
    if found := values.get("found"):
        values["what"] = f"{text} ({found})"
        values.setdefault("detail", found)
    return next((each.groups["remedy"] for each in same if "remedy" in each.groups), "")


def _advice_below(attempt: Attempt, event: Event) -> str:
    """Return the advice that `python -m hpc_kit.runtime` printed below the traceback of an error."""
    below = (
        each.groups.get("remedy", "")
        for each in attempt.events
        if each.rule.name == "hpc-kit-error"
        and (each.line.file, each.rank) == (event.line.file, event.rank)
        and 0 < each.line.number - event.line.number <= _LINES_TO_ADVICE
    )
    return "" if event.traceback is None else next(below, "")


def _ranks_alike(attempt: Attempt, event: Event) -> list[int]:
    """Return the ranks that failed with the same error. Numbers in its message may differ."""
    if _is_of_all(attempt, event):
        return list(range(_count_ranks(attempt)))
    alike = [each for each in _reports_of(attempt, event) if _error_of(each) == _error_of(event)]
    ranks = {*event.about, *(each.rank for each in alike if each.rank is not None)}
    # A line of srun may report several tasks.
    ranks |= {rank for end in attempt.ends if any(each.line == end.line for each in alike) for rank in end.ranks}
    # Of vague errors and ends, such as an exit code, those of other ranks may be consequences of the first one.
    is_own = event.rule.kind == "cause" and event.rule.weight >= OWN_ERROR
    return sorted(ranks) if is_own or _are_all(attempt, ranks) else []


def _reports_of(attempt: Attempt, event: Event) -> list[Event]:
    """Return the events of the rule of an event that the program did not survive."""
    return [each for each in attempt.named(event.rule.name) if each.strength > WARNING and not each.is_handled]


def _error_of(event: Event) -> tuple[object, ...]:
    """Return what is the same in equal errors of several ranks: the message without numbers, and the line of code."""
    words = [re.sub(r"0x[0-9a-f]+|\d+", "", event.groups.get(name, "")) for name in ("exception", "message", "detail")]
    words += [event.groups.get(name, "") for name in ("code", "signal")]
    is_generic = event.rule.weight < DIRECT and event.traceback is not None
    return (*words, event.traceback.own_frame if is_generic and event.traceback else None)


def _is_of_all(attempt: Attempt, event: Event) -> bool:
    """Return whether lines without ranks contain one message or traceback at least once for each rank."""
    if event.rank is not None or event.rule.scope != "rank" or event.rule.kind != "cause":
        return False
    texts = [_quoted_text(each) for each in _reports_of(attempt, event) if each.rank is None]
    return texts.count(_quoted_text(event)) >= max(_count_ranks(attempt), 2)


def _quoted_text(event: Event) -> str:
    return event.traceback.text if event.traceback else event.line.body


def describe_rank(attempt: Attempt, rank: int | None, host: str | None, ranks: list[int]) -> str:
    """Return the words for the part of the job that failed.

    Args:
        attempt: The attempt.
        rank: The rank that failed first.
        host: Its host.
        ranks: All ranks that failed with the same error.
    """
    if _are_all(attempt, ranks):
        return "every rank"
    if len(ranks) > 1 and rank in ranks:
        hosts = hosts_of(attempt, ranks, {rank: host})
        return f"each of {format_ranks(ranks)}" + (f" on {fold(hosts)}" if hosts else "")
    if rank is not None:
        return f"rank {rank} on {host}" if host else f"rank {rank}"
    return f"a process on {host}" if host else "the program"


def _count_ranks(attempt: Attempt) -> int:
    """Return the number of ranks, as far as the logs show it. Ranks count from 0."""
    return max([attempt.evidence.world, *(rank + 1 for rank in attempt.evidence.ranks)])


def _are_all(attempt: Attempt, ranks: Collection[int]) -> bool:
    return len(ranks) > 1 and len(ranks) >= max(_count_ranks(attempt), max(ranks) + 1)


def _alike(attempt: Attempt, event: Event) -> list[Event]:
    """Return the events that show the same kind of failure."""
    return [each for each in attempt.of_kind(event.rule.kind, above=WARNING) if each.rule.class_ == event.rule.class_]


def _proofs(attempt: Attempt, event: Event) -> list[Proof]:
    lines = [event.line]
    lines += [
        each.line for each in _alike(attempt, event) if event.rule.class_ != "exit-code" or each.rank == event.rank
    ]
    lines += [each.line for each in attempt.named("time-limit")] if event.rule.name == "stood-still" else []
    ends = [end for end in attempt.ends if end.has_failed]
    lines += [end.line for end in ends if event.rank is None or event.rank in end.ranks][:2]
    # Five proofs at most: first the line itself, then equal lines, ends of ranks, and states of the job.
    lines += [row.line for row in attempt.rows if row.line and not row.is_step and row.state.finished]
    return [proof_of(line) for line in {(line.file, line.number): line for line in lines}.values()][:5]


def _traceback(attempt: Attempt, event: Event) -> str | None:
    if event.traceback:
        return event.traceback.text
    related = [
        each for each in attempt.events if each.traceback and each.rule.kind != "consequence" and not each.is_handled
    ]
    return _own_traceback(attempt, related)


def _own_traceback(attempt: Attempt, events: list[Event]) -> str | None:
    first = attempt.first(events)
    return first.traceback.text if first and first.traceback else None


def _also(attempt: Attempt, event: Event, rank: int | None) -> list[str]:
    consequences = attempt.of_kind("consequence")
    named = [each for each in consequences if each.rule.weight > 5]
    victims = {each.rank for each in named if each.rank is not None}
    # A line of srun is about several tasks: `n2: tasks 2-3: Killed`.
    lines = {(each.line.file, each.line.number) for each in named}
    victims |= {
        each for end in attempt.ends if end.is_victim or (end.line.file, end.line.number) in lines for each in end.ranks
    }
    # A rank with the same kind of failure is no victim of it.
    victims -= {rank, *(each.rank for each in _reports_of(attempt, event)), *_ranks_alike(attempt, event)}
    if not victims or event.rule.kind == "consequence":
        return []
    classes = Counter(each.rule.class_ for each in consequences if each.rule.class_ in VICTIMS)
    how = {"connection-lost": "lost connection", "collective-timeout": "collective timed out"}
    kind = f" ({how[classes.most_common(1)[0][0]]})" if classes else ""
    return [f"{format_ranks(sorted(victims))} failed because of it{kind}"]


def unknown_verdict(attempt: Attempt, absent: Sequence[int] = ()) -> Verdict:
    """Return the answer if no event is a cause.

    Args:
        attempt: The attempt.
        absent: Ranks without a log, if the remaining ranks are victims.
    """
    if absent:
        lost = [event for event in attempt.of_class(*VICTIMS) if event.strength > WARNING]
        named = format_ranks(absent)
        return Verdict(
            f"unknown: the files show only ranks that lost or awaited other ranks; no log of {named} is among them",
            UNKNOWN,
            evidence=[proof_of(event.line) for event in lost[:5]],
            traceback=_own_traceback(attempt, lost),
            fix=f"add the logs of {named}, and the output of sacct -j ID -P -o JobID,State,ExitCode,MaxRSS,NodeList",
        )
    if attempt.success and not attempt.failed:
        line = attempt.success[-1]
        return Verdict(
            f"did not fail: the last lines report success ({line.body.strip()[:80]})",
            NO_FAILURE,
            evidence=[proof_of(line)],
            fix="nothing to do",
            confidence="certain",
        )
    lost = [event for event in attempt.of_kind("consequence", above=WARNING) if event.rule.weight > OWN_ERROR / 2]
    if attempt.evidence.results and attempt.job is None and not (attempt.failed or lost):
        line = attempt.evidence.results[-1]
        return Verdict(
            f"did not fail: the last line reports a result, and no line an error that ended the program "
            f"({line.body.strip()[:80]})",
            NO_FAILURE,
            evidence=[proof_of(line)],
            fix="compare with the state of the job: sacct -j ID -P -o JobID,State,ExitCode",
        )
    tracebacks = [event for event in attempt.events if event.traceback]
    text = _own_traceback(attempt, [event for event in tracebacks if event.rule.kind != "consequence"] or tracebacks)
    ends = [end for end in attempt.ends if end.has_failed]
    rank = ends[0].ranks[0] if ends and ends[0].ranks else None
    host = ends[0].host if ends else None
    proofs = [proof_of(end.line) for end in ends[:2]] + [proof_of(row.line) for row in attempt.rows[:2] if row.line]
    return Verdict(
        f"unknown: {_describe_nothing(attempt)}", UNKNOWN, rank, host, proofs, text, _advice(attempt), "likely"
    )


def _describe_nothing(attempt: Attempt) -> str:
    if attempt.evidence.unreadable:
        name, reason = attempt.evidence.unreadable[0]
        return f"{name} cannot be read as a log ({reason})"
    steps = [row for row in attempt.rows if row.is_step and row.state.failed]
    if attempt.job is not None and attempt.completed and steps:
        step = f"step {steps[0].job_id} is {steps[0].state}"
        return f"{step}, although job {attempt.job.job_id} is COMPLETED; no line shows why"
    if attempt.job is not None and attempt.job.state.failed:
        code = f" with exit code {attempt.job.exit_code}" if attempt.job.exit_code else ""
        return f"job {attempt.job.job_id} is {attempt.job.state}{code}, and no line shows why"
    if not attempt.evidence.lines or not attempt.evidence.last:
        return "the logs are empty"
    last = max(attempt.evidence.last.values(), key=lambda each: each.number, default=None)
    shown = f", which ends with: {last.text.strip()[:80]}" if last else ""
    return f"no line shows a failure or an end{shown}"


def _advice(attempt: Attempt) -> str:
    if attempt.job is None:
        columns = "JobID,State,ExitCode,MaxRSS,ReqMem,NodeList"
        return f"add the logs of all ranks and the output of sacct -j ID -P -o {columns}"
    return "add the logs of all ranks; run with PYTHONUNBUFFERED=1 so that no output is lost"


def waiting_verdict(attempt: Attempt, job: JobRow, earlier: Verdict | None = None) -> Verdict:
    """Return the answer about a job that has not ended.

    Args:
        attempt: The attempt.
        job: The job.
        earlier: The failure of a job that it depends on.
    """
    proof = [proof_of(job.line)] if job.line else []
    if job.state is not JobState.PENDING:
        sentence = _uncapitalised(explain_state(job.state))
        nodes = expand_nodes(job.nodes)
        return Verdict(
            f"did not fail: job {job.job_id} has not ended ({job.state}: {sentence})",
            str(job.state).lower(),
            host=nodes[0] if len(nodes) == 1 else None,
            evidence=proof,
            fix=f"follow it: hpc-kit logs {job.job_id} -f",
            confidence="certain",
        )
    reason = explain_reason(job.reason, job.job_id)
    class_ = next((name for pattern, name in _REASON_CLASSES if re.search(pattern, job.reason)), "pending")
    cause = f"did not fail: job {job.job_id} waits in the queue ({job.reason or 'no reason yet'}): {reason.sentence}"
    found = Verdict(cause.rstrip("."), class_, evidence=proof, fix=reason.next_step, confidence="certain")
    if class_ in _OF_NODES and (known := _reason_of_node(attempt, _nodes_of(attempt))):
        found.host = known[0]
        found.cause += f"; Slurm lists {known[0]} with the reason {known[1]}"
        found.evidence.append(proof_of(known[2]))
    if earlier is not None:
        found.cause += f"; the job before it: {earlier.cause.partition('; the job has not')[0]}"
        found.fix = f"{earlier.fix}; submit that job again, then this one ({_uncapitalised(reason.next_step)})"
        found.evidence += earlier.evidence
        found.traceback = earlier.traceback
    return found


def _uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def proof_of(line: Line) -> Proof:
    """Return a line as a proof."""
    return Proof(line.file, line.number, line.text.strip()[:500])
