"""Decides which of the collected events is the cause: the culprit and not a victim.

A victim reports a lost connection, a collective that timed out, or the end that its launcher ordered. Such events count
only if nothing else is found. Then the ranks that did not report, or that called something else, are to blame.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.runs.why.answers import (
    NO_FAILURE,
    Verdict,
    describe_rank,
    place_of,
    proof_of,
    unknown_verdict,
    verdict_of,
    waiting_verdict,
)
from hpc_kit.runs.why.attempt import DIRECT, STATE_ORDER, Attempt, explains, is_strong_success
from hpc_kit.runs.why.events import EXCEPTION, LINE, NOT_WRITTEN, SYSTEM, WARNING, Event
from hpc_kit.runs.why.late_ranks import (
    ANALYSIS_ORDER,
    find_absent,
    find_late,
    find_missing_nodes,
    find_missing_tasks,
    find_odd_rank,
    find_versions,
)
from hpc_kit.runs.why.rules import Confidence, fill_template
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from hpc_kit.runs.why.events import Evidence
    from hpc_kit.runs.why.slurm_tables import JobRow

CLEAR = 55
"""Weight from which a plain line proves a cause, if the job ended soon after it."""

LAST_LINES = 15

_LAUNCHERS = re.compile(
    r"(?:\S*/)?(?:torchrun|python[\d.]*|srun|mpirun|mpiexec|accelerate|deepspeed|ray|apptainer|singularity)"
)
"""Commands that start a training: without them, a script has done nothing."""

_SAYS_FAILED = re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b|(?i:\b(?:failed|aborting|giving up|fatal)\b)|can't open file")
"""A program or a shell says that its work failed."""

_VALUE_MISSING = re.compile(
    r"NoneType|UnboundLocalError|referenced before assignment|cannot access local variable"
    r"|num_samples=0|empty (?:sequence|dataset|list|iterable)|division by zero"
)
"""Messages of Python and torch about a value or about data that an earlier step has not set."""

_UNREACHED = {"unreachable-host", "rendezvous-timeout"}
"""Classes of errors of ranks that wait for another one."""

_SAYS_NOT_WRITTEN = re.compile(
    r"(?i)(?:could ?n[o']t|can ?not|can't|unable to|fail\w*(?: to)?|error)(?: \w+){0,3} "
    r"(?:write|writing|written|save|saving|saved|store|storing|dump|dumping|export|exporting)\b"
)
"""A program says that it has not written a file."""

ORDER_GRACE = 60.0
"""Seconds before an ordered end in which errors are part of that end."""


def decide(evidence: Evidence) -> Verdict:
    """Return the cause of the last attempt of a job."""
    attempt = Attempt(evidence)
    verdict = _answer(attempt)
    verdict.earlier = _earlier_attempts(attempt)
    return verdict


def _answer(attempt: Attempt) -> Verdict:
    fatal = _fatal(attempt)
    if attempt.job and attempt.completed and not fatal and not attempt.failed:
        if (hidden := attempt.first(_hidden_failures(attempt))) is None:
            return _no_failure(attempt, attempt.job)
        return verdict_of(attempt, _explain(attempt, hidden), "likely")
    culprit = attempt.first(fatal)
    if culprit and attempt.job and attempt.job.state is JobState.PENDING and "Dependency" in attempt.job.reason:
        cause = verdict_of(attempt, _explain(attempt, culprit), "likely")
        return waiting_verdict(attempt.job, cause)
    ordered = attempt.first([event for event in attempt.events if event.rule.kind == "end"])
    if ordered and (culprit is None or _comes_after(attempt, culprit, ordered)):
        culprit = ordered
    is_requeued = culprit is not None and culprit.rule.class_ == "requeued"
    if (culprit is None or is_requeued) and not attempt.failed and attempt.job and attempt.waits_or_runs():
        return waiting_verdict(attempt.job)
    if culprit is None:
        culprit = _weak_candidate(attempt)
    if culprit is not None:
        culprit = _explain(attempt, culprit)
        for find in (find_absent, find_missing_tasks, find_missing_nodes, find_versions):
            culprit = find(attempt, culprit) or culprit
        if (
            culprit.rule.class_.startswith("collective-")
            and "rank2" in culprit.groups
            and culprit.order != ANALYSIS_ORDER
        ):
            culprit.rank = find_odd_rank(attempt, culprit)
        return verdict_of(attempt, culprit, _confidence(attempt, culprit))
    return unknown_verdict(attempt)


def _fatal(attempt: Attempt) -> list[Event]:
    """Return the events that end a program: uncaught exceptions, messages of Slurm and the kernel."""
    fatal = [
        event
        for event in attempt.events
        if event.rule.kind == "cause" and not _follows_time_out(attempt, event) and _is_fatal(attempt, event)
    ]
    # A rank that reached no other rank is a victim if another one has an error of its own.
    own = {event.rank for event in fatal if event.rule.class_ not in _UNREACHED and event.rank is not None}
    return [event for event in fatal if event.rule.class_ not in _UNREACHED or not own - {event.rank}]


def _follows_time_out(attempt: Attempt, event: Event) -> bool:
    """Return whether NCCL's watchdog has aborted a rank, because a collective had timed out."""
    return event.rule.class_ == "abort" and any(each.rule.class_ == "collective-timeout" for each in attempt.events)


