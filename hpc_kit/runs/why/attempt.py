"""The last attempt of a job: its events, the ends of its ranks, its states, and the order in which they happened."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from hpc_kit.runs.why.evidence import (
    EXCEPTION,
    FATAL,
    KERNEL,
    LINE,
    LINES_OF_END,
    LONE_TASKS,
    NOT_WRITTEN,
    SYSTEM,
    VICTIMS,
    WARNING,
    Event,
    TaskEnd,
    script_options,
)
from hpc_kit.runs.why.rules import DIRECT, rule_named
from hpc_kit.runs.why.slurm_tables import expand_nodes
from hpc_kit.slurm.partitions import parse_limit
from hpc_kit.slurm.sizes import size_of_job
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpc_kit.runs.why.evidence import Evidence, Strength
    from hpc_kit.runs.why.log_reader import Line
    from hpc_kit.runs.why.rules import Kind
    from hpc_kit.runs.why.slurm_tables import JobRow

HANDLED_LINES = 3
"""Lines after an exception that show that a killed program did not die of it."""

LINES_OF_KILL = 100
"""Lines of the kernel's message about a process that it killed."""

MAX_HOURS_BEFORE = 15.0
"""Hours by which a message of the kernel may be older than the job: clocks may differ by a time zone."""

GOES_ON_AFTER = 60.0
"""Seconds after an error in which another file may still contain progress that was under way."""

YEAR = 366 * 86400.0

_JOB_OF_KERNEL = re.compile(r"/job_(\d+)\b")
"""The job in the path of a control group."""

_BUS = re.compile(r"NVRM: Xid \((?:PCI:)?([\da-fA-F]+):([\da-fA-F]+):([\da-fA-F]+)\b")
"""The bus address of a GPU, without its function, which is 0."""

_KILL_OUTSIDE = re.compile(r"\boom-kill:.*\btask_memcg=(?!\S*/(?:job|step|task)_).*\bpid=(\d+)")
"""The kernel killed a process whose control group is not one of Slurm's."""

_SIGTERM_OPTION = re.compile(r"(?i)(?:[BR]+:)?(?:(?:SIG)?TERM|15)(?:@(\d+))?")
"""A value of --signal that asks for SIGTERM, and its seconds before the time limit."""

NEAR_LIMIT = 600
"""Seconds before the time limit in which a SIGTERM may be that of --signal, or of Slurm at the limit."""

DEADLY = {"Killed", "Out Of Memory", "Segmentation fault", "Bus error", "Illegal instruction"}
"""Ends of a process that no Python exception causes."""

STATE_ORDER = 1 << 20
"""Order of events that come from states of Slurm."""

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

_SIGNAL_RULES = {53: "log-folder", 9: "killed"}
"""Rules of the signals in the exit codes of failed jobs. Slurm uses 53 if it could not open the log."""

_DEFAULT_LOG = re.compile(r"(?:^|/)slurm-(\d{4,})\.out$")

_LINES_OF_SCRIPT = 3
"""Lines below srun's report of the end that the script prints. Further ones are those of a second try."""

_PIPE = re.compile(r"(?m)^[^#\n]*[^|\n]\|&? *(?:tee|ts|sed|grep|awk|cat|stdbuf)\b")
"""The exit status of a pipe is that of its last command."""

_CODE_RULES = {124: "command-timeout"}
"""Rules of exit codes of failed jobs that one program gives."""


