"""Decides which of the collected events is the cause: the culprit and not a victim.

A victim reports a lost connection, a collective that timed out, or the end that its launcher ordered. Such events count
only if nothing else is found. Then the ranks that did not report, or that called something else, are to blame.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpc_kit.runs.why.events import EXCEPTION, LINE, SYSTEM, WARNING, Event, TaskEnd, Waiting, reports_end_of_inputs
from hpc_kit.runs.why.rules import Confidence, Rule, fill_template, rule_named
from hpc_kit.slurm.nodelist import expand
from hpc_kit.slurm.states import JobState, explain_reason, explain_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hpc_kit.runs.why.events import Evidence
    from hpc_kit.runs.why.reading import Line
    from hpc_kit.runs.why.slurm_tables import JobRow

DIRECT = 60
"""Weight from which a rule states a cause directly."""

CLEAR = 55
"""Weight from which a plain line proves a cause, if the job ended soon after it."""

LAST_LINES = 15

HANDLED_LINES = 3
"""Lines after an exception that show that a killed program did not die of it."""

_EQUAL_SIZES = {"ALLREDUCE", "ALLREDUCE_COALESCED", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
_EQUAL_SIZES |= {"ALLGATHER", "REDUCE_SCATTER"}
"""Collectives to which all ranks pass tensors of one size."""

_DEADLY = {"Killed", "Out Of Memory", "Segmentation fault", "Bus error", "Illegal instruction"}
"""Ends of a process that no Python exception causes."""

ORDER_GRACE = 60.0
"""Seconds before an ordered end in which errors are part of that end."""

STATE_ORDER = 1 << 20
ANALYSIS_ORDER = 1 << 30
"""Orders of events that come from states of Slurm, and from a comparison of the ranks."""

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
    host: str | None = None
    evidence: list[Proof] = field(default_factory=list)
    traceback: str | None = None
    fix: str = ""
    confidence: Confidence = "likely"
    also: list[str] = field(default_factory=list)
    """Ranks that failed because of it."""
    earlier: list[str] = field(default_factory=list)
    """Causes of earlier attempts."""
    exit_code: int | None = None
    """Exit code of the rank, as a shell shows it."""
    is_own_failure: bool = False
    """The job itself failed: no command of Slurm, of its user or of an administrator ended it."""


_STATE_RULES = {
    JobState.OUT_OF_MEMORY: "kernel-oom-kill",
    JobState.TIMEOUT: "time-limit",
    JobState.PREEMPTED: "preempted",
    JobState.NODE_FAIL: "node-failure",
    JobState.BOOT_FAIL: "node-failure",
    JobState.CANCELLED: "job-cancelled",
    JobState.DEADLINE: "job-cancelled",
    JobState.LAUNCH_FAILED: "launch-failure",
}
_REASON_CLASSES = (
    (r"Dependency", "dependency"),
    (r"QOS|Assoc|Max|AccountingPolicy|PartitionTimeLimit|PartitionNodeLimit|JobArrayTaskLimit", "limit-reached"),
    (r"launch fail|JobLaunchFailure", "launch-failure"),
    (r"JobHeld|held state|requeued held", "held"),
    (r"InvalidAccount|AccountNotAllowed", "invalid-account"),
    (r"InvalidQOS", "invalid-qos"),
    (r"BadConstraints|PartitionConfig", "invalid-request"),
    (r"ReqNodeNotAvail|Node|PartitionDown|PartitionInactive|unavailable", "nodes-unavailable"),
)


def decide(evidence: Evidence) -> Verdict:
    """Return the cause of the last attempt of a job."""
    return _Decision(evidence).verdict()


class _Decision:
    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.job = _main_row(evidence.rows)
        self.rows = [row for row in evidence.rows if self.job is None or _same_job(row, self.job)]
        self.events, self.ends = _last_attempt(evidence)
        if sum(event.rule.name == "mpi-many-rank-0" for event in self.events) < 2:
            self.events = [event for event in self.events if event.rule.name != "mpi-many-rank-0"]
        self.events += self._state_events()
        self.completed = self.job is not None and self.job.state is JobState.COMPLETED
        self.success = [line for _, line in evidence.success]
        self.failed = self._has_failed()

    def _has_failed(self) -> bool:
        """Return whether a state or the end of a task shows a failure, also behind a masked exit status."""
        ended = any(end.code or end.signal for end in self.ends)
        if not self.completed:
            return ended or any(row.state.failed for row in self.rows)
        steps = any(
            row.state.failed for row in self.rows if row.is_step and not row.job_id.endswith((".batch", ".extern"))
        )
        return (ended or steps) and not any(map(_is_strong_success, self.success))

    # ---- the order of questions

    def verdict(self) -> Verdict:
        """Return the answer, with the causes of earlier attempts."""
        verdict = self._answer()
        verdict.earlier = self._earlier_attempts()
        return verdict

    def _answer(self) -> Verdict:
        fatal = self._fatal()
        if self.job and self.completed and not fatal and not self.failed:
            return self._no_failure(self.job)
        culprit = self._first(fatal)
        ordered = self._first([event for event in self.events if event.rule.kind == "end"])
        if ordered and (culprit is None or self._comes_after(culprit, ordered)):
            culprit = ordered
        if culprit is None and not self.failed and self.job and self._waits_or_runs():
            return self._waiting_verdict(self.job)
        if culprit is None:
            culprit = self._weak_candidate()
        if culprit is not None:
            culprit = self._explain(culprit)
            return self._verdict_of(self._absent_rank(culprit) or culprit)
        return self._without_culprit()

    def _fatal(self) -> list[Event]:
        """Return the events that end a program: uncaught exceptions, messages of Slurm and the kernel."""
        return [
            event
            for event in self.events
            if event.rule.kind == "cause" and not self._follows_time_out(event) and self._is_fatal(event)
        ]

    def _follows_time_out(self, event: Event) -> bool:
        """Return whether NCCL's watchdog has aborted a rank, because a collective had timed out."""
        return event.rule.class_ == "abort" and any(each.rule.class_ == "collective-timeout" for each in self.events)

    def _is_fatal(self, event: Event) -> bool:
        if event.strength == SYSTEM:
            return not self.completed or event.rule.weight >= DIRECT
        if event.strength != EXCEPTION or (event.traceback and event.traceback.is_thread):
            return False
        if event.is_handled or self._has_gone_on(event):
            return False
        if self.failed:
            return True
        if event.traceback is not None and event.traceback.is_logged and (self.completed or self.success):
            return False
        return not self._succeeded_after(event)

    def _has_gone_on(self, event: Event) -> bool:
        """Return whether the process went on after an exception: it reports another one, or a signal ended it later."""
        ends = [end.signal for end in self.ends if event.rank in end.ranks]
        if event.lines_after > HANDLED_LINES and event.rule.weight < DIRECT and not _DEADLY.isdisjoint(ends):
            return True
        return event.rank is not None and any(
            other.order > event.order
            and (other.line.file, other.rank) == (event.line.file, event.rank)
            and other.strength == EXCEPTION
            and other.rule.kind == "cause"
            and not (other.traceback and other.traceback.is_thread)
            and not _explains(event, other)
            and (event.rule.weight < DIRECT or other.rule.weight >= DIRECT)
            for other in self.events
        )

    def _succeeded_after(self, event: Event) -> bool:
        return any(
            line.file == event.line.file and line.number > event.line.number and _is_strong_success(line)
            for line in self.success
        )

    def _weak_candidate(self) -> Event | None:
        """Return a cause without a clear end: a plain line, then an ended rank, then warnings and handled errors."""
        lines = [
            event
            for event in self.events
            if event.rule.kind == "cause"
            and event.strength == LINE
            and not event.is_handled
            and not self._follows_time_out(event)
        ]
        if not self.failed:
            lines = [event for event in lines if not self._succeeded_after(event)]
        if direct := self._first([event for event in lines if event.rule.weight >= DIRECT]):
            return direct
        if self.failed or not self.success or self._has_unfinished_victims():
            for events in (
                self._late(),
                lines,
                self._soft(),
                self._ended_ranks("killed", "interrupted"),
                self._reported_errors(),
                self._ended_ranks("exit-code"),
                self._victims(),
                self._symptoms(),
            ):
                if found := self._first(events):
                    return found
        return None

    def _has_unfinished_victims(self) -> bool:
        """Return whether a rank lost another one before it reported success itself."""
        done = {(line.file, line.rank) for line in self.success}
        victims = [event for event in self.events if event.rule.kind == "consequence" and event.rule.weight >= 20]
        return any(
            (event.strength == EXCEPTION or (event.strength == LINE and not event.lines_after))
            and (event.line.file, event.rank) not in done
            for event in victims
        )

    def _soft(self) -> list[Event]:
        """Return events that may be a cause, if the job failed: handled errors, warnings, errors of threads."""
        if not self.failed and not (self.ends or self.events):
            return []
        soft = [
            event
            for event in self.events
            if event.rule.kind == "soft" and event.strength > WARNING and not event.is_handled
        ]
        threads = [
            event
            for event in self.events
            if event.rule.kind == "cause"
            and event.strength == EXCEPTION
            and not event.is_handled
            and not self._has_gone_on(event)
        ]
        handled = [
            event for event in self.events if event.rule.kind in {"cause", "soft"} and event.rule.weight >= DIRECT
        ]
        return soft or threads or (handled if self.failed and not self._late() else [])

    def _symptoms(self) -> list[Event]:
        return [event for event in self.events if event.rule.kind == "symptom" and event.rule.class_ != "error-message"]

    def _victims(self) -> list[Event]:
        victims = [
            event
            for event in self.events
            if event.rule.kind == "consequence" and event.rule.weight > 5 and event.strength > WARNING
        ]
        return [event for event in victims if event.rule.class_ not in {"exit-code", "terminated"}] or victims

    def _reported_errors(self) -> list[Event]:
        """Return messages of the program about an error, if it ended soon after."""
        messages = [event for event in self.events if event.rule.class_ == "error-message" and not event.is_handled]
        return [event for event in messages if event.lines_after <= LAST_LINES and event.strength > WARNING]

    def _ended_ranks(self, *classes: str) -> list[Event]:
        """Return the ends of ranks that report nothing else, such as a kill."""
        reporting = {
            event.rank for event in self.events if event.rule.class_ in {"collective-timeout", "connection-lost"}
        }
        ends = [event for event in self.events if event.rule.class_ in classes]
        return [event for event in ends if event.rank is None or event.rank not in reporting]

    # ---- order

    def _first(self, events: Iterable[Event]) -> Event | None:
        """Return the first culprit: by the launcher's report, by kind of error, by time, by place."""
        remaining = list(events)
        explained = {id(each) for each in remaining for other in remaining if _explains(other, each)}
        remaining = [each for each in remaining if id(each) not in explained] or remaining
        return min(remaining, key=self._order, default=None)

    def _order(self, event: Event) -> tuple[float, ...]:
        place = self._place_in_report(event)
        logged = event.traceback is not None and event.traceback.is_logged
        bucket = 0 if event.rule.weight >= DIRECT else 1
        time = event.line.time if event.line.time is not None else 0.0
        same_line = -event.rule.weight / 1000
        return (
            place > 1e6,
            logged,
            bucket,
            place,
            time,
            event.order if event.traceback else event.line.number,
            same_line,
            event.order,
        )

    def _place_in_report(self, event: Event) -> float:
        """Return the position of a rank among the ranks that a launcher reported as failed; 0 if nothing is known."""
        ends = self._failed_ends()
        if not ends or event.rank is None or event.strength == SYSTEM:
            return 0
        return next((place for place, end in enumerate(ends) if event.rank in end.ranks), 1e7)

    def _failed_ends(self) -> list[TaskEnd]:
        """Return the ends of ranks that failed by themselves, in the order of time."""
        ends = [end for end in self.ends if end.has_failed and end.ranks]
        return sorted(ends, key=lambda end: (not end.is_recorded_first, end.time or 0))

    def _comes_after(self, culprit: Event, ordered: Event) -> bool:
        """Return whether an error is part of an end that Slurm ordered."""
        if _explains(culprit, ordered) or (culprit.rule.weight >= 85 and culprit.strength == SYSTEM):
            return False
        ends = [end.time for end in self._failed_ends() if culprit.rank in end.ranks]
        time = culprit.line.time if culprit.line.time is not None or not ends else ends[0]
        orders = [each.line.time for each in self.events if each.rule.kind == "end" and each.order != STATE_ORDER]
        ordered_at = next((each for each in orders if each is not None), ordered.line.time)
        if time is not None and ordered_at is not None:
            return time > ordered_at - ORDER_GRACE
        if culprit.line.file == ordered.line.file:
            return culprit.line.number > ordered.line.number
        return culprit.rule.weight < 40

    def _explain(self, culprit: Event) -> Event:
        """Return the event behind the culprit, such as the full disk behind a damaged file."""
        for _ in range(3):
            behind = [
                event
                for event in self.events
                if (_explains(event, culprit) or _states_cause_before(event, culprit))
                and event.rule.kind != "consequence"
                and not (event.is_handled and event.rule.kind == "cause")
                and (event.line.file != culprit.line.file or event.order < culprit.order or event.strength == SYSTEM)
            ]
            if not behind:
                break
            culprit = max(behind, key=lambda event: (event.rule.weight, -event.order))
        return culprit

    # ---- who waited for whom

    def _late(self) -> list[Event]:
        """Return the rank for which the remaining ranks waited in a collective, as an event."""
        waits = [
            event
            for event in self.events
            if event.rule.class_ in {"collective-timeout", "connection-lost"} and event.strength > WARNING
        ]
        if not waits:
            return []
        found = self._different_calls() or self._behind() or self._stuck() or self._silent_rank(waits)
        return [found] if found else []

    def _different_calls(self) -> Event | None:
        """Return the mismatch of the calls in which the ranks of one process group waited."""
        calls: dict[tuple[str | None, int], list[Waiting]] = {}
        for waiting in self._calls():
            if waiting.sequence is not None:
                calls.setdefault((waiting.group, waiting.sequence), []).append(waiting)
        for group in calls.values():
            operations = {each.operation for each in group}
            sizes = {each.elements for each in group}
            # The two ends of a message have different names.
            if len({each.rank for each in group}) < 2 or {"SEND", "RECV", "COALESCED"} & operations:
                continue
            if len(operations) > 1:
                return self._mismatch("collective-mismatch-order", group, lambda each: f"called {each.operation}")
            if len(sizes) > 1 and None not in sizes and operations <= _EQUAL_SIZES:
                return self._mismatch("collective-mismatch-shape", group, lambda each: f"{each.elements} elements")
        return self._different_functions()

    def _calls(self) -> list[Waiting]:
        """Return the calls of ranks, with the process group if there are several: each group counts its calls."""
        waiting = self.evidence.waiting
        if len({each.group for each in waiting} - {None}) > 1:
            return [each for each in waiting if each.group]
        return [each._replace(group=None) for each in waiting]

    def _different_functions(self) -> Event | None:
        """Return the ranks whose tracebacks end in different collectives, if every rank timed out in one."""
        group = [
            Waiting(event.rank, None, function, None, event.line)
            for event in self.events
            if event.rule.class_ == "collective-timeout" and event.traceback and event.rank is not None
            for function in [event.traceback.collective]
            if function
        ]
        if len({each.operation for each in group}) < 2 or {each.rank for each in group} != self.evidence.ranks:
            return None
        found = self._mismatch("collective-mismatch-order", group, lambda each: f"called {each.operation}")
        found.is_hint = True
        return found

    def _mismatch(self, rule: str, group: list[Waiting], describe: Callable[[Waiting], str]) -> Event:
        """Return the rank whose call differs from that of most ranks, as an event."""
        odd, other = _odd_one(group, describe)
        values = Counter(map(describe, group))
        rank = odd.rank if values[describe(odd)] < values[describe(other)] else None
        found = self._event(rule, odd.line, rank, one=describe(odd), rank2=str(other.rank), other=describe(other))
        found.groups["rank"] = str(odd.rank)
        return found

    def _stuck(self) -> Event | None:
        """Return a rank without a heartbeat that does not wait in a collective itself."""
        waiting = {each.rank for each in self.evidence.waiting}
        stuck = [event for event in self.events if event.rule.name == "nccl-heartbeat" and event.rank not in waiting]
        return stuck[0] if stuck and waiting and len({event.rank for event in stuck}) == 1 else None

    def _behind(self) -> Event | None:
        """Return the rank that has called fewer collectives than the remaining ranks."""
        counted = list(self.evidence.enqueued.items())
        groups = Counter(group for (group, _), _ in counted)
        largest = max(groups, key=lambda group: groups[group], default=None)
        enqueued = {rank: count for (group, rank), (count, _) in counted if group == largest}
        lines = {rank: line for (group, rank), (_, line) in counted if group == largest}
        if not enqueued:
            # The call in which each rank timed out is numbered, too.
            waiting = [each for each in self._calls() if each.sequence is not None]
            if len({(each.operation, each.group) for each in waiting}) != 1:
                return None  # of several groups, whose numbers cannot be compared
            enqueued = {each.rank: each.sequence or 0 for each in waiting}
            lines = {each.rank: each.line for each in waiting}
        if len(enqueued) < 2 or len(set(enqueued.values())) < 2:
            return None
        least = min(enqueued.values())
        late = sorted(rank for rank, count in enqueued.items() if count == least)
        if len(late) * 2 > len(enqueued):
            return None
        return self._event("barrier-timeout-rank", lines[late[0]], late[0])

    def _silent_rank(self, waits: list[Event]) -> Event | None:
        evidence = self.evidence
        timed_out = {
            event.rank for event in waits if event.rule.class_ == "collective-timeout" and event.rank is not None
        }
        reporting = {event.rank for event in waits if event.rank is not None}
        if timed_out and len(timed_out) < len(reporting) and reporting >= evidence.ranks:
            # The late rank came after the remaining ranks had given up: it met closed connections.
            reporting = timed_out
        reporting |= {rank for end in self.ends if end.is_victim for rank in end.ranks}
        known = evidence.ranks | (set(range(evidence.world)) if evidence.world <= 4096 else set())
        silent = sorted(known - reporting)
        if not reporting or not silent or len(silent) * 2 > len(known):
            return None
        by_rank = {key[1]: last for key, last in evidence.last.items()}
        rank = next((each for each in silent if each in by_rank), silent[0])
        if self._ended(rank):
            return None
        last = by_rank.get(rank)
        line = waits[0].line
        if last is not None:
            line = line._replace(file=last.file, number=last.number, text=last.text, body=last.text, rank=rank)
        if last is not None and reports_end_of_inputs(last.text):
            return self._event("uneven-inputs", line, rank)
        found = self._event("barrier-timeout-rank" if timed_out else "rank-vanished", line, rank)
        found.is_hint = last is None  # its log may not be among the files
        return found

    def _absent_rank(self, culprit: Event) -> Event | None:
        """Return the only rank that did not come to a rendezvous, if it wrote a log, as an event."""
        if culprit.rule.class_ != "rendezvous-timeout":
            return None
        came = {event.rank for event in self.events if event.rule.class_ == "rendezvous-timeout"}
        absent = sorted(self.evidence.ranks - came)
        last = {key[1]: line for key, line in self.evidence.last.items()}
        if len(absent) != 1 or len(came - {None}) < len(self.evidence.ranks) - 1 or absent[0] not in last:
            return None
        end = last[absent[0]]
        line = culprit.line._replace(file=end.file, number=end.number, text=end.text, body=end.text, rank=absent[0])
        return self._event("barrier-timeout-rank", line, absent[0])

    def _ended(self, rank: int) -> bool:
        lost = any(event.rank == rank and event.rule.class_ == "connection-lost" for event in self.events)
        return not lost and any(rank in end.ranks and end.has_failed for end in self.ends)

    def _event(self, rule: str, line: Line, rank: int | None, **groups: str) -> Event:
        values = {name: value for name, value in {"rank": str(rank), **groups}.items() if value}
        return Event(
            rule_named(rule),
            values,
            line,
            rank,
            self.evidence.hosts.get(rank) if rank is not None else None,
            0,
            ANALYSIS_ORDER,
            LINE,
        )

    # ---- states of Slurm

    def _state_events(self) -> list[Event]:
        """Return the states of the accounting as events."""
        found = []
        for row in self.rows:
            name = _STATE_RULES.get(row.state)
            if name is None or row.line is None:
                if row.signal == 53 and row.line is not None:
                    found.append(self._row_event("log-folder", row, row.line))
                continue
            if row.is_step and row.state is JobState.CANCELLED:
                continue
            found.append(self._row_event(name, row, row.line))
        return found

    def _row_event(self, name: str, row: JobRow, line: Line) -> Event:
        groups = {}
        if by := re.search(r"CANCELLED by (\S+)", row.raw_state):
            groups["user"] = f"user {by[1]}"
        hosts = expand(row.nodes) if row.nodes and "(" not in row.nodes else []
        host = hosts[0] if len(hosts) == 1 else None
        return Event(rule_named(name), groups, line, None, host, 0, STATE_ORDER, SYSTEM)

    def _waits_or_runs(self) -> bool:
        return self.job is not None and not self.job.state.finished and self.job.state is not JobState.UNKNOWN

    def _waiting_verdict(self, job: JobRow) -> Verdict:
        proof = [_proof(job.line)] if job.line else []
        if job.state is not JobState.PENDING:
            sentence = _uncapitalised(explain_state(job.state))
            return Verdict(
                f"did not fail: job {job.job_id} has not ended ({job.state}: {sentence})",
                str(job.state).lower(),
                evidence=proof,
                fix=f"follow it: hpc-kit logs {job.job_id} -f",
                confidence="certain",
            )
        reason = explain_reason(job.reason, job.job_id)
        class_ = next((name for pattern, name in _REASON_CLASSES if re.search(pattern, job.reason)), "pending")
        cause = (
            f"did not fail: job {job.job_id} waits in the queue ({job.reason or 'no reason yet'}): {reason.sentence}"
        )
        return Verdict(cause.rstrip("."), class_, evidence=proof, fix=reason.next_step, confidence="certain")

    # ---- answers

    def _verdict_of(self, event: Event) -> Verdict:
        rule = event.rule
        ranks = self._ranks_with(event)
        rank, host = self._place_of(event)
        values = dict(event.groups)
        if total := values.pop("total2", ""):
            values["total"] = total
        values["who"] = self._who(rank, host, ranks)
        if host:
            values.setdefault("host", host)
        if rule.name == "python-exception":
            values["exception"] = values.get("exception", "").rpartition(".")[2] or values.get(
                "exception", "an exception"
            )
        cause = fill_template(rule.cause, values)
        if event.traceback and (frame := event.traceback.own_frame):
            place = f"{frame[0].rpartition('/')[2]}:{frame[1]}"
            cause += f" ({place}{', in ' + frame[2] if frame[2] and frame[2] != '<module>' else ''})"
        is_victim = rule.class_ in {"connection-lost", "collective-timeout"}
        if rule.class_ == "exit-code":
            cause = "unknown: " + cause
        if self.completed:
            cause += "; its script hid the exit status, so Slurm booked COMPLETED"
        elif self._waits_or_runs():
            cause += "; the job has not ended yet"
        verdict = Verdict(
            cause,
            UNKNOWN if rule.class_ == "exit-code" else rule.class_,
            None if is_victim or (rule.scope == "job" and not rule.class_.startswith("collective-")) else rank,
            None if is_victim or rule.scope == "job" else host,
            self._proofs(event),
            self._traceback(event),
            fill_template(rule.fix, values | {"rank": values.get("rank", "")}),
            self._confidence(event),
            self._also(event, rank),
            exit_code=next((end.exit_code for end in self._failed_ends() if rank in end.ranks), None),
            is_own_failure=rule.kind != "end",
        )
        if rule.class_ == "killed":
            self._use_memory_figures(verdict)
        return verdict

    def _use_memory_figures(self, verdict: Verdict) -> None:
        for row in self.rows:
            used, limit = _bytes(row.max_rss), _bytes(row.req_mem)
            if used and limit and used > 0.9 * limit and row.line:
                verdict.cause = (
                    verdict.cause.partition(";")[0]
                    + f"; it had used {row.max_rss} of {row.req_mem}: out of host memory"
                )
                verdict.class_ = "host-memory"
                verdict.fix = rule_named("kernel-oom-kill").fix
                verdict.evidence.append(_proof(row.line))
                return

    def _place_of(self, event: Event) -> tuple[int | None, str | None]:
        """Return rank and host of an event, also by the launcher's report."""
        hosts = self.evidence.hosts
        rank, host = event.rank, event.host
        if rank is None and event.rule.scope == "rank":
            # A library prints the message, and the exception of the rank repeats it.
            ranks = {each.rank for each in self.events if each.rule is event.rule}
            rank = next(iter(ranks - {None})) if len(ranks - {None}) == 1 else None
        if rank is None and event.rule.scope == "rank" and event.rule.kind != "end":
            matching = [
                end for end in self._failed_ends() if host is None or end.host is None or _same_host(host, end.host)
            ]
            if matching:
                rank, host = matching[0].ranks[0], matching[0].host or host
        if host is None and rank is not None:
            host = hosts.get(rank)
        if host is None and event.rule.scope != "job":
            named = {end.host for end in self.ends if end.host} | set(hosts.values())
            if rank is None and len(named) == 1:
                host = next(iter(named))
        return rank, host

    def _ranks_with(self, event: Event) -> list[int]:
        """Return the ranks that failed in the same way."""
        kind = event.groups.get("exception")
        same = [
            each for each in self.events if each.rule is event.rule and each.strength >= LINE and not each.is_handled
        ]
        return sorted({each.rank for each in same if each.rank is not None and each.groups.get("exception") == kind})

    def _who(self, rank: int | None, host: str | None, ranks: list[int]) -> str:
        known = self.evidence.ranks
        if len(ranks) > 1 and len(ranks) >= len(known) > 1:
            return "every rank"
        if rank is not None:
            return f"rank {rank} on {host}" if host else f"rank {rank}"
        return f"a process on {host}" if host else "the program"

    def _proofs(self, event: Event) -> list[Proof]:
        lines = [event.line]
        lines += [
            each.line
            for each in self.events
            if each.rule.class_ == event.rule.class_
            and each.rule.kind == event.rule.kind
            and each.strength >= LINE
            and (event.rule.class_ != "exit-code" or each.rank == event.rank)
        ]
        ends = [end for end in self.ends if end.has_failed]
        lines += [end.line for end in ends if event.rank is None or event.rank in end.ranks][:2]
        lines += [row.line for row in self.rows if row.line and not row.is_step and row.state.finished]
        return [_proof(line) for line in {(line.file, line.number): line for line in lines}.values()][:5]

    def _traceback(self, event: Event) -> str | None:
        if event.traceback:
            return event.traceback.text
        related = [
            each for each in self.events if each.traceback and each.rule.kind != "consequence" and not each.is_handled
        ]
        return self._own_traceback(related)

    def _own_traceback(self, events: list[Event]) -> str | None:
        first = self._first(events)
        return first.traceback.text if first and first.traceback else None

    def _also(self, event: Event, rank: int | None) -> list[str]:
        victims = {
            each.rank
            for each in self.events
            if each.rule.kind == "consequence" and each.rule.weight > 5 and each.rank is not None
        }
        victims |= {each for end in self.ends if end.is_victim for each in end.ranks}
        victims -= {rank}
        if not victims or event.rule.kind == "consequence":
            return []
        classes = Counter(
            each.rule.class_
            for each in self.events
            if each.rule.kind == "consequence" and each.rule.class_ in {"connection-lost", "collective-timeout"}
        )
        how = {"connection-lost": "lost connection", "collective-timeout": "collective timed out"}
        kind = f" ({how[classes.most_common(1)[0][0]]})" if classes else ""
        return [f"{format_ranks(sorted(victims))} fell with it{kind}"]

    def _confidence(self, event: Event) -> Confidence:
        rule = event.rule
        if rule.confidence == "likely" or event.is_hint or event.is_handled or event.strength == WARNING:
            return "likely"
        if rule.kind in {"consequence", "symptom"}:
            return "likely"
        if event.strength in {SYSTEM, EXCEPTION}:
            return "likely" if self._is_contested(event) or self._may_be_handled(event) else "certain"
        if event.order == ANALYSIS_ORDER:
            return self._confidence_of_analysis(event)
        if rule.weight < CLEAR:
            return "likely"
        if rule.kind == "soft" and not self.failed and event.lines_after:
            return "likely"
        ended = (
            self.failed
            or rule.scope == "job"
            or (not event.progress and not self.success and event.lines_after <= LAST_LINES)
        )
        return "certain" if ended else "likely"

    def _confidence_of_analysis(self, event: Event) -> Confidence:
        waiting = {each.rank for each in self.events if each.rule.class_ in {"collective-timeout", "connection-lost"}}
        certain = event.rule.name.startswith("collective-mismatch") or (
            event.rule.name == "barrier-timeout-rank" and len(waiting - {None}) >= 2
        )
        return "certain" if certain else "likely"

    def _is_contested(self, event: Event) -> bool:
        """Return whether another rank failed otherwise, and nothing shows which was first."""
        if event.rule.kind == "end":
            return False
        others = [
            each
            for each in self._fatal()
            if each.rule.class_ != event.rule.class_ and not _explains(event, each) and not _explains(each, event)
        ]
        others = [
            each
            for each in others
            if each.rank != event.rank and (each.rule.weight >= DIRECT) == (event.rule.weight >= DIRECT)
        ]
        if self._place_in_report(event) < 1e6 and self.ends:
            return False
        return any(each.line.time is None or event.line.time is None for each in others)

    def _may_be_handled(self, event: Event) -> bool:
        """Return whether the program may have gone on after an exception: a logger printed it, or another followed."""
        traceback = event.traceback
        if traceback is None or event.rule.weight >= DIRECT:
            return False
        if traceback.is_logged and not self.failed and event.lines_after > LAST_LINES:
            return True
        return any(
            each.traceback
            and each.rule.kind == "cause"
            and each.order > event.order
            and (each.line.file, each.rank) == (event.line.file, event.rank)
            and not each.traceback.is_thread
            and each.traceback.exceptions[-1:] != traceback.exceptions[-1:]
            and (each.rule, each.groups) != (event.rule, event.groups)
            for each in self.events
        )

    def _no_failure(self, job: JobRow) -> Verdict:
        if (nan := self._first(self._symptoms())) and self._is_last(nan):
            return self._verdict_of(nan)
        noise = [event for event in self.events if event.rule.kind not in {"symptom", "end"}][:1]
        more = (
            f"; {noise[0].line.file}:{noise[0].line.number} looks like an error, but the job went on" if noise else ""
        )
        proof = [_proof(job.line)] if job.line else []
        return Verdict(
            f"did not fail: job {job.job_id} ended with exit code 0{more}",
            NO_FAILURE,
            evidence=proof,
            fix="nothing to do",
            confidence="certain",
        )

    def _is_last(self, event: Event) -> bool:
        return any(
            last.file == event.line.file and re.search(r"(?i)\bnan\b|\binf\b", last.text)
            for last in self.evidence.last.values()
        )

    def _without_culprit(self) -> Verdict:
        """Return the answer if no event is a cause."""
        if self.success and not self.failed:
            line = self.success[-1]
            return Verdict(
                f"did not fail: the last lines report success ({line.body.strip()[:80]})",
                NO_FAILURE,
                evidence=[_proof(line)],
                fix="nothing to do",
                confidence="certain",
            )
        tracebacks = [event for event in self.events if event.traceback]
        text = self._own_traceback([event for event in tracebacks if event.rule.kind != "consequence"] or tracebacks)
        ends = [end for end in self.ends if end.has_failed]
        rank = ends[0].ranks[0] if ends and ends[0].ranks else None
        host = ends[0].host if ends else None
        proofs = [_proof(end.line) for end in ends[:2]] + [_proof(row.line) for row in self.rows[:2] if row.line]
        return Verdict(
            f"unknown: {self._describe_nothing()}", UNKNOWN, rank, host, proofs, text, self._advice(), "likely"
        )

    def _describe_nothing(self) -> str:
        if self.evidence.unreadable:
            name, reason = self.evidence.unreadable[0]
            return f"{name} cannot be read as a log ({reason})"
        steps = [row for row in self.rows if row.is_step and row.state.failed]
        if self.job is not None and self.completed and steps:
            step = f"step {steps[0].job_id} is {steps[0].state}"
            return f"{step}, although job {self.job.job_id} is COMPLETED; no line shows why"
        if self.job is not None and self.job.state.failed:
            code = f" with exit code {self.job.exit_code}" if self.job.exit_code else ""
            return f"job {self.job.job_id} is {self.job.state}{code}, and no line shows why"
        if not self.evidence.lines or not self.evidence.last:
            return "the logs are empty"
        last = max(self.evidence.last.values(), key=lambda each: each.number, default=None)
        shown = f", which ends with: {last.text.strip()[:80]}" if last else ""
        return f"no line shows a failure or an end{shown}"

    def _advice(self) -> str:
        if self.job is None:
            columns = "JobID,State,ExitCode,MaxRSS,ReqMem,NodeList"
            return f"add the logs of all ranks and the output of sacct -j ID -P -o {columns}"
        return "add the logs of all ranks; run with PYTHONUNBUFFERED=1 so that no output is lost"

    def _earlier_attempts(self) -> list[str]:
        if self.evidence.attempts < 2:
            return []
        found = []
        for attempt in range(self.evidence.attempts - 1):
            events = [
                event
                for event in self.evidence.events
                if event.attempt == attempt and event.rule.kind in {"cause", "end"} and event.strength >= LINE
            ]
            causes = [event for event in events if event.rule.kind == "cause"]
            if first := self._first(causes or events):
                values = {**first.groups, "who": self._who(*self._place_of(first), [])}
                found.append(f"attempt {attempt + 1}: {fill_template(first.rule.cause, values)}")
        return found