def _is_fatal(attempt: Attempt, event: Event) -> bool:
    if event.strength == SYSTEM:
        is_direct = event.rule.weight >= DIRECT and not event.is_hint
        return not attempt.completed or (is_direct and not attempt.succeeded_after(event))
    if event.strength != EXCEPTION or (event.traceback and event.traceback.is_thread):
        return False
    if event.is_handled or attempt.has_gone_on(event) or attempt.was_handled_before(event):
        return False
    if attempt.failed:
        return True
    if event.traceback is not None and event.traceback.is_logged and (attempt.completed or attempt.success):
        return False
    return not attempt.succeeded_after(event)


def _hidden_failures(attempt: Attempt) -> list[Event]:
    """Return errors after which a job with exit code 0 did nothing: its program or its script hid the failure."""
    last = [
        event
        for event in attempt.events
        if event.rule.kind in {"cause", "soft"}
        and event.strength > WARNING
        and not (event.is_hint or event.progress)
        and event.lines_after <= LAST_LINES
    ]
    lost = [event for event in last if _lost_output(event)]
    if lost or any(map(is_strong_success, attempt.success)):
        return lost
    return [
        event
        for event in last
        if _LAUNCHERS.fullmatch(event.groups.get("command", ""))
        or (
            not attempt.success
            and _SAYS_FAILED.search(event.traceback.logged_as if event.traceback else event.line.text)
        )
    ]


def _lost_output(event: Event) -> bool:
    """Return whether the program says that it could not write a file."""
    return event.rule.class_ in NOT_WRITTEN and _SAYS_NOT_WRITTEN.search(event.line.body) is not None


def _weak_candidate(attempt: Attempt) -> Event | None:
    """Return a cause without a clear end: a plain line, then an ended rank, then warnings and handled errors."""
    lines = [
        event
        for event in attempt.events
        if event.rule.kind == "cause"
        and event.strength == LINE
        and not event.is_handled
        and not _follows_time_out(attempt, event)
    ]
    if not attempt.failed:
        lines = [event for event in lines if not attempt.succeeded_after(event)]
    if direct := attempt.first([event for event in lines if event.rule.weight >= DIRECT]):
        return direct
    if attempt.failed or not attempt.success or _has_unfinished_victims(attempt):
        for events in (
            find_late(attempt),
            lines,
            _soft(attempt),
            _ended_ranks(attempt, "killed", "interrupted"),
            _reported_errors(attempt),
            _last_messages(attempt),
            _cancelled_steps(attempt),
            _ended_ranks(attempt, "exit-code"),
            _victims(attempt),
            _symptoms(attempt),
        ):
            if found := attempt.first(events):
                return found
    return None


def _has_unfinished_victims(attempt: Attempt) -> bool:
    """Return whether a rank lost another one before it reported success itself."""
    done = {(line.file, line.rank) for line in attempt.success}
    victims = [event for event in attempt.events if event.rule.kind == "consequence" and event.rule.weight >= 20]
    return any(
        (event.strength == EXCEPTION or (event.strength == LINE and not event.lines_after))
        and (event.line.file, event.rank) not in done
        for event in victims
    )


