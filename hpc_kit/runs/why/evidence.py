"""The content of the logs of a job: matched rules, tracebacks, ends of ranks, and states of jobs."""

from __future__ import annotations

import copy
import re
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from hpc_kit.runs.why.log_reader import ShapeMemory
from hpc_kit.runs.why.rules import Match, Rule, rule_named
from hpc_kit.slurm.directives import find_directive_options

if TYPE_CHECKING:
    from hpc_kit.runs.why.log_reader import Line, LogFile
    from hpc_kit.runs.why.slurm_tables import JobRow
    from hpc_kit.runs.why.stack_dumps import Stack
    from hpc_kit.runs.why.tracebacks import Traceback

HANDLED_AFTER = 3
"""Lines of progress after an error that show that the program went on."""

_SHELL_COMMAND = re.compile(
    r"(?:tar|cp|mv|rsync|unzip|unsquashfs|gzip|zstd|dd|install|wget|curl|scp|cat|cut|head|tail|grep|sed|[mg]?awk)\b.*: "
)
_TASK_END = re.compile(r"srun: error: \S+: tasks? \d")
Strength = int
EXCEPTION, SYSTEM, LINE, WARNING = 4, 3, 2, 1
"""Strengths of events: an exception, a message of Slurm or the kernel, another line, a warning."""


NOT_WRITTEN = {"quota", "disk-full", "read-only", "file-limit"}
"""Classes of errors of writing."""

FATAL = {"host-memory", "killed", "node-failure", "segfault", "bus-error", "abort"}
"""Classes of failures that no process survives, but that a program may survive if a helper had them."""

HELPER_FAILED_AFTER = 30
"""Lines of progress of each rank which show that only a helper had such a failure."""

LINES_OF_END = 20
"""Lines that srun prints at most, one for each node, when the ranks of a step have failed."""

ANALYSIS_ORDER = 1 << 30
"""Order of events that come from a comparison of the ranks."""

LONE_TASKS = "lone-tasks"
"""The rule about tasks of a step each of which calls itself rank 0 of 1."""

VICTIMS = ("collective-timeout", "connection-lost")
"""Classes of failures of ranks that waited for another one, or lost it."""


@dataclass(slots=True)
class Event:
    """A rule that matched a line."""

    rule: Rule
    groups: dict[str, str]
    line: Line
    rank: int | None
    host: str | None
    attempt: int
    order: int
    strength: Strength
    traceback: Traceback | None = None
    progress: int = 0
    """Lines of progress after it in its file."""
    lines_after: int = 0
    """Lines after it in its file."""
    progress_line: int = 0
    """The last line before it that began a new kind of progress."""

    is_hint: bool = False
    """The line suggests the rule's sentence, but does not prove it."""
    is_survived: bool = False
    """The line right after it states that the program continues."""
    ranks_in_file: int = 1
    """Ranks that write to its file: after the error of one, the remaining ranks may print a few more lines."""
    about: tuple[int, ...] = ()
    """The ranks that it is about, if these are several."""

    @property
    def is_of_shell_command(self) -> bool:
        """A command of the script printed it that reads or copies files."""
        return self.line.rank is None and _SHELL_COMMAND.match(self.line.body) is not None

    @property
    def is_handled(self) -> bool:
        """The program went on after it."""
        is_message = self.strength == SYSTEM
        if is_message and (self.rule.kind == "end" or _TASK_END.match(self.line.body)):
            return False
        after = HELPER_FAILED_AFTER if is_message and self.rule.class_ in FATAL else HANDLED_AFTER
        return self.is_survived or self.progress >= after * self.ranks_in_file


