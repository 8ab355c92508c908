"""Decides which of the collected events is the cause: the culprit and not a victim.

A victim reports a lost connection, a collective that timed out, or the end that its launcher ordered. Such events count
only if nothing else is found. Then the ranks that did not report, or that called something else, are to blame.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_kit.runs.why.attempt import STATE_ORDER, Attempt, explains, had_progress_between
from hpc_kit.runs.why.collective_mismatch import comparison_event
from hpc_kit.runs.why.confidence import LAST_LINES, confidence_of
from hpc_kit.runs.why.earlier_attempts import attempt_that_left, find_earlier_causes
from hpc_kit.runs.why.evidence import EXCEPTION, LINE, LONE_TASKS, NOT_WRITTEN, SYSTEM, VICTIMS, WARNING, Event
from hpc_kit.runs.why.failure_place import correct_local_ranks, place_of
from hpc_kit.runs.why.hangs import find_stuck_workers
from hpc_kit.runs.why.late_ranks import find_by_comparison, find_late, find_ranks_without_log
from hpc_kit.runs.why.later_commands import are_of_two_programs, follows_failure, misses_input
from hpc_kit.runs.why.rules import DIRECT, fill_sentence
from hpc_kit.runs.why.script_faults import add_script_fault
from hpc_kit.runs.why.verdicts import (
    NO_FAILURE,
    UNKNOWN,
    Verdict,
    describe_rank,
    proof_of,
    unknown_verdict,
    verdict_of,
    waiting_verdict,
)
from hpc_kit.slurm.partitions import parse_limit
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from hpc_kit.runs.why.evidence import Evidence, TaskEnd
    from hpc_kit.runs.why.slurm_tables import JobRow

_LAUNCHERS = re.compile(
    r"(?:\S*/)?(?:torchrun|python[\d.]*|srun|mpirun|mpiexec|accelerate|deepspeed|ray|apptainer|singularity)"
)
"""Commands that start a training: without them, a script has done nothing."""

_SAYS_FAILED = re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b|(?i:\b(?:failed|aborting|giving up|fatal)\b)|can't open file")
"""A program or a shell prints that its work failed."""

_VALUE_MISSING = re.compile(
    r"NoneType|UnboundLocalError|referenced before assignment|cannot access local variable"
    r"|num_samples=0|empty (?:sequence|dataset|list|iterable)|division by zero|^(?:_?queue\.)?Empty\b"
)
"""Messages of Python and torch about a value or about data that an earlier step has not set."""

_UNREACHED = {"unreachable-host", "server-unreachable", "rendezvous-timeout"}
"""Classes of errors of ranks that wait for another one."""

_SAYS_NOT_WRITTEN = re.compile(
    r"(?i)(?:could ?n[o']t|can ?not|can't|unable to|fail\w*(?: to)?|error)(?: \w+){0,3} "
    r"(?:write|writing|written|save|saving|saved|store|storing|dump|dumping|export|exporting)\b"
)
"""A program prints that it has not written a file."""

_READS_SAVED = re.compile(
    r"(?i)checkpoint|ckpt|serialization\.py|PytorchStream|safetensor|pickle|load_state|\b(?:resum|restor)(?:e|ing)\b|\.pth?\b"
)
"""An error about a damaged file that the program itself has saved, and not about its data."""

_TOKEN = re.compile(r"(?i)token|secret|credential|passw|login|netrc|(?<![a-z])key(?:s|\b|_)")
"""The name of a file with which a program proves who its user is."""

_ABSOLUTE = re.compile(r"(?<![\w./])/\w")
"""A message names the place of its file, which can be compared with that of another one."""

_DOWNLOADS = re.compile(
    r"(?i)https?\b|hugging|\bhub\b|download|offline|network|connect|resolve|\burls?\b|from_pretrained|load_dataset|wandb"
    r"|/(?:requests|urllib\d?|httpx|datasets|transformers)/|\bcached?\b|no such file|filenotfound|not found"
)
"""An exception, or a frame of its traceback, has to do with a download or misses what one brings."""

_OWN_MISTAKE = re.compile(
    r"(?:Key|Index|Attribute|Name|Type|ZeroDivision|UnboundLocal|Assertion|NotImplemented)Error\b"
)
"""Exceptions that a mistake in the program raises, and no trouble of its machine."""

BUFFERED_LINES = 200
"""Lines in the 8 KiB of output that Python keeps, and writes only after the traceback that ends it."""

_MESSAGE_LINES = 3
"""Lines that still belong to the message of an exception."""

SHORT_JOB = 600.0
"""Seconds of a job that may have done no more than load its checkpoint."""

ORDER_GRACE = 60.0
"""Seconds before an ordered end in which errors are part of that end."""


def decide(evidence: Evidence) -> Verdict:
    """Return the cause of the last attempt of a job."""
    attempt = Attempt(evidence)
    correct_local_ranks(attempt)
    verdict = add_script_fault(attempt, _answer(attempt))
    if earlier := find_earlier_causes(attempt):
        verdict.earlier = [sentence for _, sentence in earlier]
        left = attempt_that_left(verdict.class_, verdict.cause, earlier) if attempt.failed else None
        if left is not None:
            return _answer_of_earlier(attempt, earlier[left][0].attempt, verdict)
        if verdict.class_ == "corrupt-file" and earlier[0][0].rule.class_ != "corrupt-file":
            verdict.cause += f"; it may be from {verdict.earlier[0]}"
    return verdict


def _answer_of_earlier(attempt: Attempt, number: int, last: Verdict) -> Verdict:
    """Return the answer about an attempt after which the later ones only tripped over what it had left behind."""
    first = Attempt(attempt.evidence.until(number))
    verdict = _answer(first)
    if not (_fatal(first) and verdict.is_own_failure) or verdict.class_ in {UNKNOWN, NO_FAILURE}:
        return last
    verdict.cause += f"; the attempts after attempt {number + 1} only met what it had left behind: {last.cause}"
    verdict.earlier = [sentence for _, sentence in find_earlier_causes(first)]
    verdict.confidence = "likely"
    return verdict


def _answer(attempt: Attempt) -> Verdict:
    fatal = _fatal(attempt)
    if attempt.job and attempt.completed and not fatal and not attempt.failed:
        return _answer_completed(attempt, attempt.job)
    culprit = attempt.first(fatal)
    ordered = attempt.first(attempt.of_kind("end"))
    # An end that Slurm ordered makes programs print errors, which are then no causes.
    if ordered and (
        culprit is None or explains(ordered, culprit) or _is_part_of_ordered_end(attempt, culprit, ordered)
    ):
        culprit = ordered
    if waiting := _answer_unless_failed(attempt, culprit):
        return waiting
    if culprit is None:
        culprit = _weak_candidate(attempt)
    if culprit is None and (culprit := attempt.first(_uncaught_at_end(attempt))):
        return verdict_of(attempt, _causal_chain(attempt, culprit)[-1], "likely")
    if culprit is None:
        verdict = unknown_verdict(attempt)
        return replace(verdict, confidence="likely") if _hides_failure(attempt) else verdict
    chain = _causal_chain(attempt, culprit)
    # A late or missing rank shows only in comparison with the ranks that waited for it.
    if found := find_by_comparison(attempt, chain[-1]):
        chain = _causal_chain(attempt, found) if found.rule.class_ == "late-rank" else [found]
    elif chain[-1].rule.class_ in VICTIMS and (absent := find_ranks_without_log(attempt)):
        return unknown_verdict(attempt, absent)
    verdict = verdict_of(attempt, chain[-1], confidence_of(attempt, chain, fatal))
    if chain[0].rule.class_ == "late-rank" and len(chain) > 1 and verdict.rank is None:
        # The error itself names no rank, but it kept this one from joining the remaining ones.
        verdict.rank, verdict.host = place_of(attempt, chain[0])
        verdict.cause += f"; {describe_rank(attempt, verdict.rank, verdict.host, [])} did not join the remaining ranks"
    return verdict


def _answer_completed(attempt: Attempt, job: JobRow) -> Verdict:
    """Return the answer about a job with exit code 0, which may have lost its output, or never started its program."""
    hidden = attempt.first(_hidden_failures(attempt) or _wrong_folder(attempt) or _uncaught_at_end(attempt))
    return verdict_of(attempt, _causal_chain(attempt, hidden)[-1], "likely") if hidden else _no_failure(attempt, job)


def _answer_unless_failed(attempt: Attempt, culprit: Event | None) -> Verdict | None:
    """Return the answer that the job waits or runs, if only an earlier attempt has failed."""
    job = attempt.job
    if job is None or not attempt.waits_or_runs():
        return None
    # The logs are those of the job before it: its failure is the answer.
    if job.state is JobState.PENDING and "Dependency" in job.reason:
        before = culprit or _weak_candidate(attempt)
        return waiting_verdict(
            attempt, job, verdict_of(attempt, _causal_chain(attempt, before)[-1], "likely") if before else None
        )
    if culprit is None:
        return None if attempt.failed else waiting_verdict(attempt, job)
    if culprit.rule.kind != "end" or not (job.state is JobState.PENDING or culprit.rule.class_ == "requeued"):
        return None
    verdict = waiting_verdict(attempt, job)
    verdict.earlier = [f"attempt 1: {fill_sentence(culprit.rule.cause, culprit.groups)}"]
    return verdict


def _fatal(attempt: Attempt) -> list[Event]:
    """Return the events that end a program: uncaught exceptions, messages of Slurm and the kernel."""
    causes = _causes(attempt)
    fatal = [event for event in causes if _is_fatal(attempt, event)]
    fatal = [event for event in fatal if not follows_failure(attempt, event, causes)]
    # A rank that reached no other rank is a victim if another one has an error of its own.
    own = {_process_of(event) for event in fatal if event.rule.class_ not in _UNREACHED}
    fatal = [event for event in fatal if event.rule.class_ not in _UNREACHED or not own - {_process_of(event)}]
    stuck = find_stuck_workers(attempt) if attempt.waits_or_runs() else None
    return fatal or ([stuck] if stuck else [])


def _process_of(event: Event) -> int | str:
    """Return the rank of an event, or the log that an unnamed process wrote."""
    return event.line.file if event.rank is None else event.rank


def _causes(attempt: Attempt) -> list[Event]:
    """Return the events that may end a program: not the aborts of NCCL's watchdog, which follow a failed collective."""
    victims = {event.rank for event in attempt.of_class("connection-lost")}
    is_watchdog = bool(attempt.of_class("collective-timeout"))
    return [
        event
        for event in attempt.of_kind("cause")
        if event.rule.class_ != "abort" or not (is_watchdog or event.rank in victims)
    ]