def _soft(attempt: Attempt) -> list[Event]:
    """Return events that may be a cause, if the job failed: handled errors, warnings, errors of threads."""
    if not attempt.failed and not (attempt.ends or attempt.events):
        return []
    soft = [
        event
        for event in attempt.events
        if event.rule.kind == "soft" and event.strength > WARNING and not event.is_handled
    ]
    threads = [
        event
        for event in attempt.events
        if event.rule.kind == "cause"
        and event.strength == EXCEPTION
        and not event.is_handled
        and not attempt.has_gone_on(event)
    ]
    handled = [
        event
        for event in attempt.events
        if event.rule.kind in {"cause", "soft"} and event.rule.weight >= DIRECT and not event.rule.alone
    ]
    return soft or threads or (handled if attempt.failed and not find_late(attempt) else [])


def _symptoms(attempt: Attempt) -> list[Event]:
    symptoms = [event for event in attempt.events if event.rule.kind == "symptom"]
    return [
        event
        for event in symptoms
        if event.rule.class_ != "error-message" and (event.rule.scope != "job" or event.lines_after <= LAST_LINES)
    ]


def _victims(attempt: Attempt) -> list[Event]:
    victims = [
        event
        for event in attempt.events
        if event.rule.kind == "consequence" and event.rule.weight > 5 and event.strength > WARNING
    ]
    return [event for event in victims if event.rule.class_ not in {"exit-code", "terminated"}] or victims


def _reported_errors(attempt: Attempt) -> list[Event]:
    """Return messages of the program about an error, if it ended soon after."""
    messages = [event for event in attempt.events if event.rule.class_ == "error-message" and not event.is_handled]
    return [event for event in messages if event.lines_after <= LAST_LINES and event.strength > WARNING]


def _last_messages(attempt: Attempt) -> list[Event]:
    """Return messages of hpc-kit without advice after which their ranks printed nothing."""
    messages = [event for event in attempt.events if event.rule.name == "hpc-kit-error" and not event.is_handled]
    return [event for event in messages if attempt.failed and event.lines_after <= 2]


def _ended_ranks(attempt: Attempt, *classes: str) -> list[Event]:
    """Return the ends of ranks that report nothing else, such as a kill."""
    reporting = {
        event.rank for event in attempt.events if event.rule.class_ in {"collective-timeout", "connection-lost"}
    }
    ends = [event for event in attempt.events if event.rule.class_ in classes]
    return [
        event
        for event in ends
        if (event.rank is None or event.rank not in reporting) and not _is_killed_by_srun(attempt, event)
    ]


def _is_killed_by_srun(attempt: Attempt, event: Event) -> bool:
    """Return whether srun has killed a task because another one had ended with an exit code.

    A rank that lost another one ends with an exit code, too. Then the kill may have come first.
    """
    if not event.line.body.startswith("srun: error: ") or any(
        each.rule.kind == "consequence" and each.rule.class_ not in {"exit-code", "terminated", "killed"}
        for each in attempt.events
    ):
        return False
    cancelled = [
        each.line.number
        for each in attempt.events
        if each.rule.name == "step-cancelled" and each.line.file == event.line.file
    ]
    before = min(cancelled, default=0)
    return before < event.line.number and any(
        end.signal is None and end.line.file == event.line.file and end.line.number < before
        for end in attempt.failed_ends()
    )


def _cancelled_steps(attempt: Attempt) -> list[Event]:
    """Return ends of steps that Slurm ordered when no task had failed, if the tasks report SIGTERM."""
    signalled = any(event.rule.name == "terminated" for event in attempt.events)
    return [
        event
        for event in attempt.events
        if event.rule.name == "step-cancelled"
        and event.groups.get("time")
        and signalled
        and all(end.line.file == event.line.file and end.line.number > event.line.number for end in attempt.ends)
    ]


def _comes_after(attempt: Attempt, culprit: Event, ordered: Event) -> bool:
    """Return whether an error is part of an end that Slurm ordered."""
    if explains(culprit, ordered) or (culprit.rule.weight >= 85 and culprit.strength == SYSTEM):
        return False
    ends = [end.time for end in attempt.failed_ends() if culprit.rank in end.ranks]
    time = culprit.line.time if culprit.line.time is not None or not ends else ends[0]
    orders = [each.line.time for each in attempt.events if each.rule.kind == "end" and each.order != STATE_ORDER]
    ordered_at = next((each for each in orders if each is not None), ordered.line.time)
    if time is not None and ordered_at is not None:
        return time > ordered_at - ORDER_GRACE
    lines = [each.line for each in attempt.events if each.rule.kind == "end" and each.line.file == culprit.line.file]
    if lines:
        return any(culprit.line.number > line.number for line in lines)
    return culprit.rule.weight < 40