class TaskEnd(NamedTuple):
    """The end of tasks or ranks, as a launcher reported it."""

    ranks: tuple[int, ...]
    host: str | None
    code: int | None
    signal: str | None
    line: Line
    attempt: int
    time: float | None = None
    is_recorded_first: bool = False
    """The job recorded it as its first failure."""
    reporter: Literal["srun", "torchrun", ""] = ""
    """The launcher that reported it. If torchrun starts the ranks, the tasks of srun are its agents."""
    is_from_outside: bool = False
    """Neither Slurm nor a launcher has sent the SIGTERM that ended it."""

    @property
    def has_failed(self) -> bool:
        """It ended with a failure of its own."""
        return bool(self.code or self.signal) and not self.is_victim

    @property
    def exit_code(self) -> int | None:
        """The code as a shell shows it: 128 + signal."""
        if self.code is not None:
            return self.code if self.code >= 0 else 128 - self.code
        text = "Killed" if self.signal == "Out Of Memory" else self.signal
        return next((128 + number for number, name in _SIGNALS.items() if name == text), None)

    @property
    def is_victim(self) -> bool:
        """The launcher itself ended it, after another one failed."""
        return self.is_terminated and not self.is_from_outside

    @property
    def is_terminated(self) -> bool:
        """SIGTERM ended it."""
        return self.signal in {"Terminated", "SIGTERM"} or self.code in {-15, 143}


_SIGNALS = {
    **{int(each): signal.strsignal(each) or "" for each in signal.Signals},
    signal.SIGFPE: "Floating point exception",
}


class WaitingRank(NamedTuple):
    """A rank that waited in a collective."""

    rank: int
    sequence: int | None
    operation: str | None
    elements: str | None
    line: Line
    group: str | None = None
    """Name of its process group."""


class LastLine(NamedTuple):
    """The last line of a rank."""

    number: int
    text: str
    file: str
    body: str = ""
    """Its text without prefixes."""
    time: float | None = None
    is_progress: bool = False


class Stamp(NamedTuple):
    """A time that the program has printed, and the log that contains it."""

    line: Line
    time: float
    log: LogFile
    labels: re.Pattern[str] | None
    """The pattern of the labels in front of the lines of the log."""
    is_cut: bool
    """The last line of the program has no end: output that it had kept is lost."""


KERNEL = re.compile(
    r"\bkernel: |^\[[A-Z][a-z]{2} [A-Z][a-z]{2} |^\[ *\d+\.\d+\] |NVRM: Xid|\boom-kill:|invoked oom-killer"
)
"""A line of the kernel's log, which also contains other jobs and other days."""

SYSTEM_MESSAGE = re.compile(
    r"^(?:srun|slurmstepd\S*|sbatch|salloc|slurmd\S*|scancel): |\bkernel: |^\[ *\d+\.\d+\] |NVRM: |^FATAL: "
    r"|Memory cgroup out of|oom-kill|invoked oom|NCCL WARN|mlx5_core [\da-f:.]+: "
)
"""A message of Slurm, of the kernel or of NCCL. It is about the job even if it sounds like a warning."""

C10D = re.compile(
    r"ProcessGroup\w+\.cpp:\d+\]|\[c10d\]|^frame #\d+|^Exception raised from |^(?:terminate called|  what\(\))"
)
"""Lines that torch's C++ library prints about a collective: not output of the program."""

_OUT_OF_INPUTS = re.compile(
    r"(?i)\b(?:epoch|training|loop|data|batches|inputs|loader|rank \d+|worker \d+)\b:?(?: \S+){0,3} (?:is )?"
    r"(?:done|finished|ended|complete[d]?|exhausted)\b"
    r"|\b(?:finished|completed?) (?:the )?(?:training|epoch|all)|\bno more (?:data|batches)|\bout of (?:data|batches)"
    r"|\bend of (?:epoch|training|data)|^(?:all )?done\b"
    r"|\b(?:entering|starting|beginning|running) (?:the )?(?:validation|evaluation)\b"
)


@dataclass(slots=True)
class NodeReports:
    """Reports of Slurm, the kernel and the program about nodes."""

    masters: dict[tuple[str, int | None], str] = field(default_factory=dict)
    """The address of the first node that a rank, or a node, has stated in a file."""

    no_answer: list[str] = field(default_factory=list)
    """Words of Slurm's listings among which are the nodes that do not respond."""
    reasons: list[tuple[str, str, Line]] = field(default_factory=list)
    """Node lists and the reasons for which the nodes are out of service, as `sinfo -R` lists them."""
    agents: set[tuple[str, int]] = field(default_factory=set)
    """Files, and labels in them (or -1), of lines that torchrun labels with the numbers of processes on a node."""
    first_ranks: dict[str, set[int]] = field(default_factory=dict)
    """The first ranks of the nodes whose ranks the reports of torchrun in a file list."""
    gpus: dict[tuple[str | None, int], int] = field(default_factory=dict)
    """Ranks of GPUs, by host and bus address, as NCCL states them."""
    largest: tuple[int, str] = (0, "")
    """The pages of memory and the name of the largest process that the kernel listed."""