def _is_fatal(attempt: Attempt, event: Event) -> bool:
    # A running job that trains on has survived the error.
    if event.progress and attempt.waits_or_runs():
        return False
    if event.strength == SYSTEM:
        if event.is_handled:
            return False
        # A job can be COMPLETED although the kernel killed one of its processes: its script masks the exit code.
        is_direct = event.rule.weight >= DIRECT and not event.is_hint
        return not attempt.completed or (is_direct and not attempt.succeeded_after(event))
    traceback = event.traceback
    if event.strength != EXCEPTION or (traceback and (traceback.is_thread or traceback.is_survived)):
        return False
    if event.is_handled or attempt.has_gone_on(event) or attempt.was_handled_before(event):
        return False
    if attempt.failed:
        return True
    # A program that logs an exception has caught it.
    if traceback is not None and traceback.is_logged and (attempt.completed or attempt.success):
        return False
    return not attempt.succeeded_after(event)


def _hidden_failures(attempt: Attempt) -> list[Event]:
    """Return errors after which a job with exit code 0 did nothing: its program or its script hid the failure."""
    last = [
        event
        for event in attempt.of_kind("cause", "soft", above=WARNING)
        if not (event.is_hint or event.progress) and event.lines_after <= LAST_LINES
    ]
    lost = [event for event in last if _lost_output(event)]
    # After a report of success, only lost output is a failure.
    if lost or any(map(attempt.reports_success, attempt.success)):
        return lost
    return [
        event
        for event in last
        if _LAUNCHERS.fullmatch(event.groups.get("command", ""))
        or (
            not (attempt.success or event.is_survived)
            and _SAYS_FAILED.search(event.traceback.logged_as if event.traceback else event.line.text)
        )
    ]