def _explain(attempt: Attempt, culprit: Event) -> Event:
    """Return the event behind the culprit, such as the full disk behind a damaged file."""
    for _ in range(3):
        behind = [
            event
            for event in attempt.events
            if (
                explains(event, culprit)
                or _states_cause_before(event, culprit)
                or _failed_above(event, culprit)
                or _left_value_missing(event, culprit)
            )
            and event.rule.kind != "consequence"
            and not (event.rule.alone and event.strength == WARNING)
            and not (event.is_handled and event.rule.kind == "cause")
            and not (culprit.rule.name == "python-exception" and _had_progress_between(event, culprit))
            and (
                event.line.file != culprit.line.file
                or event.order < culprit.order
                or event.strength == SYSTEM
                or culprit.rule.confidence == "likely"
            )
        ]
        if not behind:
            break
        cause = max(behind, key=lambda event: (event.rule.weight, -event.order))
        if cause.rank is None and cause.rule.scope == "rank" and cause.line.file == culprit.line.file:
            cause.rank = culprit.rank  # a program that the rank started printed it
        culprit = cause
    return culprit


def _confidence(attempt: Attempt, event: Event) -> Confidence:
    rule = event.rule
    if rule.confidence == "likely" or event.is_handled or event.strength == WARNING or attempt.evidence.has_later_step:
        return "likely"
    if event.is_hint and not _is_proved(attempt, event):
        return "likely"
    if rule.kind in {"consequence", "symptom"}:
        return "likely"
    if event.strength in {SYSTEM, EXCEPTION}:
        return "likely" if _is_contested(attempt, event) or _may_be_handled(attempt, event) else "certain"
    if event.order == ANALYSIS_ORDER:
        return _confidence_of_analysis(attempt, event)
    if rule.weight < CLEAR:
        return "likely"
    if rule.kind == "soft" and not attempt.failed and event.lines_after:
        return "likely"
    ended = (
        attempt.failed
        or rule.scope == "job"
        or (not event.progress and not attempt.success and event.lines_after <= LAST_LINES)
    )
    return "certain" if ended else "likely"


def _is_proved(attempt: Attempt, hint: Event) -> bool:
    """Return whether another line proves what a line suggests."""
    return any(
        each.rule is hint.rule and not each.is_hint and not each.is_handled and each.strength > WARNING
        for each in attempt.events
    )


def _confidence_of_analysis(attempt: Attempt, event: Event) -> Confidence:
    waiting = {each.rank for each in attempt.events if each.rule.class_ in {"collective-timeout", "connection-lost"}}
    certain = event.rule.name.startswith(("collective-mismatch", "world-size")) or (
        event.rule.name == "barrier-timeout-rank" and len(waiting - {None}) >= 2
    )
    return "certain" if certain else "likely"


def _is_contested(attempt: Attempt, event: Event) -> bool:
    """Return whether another rank failed otherwise, and nothing shows which was first."""
    if event.rule.kind == "end":
        return False
    # Slurm reports kills for want of memory at the end of a step, whatever ended it.
    if event.rule.class_ == "host-memory" and any(each.rule.class_ == "time-limit" for each in attempt.events):
        return event.traceback is None
    others = [
        each
        for each in _fatal(attempt)
        if each.rule.class_ != event.rule.class_ and not explains(event, each) and not explains(each, event)
    ]
    place = attempt.place_in_report(event)
    if event.rank is not None and place < 1e6 and attempt.ends:
        # The launcher reported the end of another rank, with an error of its own, before.
        return any(each.strength == EXCEPTION and attempt.place_in_report(each) < place for each in others)
    others = [
        each
        for each in others
        if (each.rank != event.rank or (event.rank is None and event.traceback and each.traceback))
        and ((each.rule.weight >= DIRECT) == (event.rule.weight >= DIRECT) or _is_elsewhere(attempt, event, each))
    ]
    return any(each.line.time is None or event.line.time is None for each in others)