class Attempt:
    """The last attempt of a job, as the evidence shows it."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.job = next(reversed(rows_of_job(evidence)), None)
        self.rows = _last_runs([row for row in evidence.rows if self.job is None or _same_job(row, self.job)])
        self.completed = self.job is not None and self.job.state is JobState.COMPLETED
        self.events, self.ends = _last_attempt(evidence, has_completed=self.completed)
        self._drop_foreign_kernel_lines()
        self._doubt_kills_outside()
        if evidence.has_agents or evidence.has_torchrun or evidence.nodes.agents:
            self._separate_agents()
        self._assign_processes()
        # One rank 0 is normal. Several mean that each process is an MPI world of its own.
        if len(single := self.named("mpi-many-rank-0")) == 1:
            self.events.remove(single[0])
        self._count_lone_tasks()
        self.events += self._state_events()
        self._find_outside_signals()
        self._find_survived()
        self.success = [line for _, line in evidence.success]
        self.failed = self._has_failed()

    def of_class(self, *classes: str) -> list[Event]:
        """Return the events of some classes of failures."""
        return [event for event in self.events if event.rule.class_ in classes]

    def of_kind(self, *kinds: Kind, above: Strength = 0) -> list[Event]:
        """Return the events of some kinds of rules that are stronger than `above`."""
        return [event for event in self.events if event.rule.kind in kinds and event.strength > above]

    def named(self, rule: str) -> list[Event]:
        """Return the events of one rule."""
        return [event for event in self.events if event.rule.name == rule]

    def _separate_agents(self) -> None:
        """Remove the ranks of tasks that are agents of torchrun: it reported ranks, or a signal ended the task."""
        # srun prints task numbers: with torchrun, these are one number per node, and no ranks.
        tasks = [end for end in self.ends if end.reporter == "srun"]
        is_node = max(self.evidence.ranks, default=0) > max((task for end in tasks for task in end.ranks), default=0)
        is_node |= bool(self.evidence.nodes.agents)
        agents = [end for end in tasks if self.evidence.has_agents or is_node or end.signal is not None]
        if is_node:
            for end in agents:
                for task in end.ranks:
                    self.evidence.hosts.pop(task, None)
        lines = {end.line for end in agents}
        self.ends = [end._replace(ranks=()) if end.line in lines else end for end in self.ends]
        for event in self.events:
            if event.line in lines or (self.evidence.has_agents and "/task_" in event.line.body):
                event.rank = None

    def _drop_foreign_kernel_lines(self) -> None:
        """Drop messages of the kernel about other jobs and earlier days; those of an earlier hour are only hints."""
        known = self.evidence.job_ids | {_base_id(row) for row in self.evidence.rows}
        foreign = [
            event.line
            for event in self.events
            if known and (found := _JOB_OF_KERNEL.search(event.line.body)) and found[1] not in known
        ]
        kept = []
        for event in self.events:
            hours = self._hours_before(event.line) if KERNEL.search(event.line.text) else 0.0
            is_foreign = event.rule.class_ == "host-memory" and any(
                line.file == event.line.file and abs(line.number - event.line.number) < LINES_OF_KILL
                for line in foreign
            )
            if not is_foreign and hours < MAX_HOURS_BEFORE:
                event.is_hint |= hours > 1
                kept.append(event)
        self.events = kept

    def _doubt_kills_outside(self) -> None:
        """Let messages of the kernel about a process outside of Slurm, which is no known rank, be hints only."""
        outside = [
            (event.line, found[1])
            for event in self.events
            if (found := _KILL_OUTSIDE.search(event.line.body)) and int(found[1]) not in self.evidence.processes
        ]
        for event in self.events:
            event.is_hint |= event.rule.class_ == "host-memory" and any(
                line.file == event.line.file
                and abs(line.number - event.line.number) < LINES_OF_KILL
                and event.groups.get("pid", pid) == pid
                and KERNEL.search(event.line.text)
                for line, pid in outside
            )

    def _hours_before(self, line: Line) -> float:
        """Return the hours by which a line is older than the logs of the job. Their last lines may have no time."""
        if line.time is None or self.evidence.began is None:
            return 0.0
        # The log of the kernel contains no year.
        seconds = (self.evidence.began - line.time) % YEAR
        return seconds / 3600 if seconds < YEAR / 2 else 0.0

    def _find_survived(self) -> None:
        """Mark the errors after which another file shows progress of the rank, or of all ranks, by its times."""
        ends = [(rank, last) for (_, rank), last in self.evidence.last.items() if last.is_progress]
        for event in self.events:
            time = event.line.time
            if time is None or event.rule.kind == "end" or KERNEL.search(event.line.text) or event.rule.class_ in FATAL:
                continue
            own = [last for rank, last in ends if event.rank in {None, rank} and last.file != event.line.file]
            event.is_survived |= bool(own) and all((last.time or 0) > time + GOES_ON_AFTER for last in own)

    def has_no_order(self, event: Event) -> bool:
        """Return whether only other files contain progress, so that it may have come after a line."""
        others = self.evidence.with_progress
        is_plain = event.strength in {LINE, WARNING} and event.rule.kind != "end"
        return is_plain and bool(others) and event.line.file not in others

    def _find_outside_signals(self) -> None:
        """Add an event for each SIGTERM that ended a rank before Slurm or a launcher had a reason to send one."""
        if self.of_kind("end"):
            return
        lost = {event.rank for event in self.of_class(*VICTIMS)}
        stops = [event.line for event in self.named("step-cancelled") if "tasks" not in event.groups]
        # A rank that lost another one may end first. torchrun lists the first failure first.
        failed = [
            end
            for end in self.ends
            if end.reporter == "torchrun" or (end.has_failed and not lost.issuperset(end.ranks or [None]))
        ]
        for index, end in enumerate(self.ends):
            # A rank that fails by itself may end the remaining ones, and srun may report its end later.
            rivals = [each for each in failed if each is not end and each.line.file == end.line.file]
            if end.reporter == "torchrun":
                rivals = [each for each in rivals if failed.index(each) < failed.index(end)]
            elif any(_comes_before(line, end.line) for line in stops):
                continue
            others = lost.union(*(each.ranks for each in self.ends if not each.is_terminated)) - {None, *end.ranks}
            is_alone = others or any(_comes_before(end.line, line) for line in stops) or end.reporter != "srun"
            if not end.is_terminated or not is_alone or rivals:
                continue
            if (option := self._signal_of_limit()) is not None:
                rule = rule_named("signal-before-limit")
                groups = {"option": option} if option else {}
                self.events.append(Event(rule, groups, end.line, None, None, end.attempt, len(self.events), SYSTEM))
            else:
                self.ends[index] = end._replace(is_from_outside=True)
                rank = end.ranks[0] if end.ranks else None
                rule = rule_named("terminated-from-outside")
                self.events.append(Event(rule, {}, end.line, rank, end.host, end.attempt, len(self.events), SYSTEM))

    def _signal_of_limit(self) -> str | None:
        """Return the --signal by which Slurm itself may have sent SIGTERM; empty if only the time shows it."""
        options = [script_options(lines).get("signal", "") for lines in self.evidence.scripts.values()]
        found = [match for text in options if (match := _SIGTERM_OPTION.fullmatch(text))]
        option = found[0][0] if found else ""
        lead = int(found[0][1] or 0) if found else 0
        for row in self.rows:
            limit, elapsed = parse_limit(row.time_limit), parse_limit(row.elapsed)
            if limit and elapsed is not None:
                return option if limit - elapsed <= max(NEAR_LIMIT, lead + 60) else None
        return option or None

    def _assign_processes(self) -> None:
        """Give the messages of the kernel the rank of the process or GPU that they name, whatever rank printed them."""
        for event in self.events:
            if event.rule.scope == "node" and event.rank == event.line.rank and KERNEL.search(event.line.text):
                event.host = event.host or self.evidence.hosts.get(event.rank if event.rank is not None else -1)
                bus = int(f"{''.join(found.groups())}0", 16) if (found := _BUS.search(event.line.body)) else -1
                event.rank = self.evidence.nodes.gpus.get((event.host, bus))
            known = self.evidence.processes.get(int(event.groups.get("pid", -1)), set())
            places = {(rank, host) for rank, host in known if None in {host, event.host} or host == event.host}
            if event.rule.class_ == "host-memory" and len(places) == 1:
                event.rank, host = next(iter(places))
                event.host = event.host or host

    def _count_lone_tasks(self) -> None:
        """Keep one event about tasks that each ran alone, if most tasks of a step did. A step of one task may do so."""
        lone = self.named(LONE_TASKS)
        tasks = {event.groups["task"]: event for event in reversed(lone) if event.groups["task"]}
        is_step = len(tasks) > 1 and self.evidence.world <= 1 and len(tasks) * 2 > len(self.evidence.ranks)
        count, kept = len(tasks), list(tasks.values())[-1:] if is_step else []
        if not tasks and lone and self.evidence.world <= 1:
            # Without labels, the script shows how many tasks may have printed the line.
            count = Counter(re.sub(r"\d+", "", event.line.body) for event in lone).most_common(1)[0][1]
            sizes = [size_of_job(script_options(lines)).ntasks for lines in self.evidence.scripts.values()]
            kept = lone[:1] if count > 1 and sizes == [count] else []
        for event in kept:
            event.rank, event.groups["detail"] = None, f"{count} tasks of a step"
        self.events = [event for event in self.events if event in kept or event.rule.name != LONE_TASKS]

    def _has_failed(self) -> bool:
        """Return whether a state or the end of a task shows a failure, also behind a masked exit status."""
        if not self.completed:
            return any(end.code or end.signal for end in self.ends) or any(row.state.failed for row in self.rows)
        steps = self._steps()
        # If the script started its program again, its last step decides.
        running = self.evidence.running
        steps = steps[-1:] if any(running.values()) else steps
        ended = any(end.has_failed and end.attempt >= running.get(end.line.file, 0) for end in self.ends)
        # The script itself ends helpers with SIGTERM, such as a monitor of the GPUs.
        failed = any(row.state.failed and row.state is not JobState.CANCELLED and row.exit_code != 143 for row in steps)
        return (ended or failed) and not any(map(self.reports_success, self.success))

    def _steps(self) -> list[JobRow]:
        """Return the steps that the script started."""
        return [row for row in self.rows if row.is_step and not row.job_id.endswith((".batch", ".extern"))]

    @property
    def has_good_last_step(self) -> bool:
        """Slurm lists several steps, the last of which has not failed."""
        steps = self._steps()
        return len(steps) > 1 and not steps[-1].state.failed

    def lost_rank_at_end(self, event: Event) -> bool:
        """Return whether a launcher reported the kill of a rank at an event, or below it, and no step or success."""
        killed = [end.line for end in self.ends if end.has_failed and (end.signal or (end.code or 0) < 0)]
        return (
            not event.progress
            and any(line.file == event.line.file and line.number >= event.line.number for line in killed)
            and not any(line.file == event.line.file and line.number < event.line.number for line in self.success)
        )

    def has_gone_on(self, event: Event) -> bool:
        """Return whether the process went on after an exception: it reports another one, or a signal ended it later."""
        # An exception does not end a process by SIGKILL or a segmentation fault.
        ends = [end.signal for end in self.ends if event.rank in end.ranks]
        if event.lines_after > HANDLED_LINES and event.rule.weight < DIRECT and not DEADLY.isdisjoint(ends):
            return True
        return event.rank is not None and any(
            not explains(event, other) and (event.rule.weight < DIRECT or other.rule.weight >= DIRECT)
            for other in self.later_exceptions(event)
        )

    def later_exceptions(self, event: Event) -> list[Event]:
        """Return the exceptions that end the same process, as far as the lines show, after an event."""
        return [
            other
            for other in self.of_kind("cause")
            if other.order > event.order
            and (other.line.file, other.rank) == (event.line.file, event.rank)
            and other.traceback
            and not other.traceback.is_thread
        ]

    def was_handled_before(self, event: Event) -> bool:
        """Return whether the program went on after an equal exception, and did not end by itself after this one."""
        return bool(event.progress or self.of_kind("end")) and any(
            other.is_handled
            and (other.line.file, other.rank, other.rule) == (event.line.file, event.rank, event.rule)
            and other.traceback is not None
            and event.traceback is not None
            and other.traceback.own_frame == event.traceback.own_frame
            for other in self.events
        )

    def succeeded_after(self, event: Event) -> bool:
        """Return whether the program reports success after an event."""
        return any(
            line.file == event.line.file and line.number > event.line.number and self.reports_success(line)
            for line in self.success
        )

    def reports_success(self, line: Line) -> bool:
        """Return whether the program itself reports success: a batch script may do so whatever happened."""
        if not re.search(r"(?i)train|evaluation|fine-?tuning|successfully|max_|epochs|steps", line.body):
            return False
        failed = [end for end in self.ends if end.reporter == "srun" and end.has_failed and end.line.file == line.file]
        failed = [end for end in failed if 0 < line.number - end.line.number <= LINES_OF_END]
        before = {rank for end in failed for rank in end.ranks}
        is_near = line.rank is None and any(line.number - end.line.number <= _LINES_OF_SCRIPT for end in failed)
        if is_near and self.evidence.ranks and before >= self.evidence.ranks:
            return False  # all ranks had failed
        # A number in the line mostly comes from a variable: compare the words before it with the script.
        words = re.escape(re.split(r"\d", line.body.strip())[0].strip() or line.body)
        printed = re.compile(rf"(?<!&& )\b(?:echo|printf)\b.*{words}")
        scripts = ["\n".join(lines) for lines in self.evidence.scripts.values() if any(map(printed.search, lines))]
        # With `set -e`, the script reaches its own line of success only after success, unless a pipe hid a failure.
        return not scripts or any(
            re.search(r"\bset -\w*e", text) and ("pipefail" in text or not _PIPE.search(text)) for text in scripts
        )

    def first(self, events: Iterable[Event]) -> Event | None:
        """Return the first culprit: by the launcher's report, by kind of error, by time, by place."""
        remaining = list(events)
        explained = {id(each) for each in remaining for other in remaining if explains(other, each)}
        remaining = [each for each in remaining if id(each) not in explained] or remaining
        found = min(remaining, key=self._order, default=None)
        if found is None or found.rank is not None or found.strength != LINE:
            return found
        # If several files contain the same message, prefer that of a rank to that of a command run by hand.
        same = [each for each in remaining if each.rule is found.rule and each.line.file != found.line.file]
        return min((each for each in same if each.rank is not None), key=self._order, default=found)

    def _order(self, event: Event) -> tuple[float, ...]:
        place = self.place_in_report(event)
        logged = event.traceback is not None and event.traceback.is_logged
        bucket = 0 if event.rule.weight >= DIRECT else 1
        time = event.line.time if event.line.time is not None else 0.0
        return (
            place == math.inf,
            logged,
            event.is_hint,
            bucket,
            place,
            time,
            event.order,
        )

    def place_in_report(self, event: Event) -> float:
        """Return the position of a rank among the ranks that a launcher reported as failed.

        0: nothing is known. Infinite: the launcher reported other ranks only.
        """
        ends = self.failed_ends()
        if not ends or event.rank is None or event.strength == SYSTEM:
            return 0
        return next((place for place, end in enumerate(ends) if event.rank in end.ranks), math.inf)

    def was_killed_late(self, line: Line) -> bool:
        """Return whether a kill was reported after the end of a rank that had waited in vain: srun killed the rest."""
        waited = {event.rank for event in self.of_class("collective-timeout")}
        return any(_comes_before(end.line, line) and end.ranks and waited.issuperset(end.ranks) for end in self.ends)

    def failed_ends(self) -> list[TaskEnd]:
        """Return the ends of ranks that failed by themselves, in the order of time."""
        ends = [end for end in self.ends if end.has_failed and end.ranks]
        return sorted(ends, key=lambda end: (not end.is_recorded_first, end.time or 0))

    def waits_or_runs(self) -> bool:
        """Return whether the job has not ended."""
        return self.job is not None and not self.job.state.finished and self.job.state is not JobState.UNKNOWN

    def _state_events(self) -> list[Event]:
        """Return the states of the accounting as events."""
        found = []
        for row in self.rows:
            name = _STATE_RULES.get(row.state)
            if name is None or row.line is None:
                name = _SIGNAL_RULES.get(row.signal or 0) or _CODE_RULES.get(row.exit_code or 0)
                if name and row.line is not None and row.state.failed:
                    found.append(self._row_event(name, row, row.line))
                continue
            # Slurm also cancels the steps that still run when a job ends for another reason.
            if row.is_step and row.state is JobState.CANCELLED:
                continue
            found.append(self._row_event(name, row, row.line))
        return found

    def _row_event(self, name: str, row: JobRow, line: Line) -> Event:
        groups = {}
        if by := re.search(r"CANCELLED by (\S+)", row.raw_state):
            is_own = by[1] == row.user
            groups["user"] = f"its own user ({by[1]})" if is_own else f"user {by[1]}"
            name = "job-cancelled-by-root" if by[1] in {"0", "root"} and not is_own else name
        hosts = expand_nodes(row.nodes)
        host = hosts[0] if len(hosts) == 1 else None
        return Event(rule_named(name), groups, line, None, host, 0, STATE_ORDER, SYSTEM)