def _wrong_folder(attempt: Attempt) -> list[Event]:
    """Return the folder that a script did not find, if a later command did not find its files there either."""
    return [
        event
        for event in attempt.named("change-folder")
        if any(
            each.rule.class_ == "missing-file"
            and each.line.file == event.line.file
            and each.line.number > event.line.number
            and not each.progress
            for each in attempt.events
        )
    ]


def _lost_output(event: Event) -> bool:
    """Return whether the program reports that it could not write a file."""
    return event.rule.class_ in NOT_WRITTEN and _SAYS_NOT_WRITTEN.search(event.line.body) is not None


def _weak_candidate(attempt: Attempt) -> Event | None:
    """Return a cause without a clear end: a plain line, then an ended rank, then warnings and handled errors."""
    lines = [event for event in _causes(attempt) if event.strength == LINE and not event.is_handled]
    if not attempt.failed:
        lines = [event for event in lines if not attempt.succeeded_after(event)]
    unordered = [event for event in lines if attempt.has_no_order(event)]
    lines = [event for event in lines if event not in unordered]
    if direct := attempt.first([event for event in lines if event.rule.weight >= DIRECT]):
        return direct
    if attempt.failed or not attempt.success or _has_unfinished_victims(attempt):
        # From the best explanation to the poorest: the first list with an event decides.
        for events in (
            attempt.named("terminated-from-outside"),
            find_late(attempt),
            lines,
            _soft(attempt),
            _ended_ranks(attempt, "killed", "interrupted"),
            unordered,
            _reported_errors(attempt),
            _cancelled_steps(attempt),
            attempt.named("failed-command"),
            _ended_ranks(attempt, "exit-code"),
            _victims(attempt),
            _symptoms(attempt),
        ):
            if found := attempt.first(events):
                return found
    return attempt.first([event for event in attempt.of_class(*_NO_SUCCESS) if event.rule.kind == "symptom"])