def _is_elsewhere(attempt: Attempt, event: Event, other: Event) -> bool:
    """Return whether a message is about one host, and a rank of another host failed by itself."""
    host = attempt.evidence.hosts.get(other.rank) if other.rank is not None else None
    killed = any(end.signal for end in attempt.failed_ends())
    return event.rank is None and None not in {event.host, host} and event.host != host and not killed


def _may_be_handled(attempt: Attempt, event: Event) -> bool:
    """Return whether the program may have gone on after an exception: a logger printed it, or another followed."""
    traceback = event.traceback
    if traceback is None or event.rule.weight >= DIRECT:
        return False
    if not attempt.failed and (traceback.is_child or (traceback.is_logged and event.lines_after > LAST_LINES)):
        return True
    return any(
        each.traceback
        and each.rule.kind == "cause"
        and each.order > event.order
        and (each.line.file, each.rank) == (event.line.file, event.rank)
        and not each.traceback.is_thread
        and each.traceback.exceptions[-1:] != traceback.exceptions[-1:]
        and (each.rule, each.groups) != (event.rule, event.groups)
        for each in attempt.events
    )


def _no_failure(attempt: Attempt, job: JobRow) -> Verdict:
    if (nan := attempt.first(_symptoms(attempt))) and _is_last(attempt, nan):
        return verdict_of(attempt, nan, "likely")
    noise = [event for event in attempt.events if event.rule.kind not in {"symptom", "end"}][:1]
    more = f"; {noise[0].line.file}:{noise[0].line.number} looks like an error, but the job went on" if noise else ""
    proof = [proof_of(job.line)] if job.line else []
    return Verdict(
        f"did not fail: job {job.job_id} ended with exit code 0{more}",
        NO_FAILURE,
        evidence=proof,
        fix="nothing to do",
        confidence="certain",
    )


def _is_last(attempt: Attempt, event: Event) -> bool:
    return any(
        last.file == event.line.file and re.search(r"(?i)\bnan\b|\binf\b", last.text)
        for last in attempt.evidence.last.values()
    )


def _earlier_attempts(attempt: Attempt) -> list[str]:
    if attempt.evidence.attempts < 2:
        return []
    found = []
    for number in range(attempt.evidence.attempts - 1):
        events = [
            event
            for event in attempt.evidence.events
            if event.attempt == number and event.rule.kind in {"cause", "end"} and event.strength >= LINE
        ]
        causes = [event for event in events if event.rule.kind == "cause"]
        if first := attempt.first(causes or events):
            values = {**first.groups, "who": describe_rank(attempt, *place_of(attempt, first), [])}
            found.append(f"attempt {number + 1}: {fill_template(first.rule.cause, values)}")
    return found


def _states_cause_before(event: Event, other: Event) -> bool:
    """Return whether a line shortly before a generic error states its cause directly."""
    return (
        event.rule.kind == "cause"
        and event.strength == LINE
        and event.rule.weight >= 75
        and other.rule.weight < DIRECT
        and event.line.file == other.line.file
        and 0 < other.line.number - event.line.number <= 60
        and not _had_progress_between(event, other)
    )


def _left_value_missing(event: Event, other: Event) -> bool:
    """Return whether a warning about a failed step comes before an error about a value that is missing."""
    return (
        event.rule.kind == "cause"
        and event.strength == WARNING
        and event.rule.weight >= 75
        and not event.is_hint
        and (event.line.file, event.rank or other.rank) == (other.line.file, other.rank)
        and event.order < other.order
        and other.traceback is not None
        and any(_VALUE_MISSING.search(text) for text, _ in other.traceback.exceptions)
    )


def _had_progress_between(event: Event, other: Event) -> bool:
    """Return whether the program went on between a line and a later error in its file."""
    return (
        event.line.file == other.line.file
        and event.strength not in {SYSTEM, EXCEPTION}
        and event.order < other.order
        and (event.progress > other.progress or event.line.number < other.progress_line)
    )


def _failed_above(event: Event, other: Event) -> bool:
    """Return whether an error about a folder came before that of a file which was missing there."""
    above, path = event.groups.get("path", ""), other.groups.get("path", "")
    return (
        other.rule.class_ == "missing-file"
        and event.rule.class_ != "missing-file"
        and event.rule.kind == "cause"
        and above.startswith("/")
        and path.startswith(above.rstrip("/") + "/")
    )