def rows_of_job(evidence: Evidence) -> list[JobRow]:
    """Return the rows of the job, or of the array, that the logs belong to."""
    jobs = [row for row in evidence.rows if not row.is_step] or evidence.rows
    default_logs = {found[1] for file, _ in evidence.last if (found := _DEFAULT_LOG.search(file))}
    if default_logs and default_logs.isdisjoint(map(_base_id, jobs)) and not any(row.element for row in jobs):
        return []  # squeue shows other jobs only
    return _own_rows(evidence, jobs) if len({_base_id(row) for row in jobs}) > 1 else jobs


def _own_rows(evidence: Evidence, rows: list[JobRow]) -> list[JobRow]:
    """Return the rows of the job after which a log is named, or that most tables name: squeue shows other jobs, too."""
    numbers = {number for file, _ in evidence.last for number in re.findall(r"\d{4,}", file.rpartition("/")[2])}
    named = [row for row in rows if _base_id(row) in numbers]
    stuck = [row for row in rows if row.state is JobState.PENDING and row.reason == "DependencyNeverSatisfied"]
    if stuck and all(row.state.failed for row in named):
        return stuck[:1]  # the logs are those of the job before it
    tables = Counter(job for job, _ in {(_base_id(row), row.line and row.line.file) for row in rows})
    listed = [row for row in rows if tables[_base_id(row)] == max(tables.values())]
    # A job that runs needs no explanation: the question is why another one waits.
    is_about_waiting = len(tables) > 1 and {row.state for row in listed} == {JobState.PENDING}
    if is_about_waiting and all(row.state is JobState.RUNNING for row in named):
        return listed
    waiting = [row for row in listed if row.state is JobState.PENDING]
    if not named and waiting and all(row in waiting or row.state is JobState.RUNNING for row in listed):
        return waiting[:1]
    return named or listed