def _has_unfinished_victims(attempt: Attempt) -> bool:
    """Return whether a rank lost another one before it reported success itself."""
    done = {(line.file, line.rank) for line in attempt.success}
    return any(
        # Lower weights are noise and ends that were ordered: no sign of a failed rank.
        event.rule.weight >= 20
        and (event.strength == EXCEPTION or (event.strength == LINE and not event.lines_after))
        and (event.line.file, event.rank) not in done
        for event in attempt.of_kind("consequence")
    )


def _soft(attempt: Attempt) -> list[Event]:
    """Return events that may be a cause, if the job failed: handled errors, warnings, errors of threads."""
    soft = [
        event
        for event in attempt.of_kind("soft", above=WARNING)
        if not (event.is_handled or attempt.has_no_order(event))
    ]
    threads = [
        event
        for event in attempt.of_kind("cause")
        if event.strength == EXCEPTION
        and not (event.is_handled or (event.traceback and event.traceback.is_survived) or attempt.has_gone_on(event))
        and not attempt.was_handled_before(event)
    ]
    # Other ranks may print a few more steps after an error that ended one.
    late = [
        event
        for event in attempt.of_kind("cause", "soft")
        if event.rule.weight >= DIRECT
        and max(event.lines_after, event.progress) <= LAST_LINES
        and not (event.rule.alone or event.is_survived or attempt.has_no_order(event))
    ]
    is_known = not attempt.failed or find_late(attempt)
    return soft or threads or ([] if is_known else late or _uncaught(attempt))


def _uncaught(attempt: Attempt) -> list[Event]:
    """Return the exceptions after which a process may only have written what its buffer contained."""
    codes = {end.code for end in attempt.failed_ends()} | {row.exit_code for row in attempt.rows}
    return [
        event
        for event in attempt.of_kind("cause")
        if codes & {1}
        and event.traceback
        and not (event.traceback.is_thread or event.traceback.is_logged or event.is_survived)
        and event.lines_after <= BUFFERED_LINES
        and not attempt.has_gone_on(event)
    ]