def _main_row(rows: list[JobRow]) -> JobRow | None:
    """Return the last job among rows of jobs and steps; of a finished job, the row that is finished."""
    jobs = [row for row in rows if not row.is_step] or rows
    return jobs[-1] if jobs else None


def _same_job(row: JobRow, job: JobRow) -> bool:
    return row.job_id.partition(".")[0] == job.job_id.partition(".")[0]


def _last_attempt(evidence: Evidence) -> tuple[list[Event], list[TaskEnd]]:
    """Return what belongs to the last attempt of each file. In a file without marks, only a rank's last exception."""
    requeued = [event for event in evidence.events if event.line.file in evidence.requeued]
    later = [event for event in evidence.events if event.line.file not in evidence.requeued]
    if later or any(end.line.file not in evidence.requeued for end in evidence.ends):
        requeued = [event for event in requeued if event.rule.kind == "end"]
    latest: dict[str, int] = {}
    for event in evidence.events:
        latest[event.line.file] = max(latest.get(event.line.file, 0), event.attempt)
    events = [event for event in (*requeued, *later) if event.attempt == latest[event.line.file]]
    if evidence.attempts > 1:
        marked = {name for name, attempt in latest.items() if attempt}
        last_of = {
            (event.line.file, event.rank): event
            for event in events
            if event.traceback and event.line.file not in marked
        }
        events = [
            event
            for event in events
            if event.line.file in marked or not event.traceback or last_of[event.line.file, event.rank] is event
        ]
    final = max((end.attempt for end in evidence.ends), default=0)
    return events, [
        end for end in evidence.ends if end.attempt == final or end.attempt == latest.get(end.line.file, end.attempt)
    ]