def _last_runs(rows: list[JobRow]) -> list[JobRow]:
    """Return the rows without earlier runs of a requeued job, each of which `sacct --duplicates` lists."""
    last = {(row.job_id, row.line and row.line.file): row.state for row in rows if row.state.finished}
    return [row for row in rows if last.get((row.job_id, row.line and row.line.file), row.state) is row.state]


def _base_id(row: JobRow) -> str:
    """Return the ID of a job without its element, component or step."""
    return re.split(r"[_+.]", row.job_id, maxsplit=1)[0]


def _same_job(row: JobRow, job: JobRow) -> bool:
    return row.job_id.partition(".")[0] == job.job_id.partition(".")[0]


def _last_attempt(evidence: Evidence, *, has_completed: bool) -> tuple[list[Event], list[TaskEnd]]:
    """Return what belongs to the last attempt of each file. In a file without marks, only a rank's last exception."""
    requeued = [event for event in evidence.events if event.line.file in evidence.requeued]
    if has_completed:
        # The attempt after the requeue wrote nothing to these files.
        evidence.ends = [end for end in evidence.ends if end.line.file not in evidence.requeued]
        requeued = []
    # After a requeue, other files may contain the new attempt. Then the requeue alone is of interest.
    later = [event for event in evidence.events if event.line.file not in evidence.requeued]
    if later or any(end.line.file not in evidence.requeued for end in evidence.ends):
        requeued = [event for event in requeued if event.rule.kind == "end"]
    latest = dict(evidence.running)
    for event in evidence.events:
        latest[event.line.file] = max(latest.get(event.line.file, 0), event.attempt)
    events = [event for event in (*requeued, *later) if event.attempt == latest[event.line.file]]
    # Files of single ranks often have no mark of a new attempt.
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