def _uncaught_at_end(attempt: Attempt, *, any_line: bool = False) -> list[Event]:
    """Return the exceptions that ended a program whose script went on, and then reported success itself.

    The traceback of an exception that nothing caught begins with the first line of the program.

    Args:
        attempt: The attempt.
        any_line: Return also those after which many lines follow, and no report of a launcher.
    """
    return [
        event
        for event in attempt.of_kind("cause")
        if event.traceback
        and event.traceback.begins_program
        and not (event.traceback.is_logged or event.traceback.is_thread or event.traceback.is_child)
        and not (event.traceback.is_survived or event.is_survived or event.progress)
        and (any_line or event.lines_after <= LAST_LINES or _is_reported(attempt, event))
        # Only the program itself writes to the log of a rank.
        and not (event.rank in attempt.evidence.own_logs and attempt.succeeded_after(event))
        and not any(
            (line.file, line.rank) == (event.line.file, event.rank) and line.number < event.line.number
            for line in attempt.success
        )
    ]


def _is_reported(attempt: Attempt, event: Event) -> bool:
    """Return whether a launcher reported a failed task or rank after an exception, and no later step was good."""
    if attempt.has_good_last_step:
        return False
    reports = [end.line for end in attempt.ends if end.has_failed]
    reports += [each.line for each in attempt.of_class("exit-code") if not each.progress]
    return any(line.file == event.line.file and line.number > event.line.number for line in reports)


def _symptoms(attempt: Attempt) -> list[Event]:
    return [
        event
        for event in attempt.of_kind("symptom")
        if event.rule.class_ != "error-message"
        and not event.is_survived
        and (event.rule.scope != "job" or event.rule.name == LONE_TASKS or event.lines_after <= LAST_LINES)
    ]


def _victims(attempt: Attempt) -> list[Event]:
    # Rules with a weight of 5 or less match lines that every failed job prints.
    victims = [event for event in attempt.of_kind("consequence", above=WARNING) if event.rule.weight > 5]
    return [event for event in victims if event.rule.class_ not in {"exit-code", "terminated"}] or victims


def _reported_errors(attempt: Attempt) -> list[Event]:
    """Return messages of the program about an error, if it ended soon after, or if its rank failed by itself."""
    failed = {rank for end in attempt.failed_ends() for rank in end.ranks}
    return [
        event
        for event in attempt.of_class("error-message")
        if event.strength > WARNING
        and not event.is_handled
        and (event.lines_after <= LAST_LINES or event.rank in failed)
    ]


def _ended_ranks(attempt: Attempt, *classes: str) -> list[Event]:
    """Return the ends of ranks that report nothing else, such as a kill."""
    reporting = {place_of(attempt, event)[0] for event in attempt.of_class(*VICTIMS)}
    return [
        event
        for event in attempt.of_class(*classes)
        if event.rank not in reporting
        and not _is_killed_by_srun(attempt, event)
        and not any(end.line == event.line and _is_of_cancelled_step(attempt, end) for end in attempt.ends)
    ]


def _is_of_cancelled_step(attempt: Attempt, end: TaskEnd) -> bool:
    """Return whether a task ended after its step had been cancelled, before any task had failed."""
    ordered = any(row.is_step and "CANCELLED by" in row.raw_state for row in attempt.rows)
    cancelled = [each.line for each in attempt.named("step-cancelled") if each.line.file == end.line.file]
    first = min((line.number for line in cancelled), default=end.line.number)
    ends = [each for each in attempt.ends if each.line.file == end.line.file]
    return ordered and bool(ends) and first < min(each.line.number for each in ends)


def _is_killed_by_srun(attempt: Attempt, event: Event) -> bool:
    """Return whether srun has killed a task because another one had ended with an exit code.

    A rank that lost another one ends with an exit code, too. Then the kill may have come first.
    """
    if attempt.was_killed_late(event.line):
        return True
    if not event.line.body.startswith("srun: error: "):
        return False
    ends = {"exit-code", "terminated", "killed"}
    lost = {each.rank for each in attempt.of_kind("consequence") if each.rule.class_ not in ends}
    if None in lost:
        return False
    cancelled = [each.line.number for each in attempt.named("step-cancelled") if each.line.file == event.line.file]
    before = min(cancelled, default=0)
    return before < event.line.number and any(
        end.signal is None
        and end.line.file == event.line.file
        and end.line.number < before
        and lost.isdisjoint(end.ranks)
        for end in attempt.failed_ends()
    )