@dataclass(slots=True)
class LoaderReports:
    """The state of DataLoaders, as the stacks of processes show it."""

    stuck: list[Stack] = field(default_factory=list)
    """Stacks of idle workers that have data to load, if the program printed no progress after."""
    is_awaited: bool = False
    """A process waits for its workers."""


@dataclass(slots=True)
class InputReports:
    """Reports of ranks about their inputs."""

    batches: dict[int, int] = field(default_factory=dict)
    """The number of batches or steps that a rank has stated first."""
    ended: dict[int, LastLine] = field(default_factory=dict)
    """Lines of ranks that have finished their batches, and printed no progress after that."""


@dataclass
class Evidence:
    """All findings in the files of a job, in the order of reading."""

    events: list[Event] = field(default_factory=list)
    ends: list[TaskEnd] = field(default_factory=list)
    rows: list[JobRow] = field(default_factory=list)
    waiting: list[WaitingRank] = field(default_factory=list)
    processes: dict[int, set[tuple[int, str | None]]] = field(default_factory=dict)
    """Ranks and hosts of process ids. Processes of several hosts may have one id."""
    stacks: dict[int | str, Stack | None] = field(default_factory=dict)
    """The stack of each rank, or of each process without a label, in its last dump; None if the program went on."""
    torch: dict[int, tuple[str, Line]] = field(default_factory=dict)
    """The version of torch that a rank stated."""
    job_ids: set[str] = field(default_factory=set)
    """Ids of the job that its own messages name."""
    began: float | None = None
    """The earliest time in the logs of the program."""
    logs: list[tuple[LogFile, re.Pattern[str] | None, int]] = field(default_factory=list)
    """Files that contain lines of progress, with the patterns of their labels and the numbers of their lines."""
    last_stamp: Stamp | None = None
    """The latest time in the last lines of the program."""
    wanted_nodes: tuple[int, Line] | None = None
    """The number of nodes that torchrun waits for."""
    enqueued: dict[tuple[str | None, int], tuple[int, Line]] = field(default_factory=dict)
    """The number of the last collective that a rank of a process group has called."""
    success: list[tuple[int, Line]] = field(default_factory=list)
    """Lines that report success, with their attempts."""
    busy: set[int | None] = field(default_factory=set)
    """Ranks that went on to print while the remaining ranks waited."""
    results: list[Line] = field(default_factory=list)
    """Last lines of files that say that the program has written its result."""
    last: dict[tuple[str, int | None], LastLine] = field(default_factory=dict)
    """The last line of each rank in each file."""
    inputs: InputReports = field(default_factory=InputReports)
    hosts: dict[int, str] = field(default_factory=dict)
    node_lists: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """Lists of the nodes of the job that a program printed in an attempt in a file."""
    nodes: NodeReports = field(default_factory=NodeReports)
    loaders: LoaderReports = field(default_factory=LoaderReports)
    has_agents: bool = False
    """torchrun reported the ends of ranks."""
    has_torchrun: bool = False
    """torchrun started the ranks."""
    has_later_step: bool = False
    """A batch script went on with another step after a step had failed, and did not call that a retry."""
    ranks: set[int] = field(default_factory=set)
    own_logs: set[int] = field(default_factory=set)
    """Ranks that write to a file of their own, which is among the files."""
    world: int = 0
    """The number of ranks that a launcher, NCCL or the program states; 0 if none does."""
    lines: int = 0
    """Lines of all logs."""
    untrained: Line | None = None
    """The line with which a training ended right after its checkpoint was restored."""
    attempts: int = 1
    running: dict[str, int] = field(default_factory=dict)
    """The last attempt of a file, if the program printed progress or success in it."""
    later_progress: dict[tuple[str, int], int] = field(default_factory=dict)
    """Lines of progress in a file after the end of an attempt."""
    with_progress: set[str] = field(default_factory=set)
    """Files that contain lines of progress. Nothing shows their order with the lines of other files."""
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    requeued: set[str] = field(default_factory=set)
    """Files that end with a requeue: what they contain belongs to an earlier attempt."""
    scripts: dict[str, list[str]] = field(default_factory=dict)
    """Lines of the batch scripts among the files."""
    memory: ShapeMemory = field(default_factory=ShapeMemory)
    """The shapes of lines that no rule matches, of all files."""

    def of_element(self, element: str, *, with_logs: bool) -> Evidence:
        """Return the evidence about one element of an array, to which further logs can be added.

        Args:
            element: Its id.
            with_logs: All logs belong to it. Otherwise, only Slurm's and the kernel's messages are of interest.
        """
        found = copy.copy(self) if with_logs else Evidence()
        found.memory, found.scripts = self.memory, self.scripts
        # Each element changes its events, such as their ranks: it gets copies.
        found.events = [replace(event) for event in self.events if with_logs or event.strength == SYSTEM]
        own = [row for row in self.rows if element in {row.element, row.job_id.partition(".")[0]}]
        found.rows = own or [row for row in self.rows if not row.element]
        return found

    def until(self, attempt: int) -> Evidence:
        """Return the evidence about the attempts up to one that failed."""
        found = copy.copy(self)
        found.events = [
            replace(event, progress=max(event.progress - self.later_progress.get((event.line.file, attempt), 0), 0))
            for event in self.events
            if event.attempt <= attempt
        ]
        found.ends = [end for end in self.ends if end.attempt <= attempt]
        found.success = [each for each in self.success if each[0] <= attempt]
        found.running = {file: min(last, attempt) for file, last in self.running.items()}
        found.attempts = attempt + 1
        return found

    def nodes_of(self, file: str, attempt: int) -> set[str]:
        """Return the node lists that a file states in an attempt, or else those that other files state."""
        of_attempt = [nodes for (_, number), nodes in self.node_lists.items() if number == attempt]
        # A job that starts again may get other nodes.
        stated = of_attempt or list(self.node_lists.values())
        return self.node_lists.get((file, attempt)) or set().union(*stated)

    def last_of(self, rank: int | None) -> LastLine | None:
        """Return the last line that the program of a rank printed."""
        lines = [line for (_, owner), line in self.last.items() if owner == rank and rank is not None]
        own = [line for line in lines if not C10D.search(line.text)]
        return next(reversed(own or lines), None)