def _comes_before(line: Line, other: Line) -> bool:
    return line.file == other.file and line.number < other.number


def explains(event: Event, other: Event) -> bool:
    """Return whether an event is a cause of another one."""
    return (
        event is not other
        and other.rule.class_ in event.rule.explains
        and other.rule is not event.rule
        and not (other.rule.kind == "cause" and event.rule.class_ in other.rule.explains)
    ) or (event.rule.kind == "cause" and (_failed_above(event, other) or _was_lost_peer(event, other)))


def _failed_above(event: Event, other: Event) -> bool:
    """Return whether an error about a folder, or a file that could not be written, left a file missing there."""
    above, path = event.groups.get("path", ""), other.groups.get("path", "")
    folder = above.rpartition("/")[0] if event.rule.class_ in NOT_WRITTEN else above.rstrip("/")
    return (
        other.rule.class_ == "missing-file"
        and event.rule.class_ != "missing-file"
        and above.startswith("/")
        and path.startswith(folder + "/")
    )


def _was_lost_peer(event: Event, other: Event) -> bool:
    """Return whether a rank lost its InfiniBand connection because another rank had failed by itself."""
    return (
        other.rule.name == "nccl-infiniband"
        and "peer" in other.groups
        and event.strength >= SYSTEM
        and event.rank not in {None, other.rank}
        and event.rule.class_ not in {other.rule.class_, *other.rule.explains}
    )


def had_progress_between(event: Event, other: Event) -> bool:
    """Return whether the program went on between a line and a later error in its file."""
    return (
        event.line.file == other.line.file
        and event.strength not in {SYSTEM, EXCEPTION}
        and event.order < other.order
        and (
            event.progress - other.progress >= event.ranks_in_file
            or (event.ranks_in_file == 1 and event.line.number < other.progress_line)
        )
    )