def _cancelled_steps(attempt: Attempt) -> list[Event]:
    """Return ends of steps that Slurm ordered when no task had failed, if the tasks report SIGTERM."""
    if not attempt.named("terminated") and not any(_is_of_cancelled_step(attempt, end) for end in attempt.ends):
        return []
    return [
        event
        for event in attempt.named("step-cancelled")
        if event.groups.get("time")
        and all(end.line.file == event.line.file and end.line.number > event.line.number for end in attempt.ends)
    ]


def _is_part_of_ordered_end(attempt: Attempt, culprit: Event, ordered: Event) -> bool:
    """Return whether an error is part of an end that Slurm ordered."""
    # A message of the kernel about a dead process or device is no part of an orderly end.
    if explains(culprit, ordered) or (culprit.rule.weight >= 85 and culprit.strength == SYSTEM):
        return False
    ends = [end.time for end in attempt.failed_ends() if culprit.rank in end.ranks]
    time = culprit.line.time if culprit.line.time is not None or not ends else ends[0]
    # A row of sacct gives the end of the job, but not the time of the order.
    orders = [each.line.time for each in attempt.of_kind("end") if each.order != STATE_ORDER]
    ordered_at = next((each for each in orders if each is not None), ordered.line.time)
    if time is not None and ordered_at is not None:
        return time > ordered_at - ORDER_GRACE
    lines = [each.line.number for each in attempt.of_kind("end") if each.line.file == culprit.line.file]
    if lines:
        return culprit.line.number > min(lines)
    # Without times or a common file, an error counts as part of the end only if its rule states no cause.
    return culprit.rule.weight < 40


def _causal_chain(attempt: Attempt, culprit: Event) -> list[Event]:
    """Return an event, the event behind it, such as the full disk behind a damaged file, and so on."""
    chain = [culprit]
    known = set(map(id, attempt.events))
    # An earlier step of the script may have left a part of a file, for instance on a full local disk.
    of_steps = [event for event in attempt.evidence.events if id(event) not in known and event.rule.kind == "cause"]
    # Rules may explain each other in a circle.
    for _ in range(3):
        behind = [event for event in attempt.events if _is_behind(attempt, event, chain[-1])]
        has_later = attempt.evidence.has_later_step
        behind += [event for event in of_steps if has_later and event.strength > WARNING and explains(event, chain[-1])]
        behind += [event for event in of_steps if _left_file_damaged(event, chain[-1])]
        if has_later and not behind and misses_input(chain[-1]):
            behind += [event for event in of_steps if not event.is_handled and are_of_two_programs(event, chain[-1])]
        if not behind:
            break
        cause = max(behind, key=lambda event: (event.rule.weight, -event.order))
        is_of_rank = cause.line.file == chain[-1].line.file or id(cause) not in known
        is_of_rank &= cause.rule.scope != "job" and not cause.is_of_shell_command
        if cause.rank is None and cause.host is None and is_of_rank:
            cause.rank = chain[-1].rank  # a program that the rank started printed it
        chain.append(cause)
    return chain