def script_options(lines: list[str]) -> dict[str, str]:
    """Return the options of the #SBATCH lines of a script."""
    return {option.name: option.value for option in find_directive_options(lines).options}


_CODE_RULES = {
    "143": "terminated",
    "141": "broken-pipe",
    "137": "killed",
    "139": "segfault",
    "134": "abort",
    "132": "illegal-instruction",
    "136": "floating-point-exception",
    "135": "bus-error",
}
_CODE_MEANINGS = {
    "126": "the shell could not execute a file",
    "127": "the shell did not find a command",
    "130": "SIGINT",
    "143": "SIGTERM",
    "120": "Python could not flush its output",
}


def specify_exit_code(match: Match) -> Match:
    """Return the rule of the signal that a shell's exit code means."""
    code = match.groups.get("code", "")
    if match.rule.name != "exit-code":
        return match
    if code.startswith("-"):  # Python's form of a signal
        code = str(128 - int(code))
        match = Match(match.rule, match.groups | {"code": code})
    if code in _CODE_RULES:
        return Match(rule_named(_CODE_RULES[code]), match.groups)
    return Match(match.rule, match.groups | {"meaning": _CODE_MEANINGS[code]}) if code in _CODE_MEANINGS else match


def signal_text(code: int) -> str | None:
    """Return the text of the signal that an exit code means; None for a code that the program chose."""
    return _SIGNALS.get(-code if code < 0 else code - 128)


def reports_end_of_inputs(text: str) -> bool:
    """Return whether the last line of a rank states that it has finished its batches."""
    return bool(_OUT_OF_INPUTS.search(text))