def _explains(event: Event, other: Event) -> bool:
    return (
        event is not other
        and other.rule.class_ in event.rule.explains
        and other.rule.class_ != event.rule.class_
        and not (other.rule.kind == "cause" and _explains_rule(other.rule, event.rule))
    )


def _states_cause_before(event: Event, other: Event) -> bool:
    """Return whether a line shortly before a generic error states its cause directly."""
    return (
        event.rule.kind == "cause"
        and event.strength == LINE
        and event.rule.weight >= 75
        and other.rule.weight < DIRECT
        and event.line.file == other.line.file
        and 0 < other.line.number - event.line.number <= 60
    )


def _explains_rule(rule: Rule, other: Rule) -> bool:
    return other.class_ in rule.explains


def _odd_one(group: list[Waiting], value: Callable[[Waiting], str | None]) -> tuple[Waiting, Waiting]:
    """Return a rank with the rarest value, and one with the most common."""
    counts = Counter(value(each) for each in group)
    odd = min(group, key=lambda each: (counts[value(each)], -each.rank))
    other = next(each for each in sorted(group, key=lambda each: -counts[value(each)]) if value(each) != value(odd))
    return odd, other


def _is_strong_success(line: Line) -> bool:
    """Return whether the program itself reports success: a batch script may print "job finished" whatever happened."""
    return re.search(r"(?i)train|evaluation|fine-?tuning|successfully|max_|epochs|steps", line.body) is not None


def _same_host(one: str, other: str) -> bool:
    return one.partition(".")[0] == other.partition(".")[0]


def _uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _proof(line: Line) -> Proof:
    return Proof(line.file, line.number, line.text.strip()[:500])


def _bytes(text: str) -> float:
    found = re.match(r"([\d.]+)([KMGT]?)", text)
    return float(found[1]) * 1024 ** " KMGT".index(found[2] or " ") if found else 0.0


def format_ranks(ranks: list[int]) -> str:
    """Return `rank 3` or `ranks 0-4, 6`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return "ranks " + ", ".join(
        str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" if len(part) > 2 else f"{part[0]}, {part[1]}"
        for part in parts
    )