def _is_behind(attempt: Attempt, event: Event, culprit: Event) -> bool:
    """Return whether an event is the cause of the culprit: its rule or its place shows this, and it came first."""
    if event.rule.kind == "consequence" or (event.rule.alone and event.strength == WARNING):
        return False
    if (
        event.is_handled
        and event.rule.kind == "cause"
        and not (event.is_survived and _left_value_missing(event, culprit))
        and not (_left_file_damaged(event, culprit) or _left_file_missing(event, culprit))
    ):
        return False
    if culprit.rule.class_ in {"time-limit", "cancelled"} and _tried_to_the_end(attempt, event):
        return True
    if culprit.rule.class_ == "time-limit" and (event.progress or event.strength == WARNING):
        return False
    is_over = culprit.rule.name == "python-exception" and had_progress_between(event, culprit)
    if is_over or _may_be_cached(event, culprit):
        return False
    is_vague = culprit.rule.class_ in {"exit-code", "killed"}
    # The program trained after it, or may have done so.
    if is_vague and (event.is_handled or attempt.has_no_order(event)):
        return False
    if _is_own_mistake(culprit) and event.line.file != culprit.line.file and attempt.has_no_order(event):
        return False
    came_first = (
        event.line.file != culprit.line.file
        or event.order < culprit.order
        # A message of Slurm or the kernel may come later than its effect.
        or event.strength == SYSTEM
        or culprit.rule.confidence == "likely"
    )
    return came_first and (
        explains(event, culprit)
        or _states_cause_before(event, culprit)
        or _left_value_missing(event, culprit)
        or _left_file_missing(event, culprit)
        or _left_token_missing(event, culprit)
        or (
            culprit.rule.class_ == "late-rank" and event.rank == culprit.rank is not None and _ends_rank(event, culprit)
        )
    )


def _may_be_cached(event: Event, culprit: Event) -> bool:
    """Return whether a program may have had in its cache what it could not download, by the error that ended it."""
    is_message = event.rule.class_ in {"hub-access", "wandb"} and event.strength <= LINE
    return is_message and culprit.traceback is not None and _DOWNLOADS.search(culprit.traceback.text) is None


def _left_file_damaged(event: Event, culprit: Event) -> bool:
    """Return whether a file could not be written before the program read a damaged checkpoint, or damaged data.

    The program survived it, or a command of the script copied the data.
    """
    text = culprit.traceback.text if culprit.traceback else culprit.line.body
    # An error of a thread, or one without a line of the program, may be that of a helper.
    trace = None if event.traceback is None or event.traceback.is_thread else event.traceback.own_frame
    is_unwritten = event.rule.class_ in NOT_WRITTEN and event.strength > WARNING and explains(event, culprit)
    if culprit.rule.class_ != "corrupt-file" or event.order > culprit.order or not is_unwritten:
        return False
    is_saved = _READS_SAVED.search(text) is not None
    return event.is_of_shell_command or (is_saved and (_lost_output(event) or trace is not None))


def _left_file_missing(event: Event, culprit: Event) -> bool:
    """Return whether a command of the script could not write its files before the program missed one."""
    return (
        culprit.rule.class_ == "missing-file"
        and event.rule.class_ in NOT_WRITTEN
        and event.strength > WARNING
        and event.is_of_shell_command
        and _ABSOLUTE.search(event.line.body) is None
        and event.line.file == culprit.line.file
        and event.order < culprit.order
    )


def _left_token_missing(event: Event, culprit: Event) -> bool:
    """Return whether a command of the script could not read a token before a server refused the program."""
    return (
        culprit.rule.class_ == "hub-access"
        and event.rule.class_ in {"permission", "missing-file"}
        and event.is_of_shell_command
        and _TOKEN.search(event.groups.get("path", "")) is not None
        and event.line.file == culprit.line.file
        and event.order < culprit.order
    )


def _tried_to_the_end(attempt: Attempt, event: Event) -> bool:
    """Return whether ranks looked for a host in vain until the end of the job. A healthy start has a few warnings."""
    if event.rule.class_ != "name-resolution" or event.progress or event.lines_after > LAST_LINES:
        return False
    times = [each.line.time for each in attempt.named(event.rule.name) if each.line.time is not None]
    return len(times) > _MANY_TRIES and max(times) - min(times) >= _LONG_TRIES


_MANY_TRIES = 5
_LONG_TRIES = 20.0
"""Seconds."""


def _ends_rank(event: Event, culprit: Event) -> bool:
    """Return whether an event may have kept its rank, the culprit, from joining the remaining ones."""
    is_direct = event.rule.weight >= DIRECT and event.strength > WARNING and not event.is_hint
    return event.traceback is not None or (is_direct and not had_progress_between(event, culprit))


_NO_SUCCESS = ("no-training", "checkpoint-mismatch", "world-size")
"""Classes of symptoms that make the results of a job without an error worthless."""

_NAN_LINES_PER_PROGRESS = 50
"""Lines with NaN before one line of progress at the end: after so many, it is no finite loss."""


def _no_failure(attempt: Attempt, job: JobRow) -> Verdict:
    if (found := attempt.first(_symptoms(attempt)) or _trained_nothing(attempt, job)) and (
        found.rule.class_ in _NO_SUCCESS or _is_last(attempt, found) or _stays_nan(attempt)
    ):
        return verdict_of(attempt, found, "likely")
    noise = [event for event in attempt.events if event.rule.kind not in {"symptom", "end"}][:1]
    # A training that printed steps before an exception that nothing caught, and none after it, may have died of it.
    reported = [event for event in attempt.of_class("killed", "rank-failed") if attempt.lost_rank_at_end(event)]
    ended = [event for event in (*_uncaught_at_end(attempt, any_line=True), *reported) if event.progress_line]
    what = "may have ended the training: no step follows it" if ended else "looks like an error, but the job went on"
    noise = ended[:1] or noise
    more = f"; {noise[0].line.file}:{noise[0].line.number} {what}" if noise else ""
    proof = [proof_of(job.line)] if job.line else []
    return Verdict(
        f"did not fail: job {job.job_id} ended with exit code 0{more}",
        NO_FAILURE,
        evidence=proof,
        fix="nothing to do",
        confidence="likely" if ended or _hides_failure(attempt) else "certain",
    )


def _trained_nothing(attempt: Attempt, job: JobRow) -> Event | None:
    """Return that a short job ended right after it had restored a checkpoint: a long one may train without a line."""
    line, elapsed = attempt.evidence.untrained, parse_limit(job.elapsed)
    is_short = elapsed is not None and elapsed <= SHORT_JOB
    return comparison_event(attempt, "trained-nothing", line, line.rank) if line and is_short else None


def _hides_failure(attempt: Attempt) -> bool:
    """Return whether an exception near the end of a log was not followed by enough progress, nor by what logged it."""
    return any(
        event.traceback is not None
        and not (event.traceback.is_survived or event.traceback.is_thread or event.traceback.is_child)
        and (
            not event.traceback.is_logged or (event.lines_after < _MESSAGE_LINES and not attempt.succeeded_after(event))
        )
        and not event.is_handled
        and event.lines_after <= LAST_LINES
        for event in attempt.events
    )


def _is_last(attempt: Attempt, event: Event) -> bool:
    return any(
        last.file == event.line.file and re.search(r"(?i)\bnan\b|\binf\b", last.text)
        for last in attempt.evidence.last.values()
    )


def _stays_nan(attempt: Attempt) -> bool:
    """Return whether hardly a line of progress, such as that of an epoch, follows the last loss that is NaN."""
    events = attempt.named("nan-lines")
    is_last = len(events) > 1 and events[-1].progress <= len(events) // _NAN_LINES_PER_PROGRESS
    return is_last and events[-1].lines_after <= LAST_LINES


def _states_cause_before(event: Event, other: Event) -> bool:
    """Return whether a line shortly before a generic error states its cause directly."""
    return (
        event.rule.kind == "cause"
        and event.strength == LINE
        and event.rule.weight >= 75
        and other.rule.weight < DIRECT
        and event.line.file == other.line.file
        and 0 < other.line.number - event.line.number <= 60
        and not had_progress_between(event, other)
        and not _is_own_mistake(other)
    )


def _is_own_mistake(event: Event) -> bool:
    return event.rule.name == "python-exception" and bool(_OWN_MISTAKE.search(event.groups.get("exception", "")))


def _left_value_missing(event: Event, other: Event) -> bool:
    """Return whether a failed step or thread comes before an error about a value that is missing."""
    is_warning = (event.strength == WARNING or event.is_survived) and event.rule.weight >= 75 and not event.is_hint
    is_survived = event.traceback is not None and (event.traceback.is_logged or event.traceback.is_thread)
    return (
        event.rule.kind == "cause"
        and (is_warning or is_survived)
        and not had_progress_between(event, other)
        and (event.line.file, event.rank or other.rank) == (other.line.file, other.rank)
        and event.order < other.order
        and other.traceback is not None
        and any(_VALUE_MISSING.search(text) for text, _ in other.traceback.exceptions)
    )
