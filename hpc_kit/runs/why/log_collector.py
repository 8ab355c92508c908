"""Reads the files of a job: matches the rules with their lines, and collects the reports of launchers."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from hpc_kit.runs.why.evidence import (
    C10D,
    EXCEPTION,
    HANDLED_AFTER,
    KERNEL,
    LINE,
    LINES_OF_END,
    LONE_TASKS,
    NOT_WRITTEN,
    SYSTEM,
    SYSTEM_MESSAGE,
    WARNING,
    Event,
    Evidence,
    LastLine,
    Stamp,
    Strength,
    reports_end_of_inputs,
    specify_exit_code,
)
from hpc_kit.runs.why.launcher_reports import LauncherReports, starts_report
from hpc_kit.runs.why.log_reader import SOFTENED, SUCCESS, LogReader, detect_labels, match_label, parse_line, read_head
from hpc_kit.runs.why.rules import Match, Rule, match_line, required_literals, rule_named
from hpc_kit.runs.why.slurm_tables import TableParser
from hpc_kit.runs.why.stack_dumps import DumpReader
from hpc_kit.runs.why.stated_facts import StatedFacts
from hpc_kit.runs.why.tracebacks import GOES_ON, TRACEBACK, TracebackReader
from hpc_kit.runs.why.translations import translate

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpc_kit.runs.why.log_reader import Line, LogFile, ShapeMemory
    from hpc_kit.runs.why.tracebacks import Traceback

MAX_REPEATS = 300
"""Lines of one shape that are read in one file, if a rule matches them."""

LINES_OF_BUSY = 8
"""Lines that one rank alone prints before a time-out, if it does not wait itself."""

MAX_EVENTS = 20_000
_BARE_EXCEPTION = re.compile(r"^(?:[a-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?:: .*)?$")
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
_FALLS_BACK = re.compile(
    r"(?i)\b(?:going to|using|trying|loading) \S+ instead\b"
    r"|^(?:slurmstepd\S*: error: )?Setting TMPDIR to /|^(?:srun: )?(?:will )?retry(?:ing)?\b"
)
"""The program, or Slurm itself, goes on in another way."""

_LINK_UP = re.compile(r"(?i)^(?P<link>.*(?:NET/IB|mlx\d|\bib\d).*?)(?:port active|link (?:is )?up)\b")
"""A network link works again. The line about its failure begins in the same way."""

_MOUNT_UP = re.compile(r"Lustre: (?P<target>[\w.-]+).*: Connection restored\b")
"""A file system is back."""

_RETRIES = re.compile(r"(?i)\bretry(?:ing)?\b|\btry(?:ing)? again\b")
_QUIET = re.compile(r" NCCL (?:INFO|TRACE) |^\++ |^#")
"""Text that is no message of its own: NCCL's debug output, commands that `set -x` prints, comments."""

_TORCHRUN = re.compile(r"torch\.distributed\.run|torch/distributed/(?:run\.py|elastic/)")
"""torchrun or its agent prints a line."""

_OWN_PART = re.compile(r"^(?:  (?P<label>found|do) {2,5}| {9})(?P<text>\S.*)")
"""A further line of an error of hpc-kit, as `HpcKitError` prints it."""

_REFERS = re.compile(r"^hpc-kit: .*[;:] rank \d+ (?:shows the remedy|lists them)$")
"""An error of hpc-kit that another rank prints completely."""

_INFO_PREFIX = re.compile(r"^\[?I\d{3,4} [^\]]*\] ")
"""The prefix of glog in front of a message of torchrun that is no warning."""

_LOGGER = re.compile(r"^(?:\W*\b(?:INFO|__main__|root)\b\W*)+")
"""The level and the name that a logger prints in front of a message."""

_RESULT = re.compile(
    r"(?i)^(?!.*(?:checkpoint|ckpt|snapshot|\bstep\b|\bepoch\b|\bnot\b|fail|error))(?:"
    r".*\b(?:saved|wrote|written|stored|exported|uploaded)\b.* (?:to|in|at|as|into|under) \S"
    r"|(?:best|final|test|overall|mean|average|total)\b.*\d)"
)
"""The program has written what it was started for."""

_UNFINISHED = re.compile(
    r"(?i)\b(?:not|never|wait(?:ing)?|until|before|unless|unable|timed out|will be|to (?:be )?(?:complete|finish))\b"
)
"""A sentence about success that has not come."""

_TAKEN_BACK: dict[re.Pattern[str], Callable[[Event], bool]] = {
    re.compile(r"^srun: (?:Job )?[Ss]tep created"): lambda event: event.rule.class_ == "step-waits",
    re.compile(r"<All keys matched successfully>"): lambda event: (
        event.rule.class_ == "checkpoint-mismatch" and event.rule.kind == "symptom"
    ),
    # The program has written a file. An error of writing before it did not lose the output.
    re.compile(r"(?i)\b(?:saved|wrote|written)\b.* (?:to|in|at|as)\b"): lambda event: (
        event.strength == LINE and event.rule.class_ in NOT_WRITTEN
    ),
}
"""Lines that take back earlier events of their file, and these events."""

_REFUSED = re.compile(
    r"^(?:sbatch|salloc|srun): error: (?:Batch job submission failed|Unable to allocate resources"
    r"|Job submit/allocate failed)"
)
"""The last line of a submission that Slurm refused. A terminal may show several of them."""

_HYDRA = re.compile(r"^Error in call to target '")
_PRINTED_EXCEPTION = re.compile(
    r"""^(?P<name>[A-Z]\w*(?:Error|Exception))\((?:(?P<errno>\d+), )?(?P<quote>['"])(?P<message>.*)(?P=quote),?\)$"""
)
"""The form in which Hydra prints the exception of a class that it creates."""

_FINISHED_RANK = re.compile(
    r"(?i)\b(?:done|finished|ended|max_\w+|train_runtime|successfully|exit(?:ed)?|complete[d]?|exhausted"
    r"|no more (?:data|batches)|saved model|end of (?:epoch|training|data))\b"
)
_FINISHED_WORDS = required_literals(_FINISHED_RANK.pattern)
"""The search for words is faster than that for the pattern."""

_CONTINUES = re.compile(r"nccl\w+Error: |Last error:|  what\(\): |\w+\(\d+\)\.*:(?: |$)")
"""Further lines of a message of torch's C++ library or of MPICH. Only the first line names the rank."""

_END_OF_JOB = re.compile(r"PREEMPTION|NODE FAILURE")
_NEW_ATTEMPT = re.compile(
    r"DUE TO (?:JOB REQUEUE|PREEMPTION|NODE FAILURE)|will restart worker group|Restarting worker group|Requeu(?:e"
    r"|ing) (?:the )?job|job requeued|restart(?:ing)? attempt \d+|=+ attempt \d+",
    re.IGNORECASE,
)
"""Slurm, torchrun or the program announces that the job, or its ranks, start again."""

_NEXT_TRY = re.compile(
    r"(?i)^(?!.*(?:fail|error|connect|download|in \d+ ?s))(?:\S{1,40} ){0,3}\W?"
    r"(?:attempt|try|retry)(?: number)?[ :=#]+(?P<count>\d+)\b"
    r"(?! (?:has |was |is )?(?:ended|exited|over|done|returned|died))"
)
"""A script starts its program again. It is one only after a failure: programs count the tries of downloads, too."""

LINES_OF_RESTORE = 3
_RESTORED = re.compile(r"\bRestored all states from the checkpoint\b")
_REACHED = re.compile(r"`Trainer\.fit` stopped: `max_(?:epochs|steps)=\d+` reached")
"""Messages of Lightning: it has restored a checkpoint, and it has trained long enough."""

_RESTART = re.compile(r"(?i)(?<![\w.-])(?:SLURM_)?restart(?:[ _-]?count)?[ =:]+(?P<count>\d+)\b")
"""A script names the number of its restarts."""


def add_file(evidence: Evidence, log: LogFile) -> None:
    """Add the content of one file to the evidence."""
    _FileCollector(evidence, log, evidence.memory).read()


class _FileCollector:
    """Reads one file into the evidence."""

    def __init__(self, evidence: Evidence, log: LogFile, memory: ShapeMemory) -> None:
        self.evidence, self.log, self.memory = evidence, log, memory
        self.labels = detect_labels(log.path, log.rank)
        self.reader = LogReader(log, memory, self._wants_all)
        self.tracebacks = TracebackReader(memory, self._add_traceback)
        self.tables = TableParser()
        self.dumps = DumpReader()
        self.reports = LauncherReports(evidence, log)
        self.facts = StatedFacts(evidence, log.name, has_labels=self.labels is not None)
        self.attempt = 0
        self.pending_attempt: Literal["", "any", "plain"] = ""
        """Which next line begins another attempt: any line, or one that no rule matches."""
        self.attempt_kind: Literal["", "any", "plain"] = ""
        self.progress_at_end = 0
        """Lines of progress before the line that announced another attempt."""
        self.progress_at_start = 0
        """Lines of progress before the current attempt."""
        self.starts: list[int] = []
        """Lines of progress before each further attempt."""
        self.restart: tuple[int, set[int]] = (0, set())
        """The last count of restarts that the program printed, and the ranks that printed it."""
        self.before: Line | None = None
        self.output_line = self.retry_line = self.progress_line = 0
        """The last line of the program, of an announcement of another try, and of a new kind of progress."""
        self.is_refused = False
        """The last submission was refused."""
        self.own: list[Event] = []
        self.errors: dict[int | None, Event] = {}
        """Errors of hpc-kit of which further lines may follow, by rank."""
        self.ranks: set[int] = set()
        self.stated_ranks: set[int] = set()
        """Ranks of lines that name another rank than the name of the file does."""
        self.nodes: dict[int, int] = {}
        """The labels of ranks that differ from them: srun labels the agents of torchrun."""
        self.agents: set[int] = set()
        """The labels, or -1 without one, of lines that torchrun labels with the number of a process on its node."""
        self.repeats: Counter[bytes] = Counter()

    def read(self) -> None:
        """Read the whole file."""
        for number, text, shape in self.reader:
            stripped = text.rstrip()
            if number == 1 and stripped.startswith("#!") and self._is_script():
                return
            if not stripped or self._examine(parse_line(self.log, self.labels, number, stripped)):
                self._limit(shape)
                continue
            if self.memory.add(shape, text):
                self.progress_line = number
        self.tracebacks.close_all(self.before)
        self.reports.close()
        self._finish()

    def _wants_all(self) -> bool:
        return self.tracebacks.is_open or self.dumps.is_open or self.tables.is_open or self.reports.is_open

    def _limit(self, shape: bytes) -> None:
        """Skip a message that a file repeats thousands of times, such as a retried connection."""
        self.repeats[shape] += 1
        is_open = self.tracebacks.is_open or self.dumps.is_open
        if self.repeats[shape] > MAX_REPEATS and not is_open and TRACEBACK.encode() not in shape:
            self.reader.mute(shape)

    def _is_script(self) -> bool:
        """Keep a batch script apart: its text is no output."""
        with self.log.path.open("rb") as file:
            text = file.read(1 << 16)
        # A log may begin with `#!`, if the script prints itself.
        if b"#SBATCH" not in text and not self.log.name.endswith((".sh", ".sbatch", ".slurm", ".py")):
            return False
        lines = text.decode(errors="replace").split("\n")
        self.evidence.scripts[self.log.name] = lines
        if any(line.endswith("\r") for line in lines):
            line = parse_line(self.log, self.labels, 1, lines[0].rstrip() + "^M")
            self._add(Match(rule_named("line-endings"), {}), line, SYSTEM)
        return True

    def _finish(self) -> None:
        evidence, reader = self.evidence, self.reader
        evidence.lines += reader.lines
        if reader.is_binary or reader.error:
            evidence.unreadable.append((self.log.name, reader.error or "binary"))
        # A traceback becomes an event where it ends: other ranks may have written in between.
        orders = sorted(event.order for event in self.own)
        for event, order in zip(sorted(self.own, key=lambda event: event.line.number), orders, strict=True):
            event.order = order
        for event in self.own:
            event.progress = reader.count_progress() - event.progress
            event.lines_after = reader.lines - event.line.number
            event.ranks_in_file = max(len(self.ranks), 1)
            # The message in a cut line may go on with words that would make it a more special one.
            event.is_hint |= reader.is_cut and not event.lines_after
        evidence.nodes.agents |= {(self.log.name, label) for label in self.agents}
        if self.nodes or self.agents - {-1}:
            self._separate_nodes()
        self._correct_names()
        self._find_silent_ranks()
        if reader.has_progress():
            evidence.with_progress.add(self.log.name)
            evidence.logs.append((self.log, self.labels, reader.lines))
        self._note_last_lines()
        self._note_busy_rank()
        self._note_last_time()
        self._note_stacks()
        if self.log.rank is not None:
            evidence.ranks.add(self.log.rank)
            evidence.own_logs.add(self.log.rank)
        if self.pending_attempt:
            evidence.requeued.add(self.log.name)
        self._merge_last_words()
        evidence.attempts = max(evidence.attempts, self.attempt + 1)
        for attempt, start in enumerate(self.starts):
            evidence.later_progress[self.log.name, attempt] = reader.count_progress() - start
        succeeded = any((attempt, line.file) == (self.attempt, self.log.name) for attempt, line in evidence.success)
        if succeeded or reader.count_progress() > self.progress_at_start:
            evidence.running[self.log.name] = self.attempt

    def _separate_nodes(self) -> None:
        """Give the ranks the hosts of their nodes. A line that only a node labels is of no certain rank."""
        hosts = self.evidence.hosts
        of_node = dict(hosts)
        for node in {*self.nodes.values(), *self.agents}:
            hosts.pop(node, None)
        hosts.update({rank: of_node[node] for rank, node in self.nodes.items() if node in of_node})
        for event in self.own:
            label = self._label(event.line)
            if label and (event.rank == int(label["rank"]) or event.line.is_local):
                event.rank = parse_line(self.log, None, 0, event.line.text[label.end() :]).rank
                event.host = event.host or of_node.get(int(label["rank"]))

    def _correct_names(self) -> None:
        """Take back the rank or the host in the name of a file whose lines state others: it has a number of a node."""
        log, hosts = self.log, self.evidence.hosts
        if len(self.stated_ranks) > 1 and log.rank not in self.stated_ranks:
            for event in self.own:
                event.rank = None if event.rank == log.rank else event.rank
            self.log = log._replace(rank=None)
            known = {event.host for event in self.own if event.host}
            hosts.update({rank: name for name in known if len(known) == 1 for rank in self.stated_ranks})
        stated = self.reports.torchrun_hosts
        host = min(stated, default="")
        if log.host and len(stated) == 1 and host.partition(".")[0] != log.host.partition(".")[0]:
            for event in self.own:
                event.host = host if event.host == log.host else event.host
            hosts.update({rank: host for rank, known in hosts.items() if known == log.host})

    def _label(self, line: Line) -> re.Match[str] | None:
        """Return the label of a line, if labels name ranks."""
        return match_label(self.labels, line.text) if self.labels and "rank" in self.labels.groupindex else None

    def _find_silent_ranks(self) -> None:
        """Discard the progress after an error if, at the end of the file, only other ranks still print progress."""
        events = [event for event in self.own if event.progress]
        if not events:
            return
        last = [self._progress_of(number, text) for number, text in self.reader.last]
        shapes = {shape for _, _, shape in last} & self.memory.counting
        head = [self._progress_of(0, text) for text in read_head(self.log.path).decode(errors="replace").splitlines()]
        printing = {rank for _, rank, shape in (*head, *last) if shape in shapes and rank is not None}
        for event in events:
            event.ranks_in_file = max(event.ranks_in_file, len(printing))
            alive = {rank for number, rank, shape in last if number > event.line.number and shape in shapes}
            silent = printing - alive
            if event.rank is None and len(silent) == 1 and len(printing) > 1 and event.strength == EXCEPTION:
                (event.rank,) = silent
            if event.rank in silent and len(silent) * 2 <= len(printing):
                event.progress = 0

    def _progress_of(self, number: int, text: str) -> tuple[int, int | None, bytes]:
        """Return the number, the rank and the shape of a line."""
        line = parse_line(self.log, self.labels, number, text)
        return number, line.rank, _shape(text)

    def _note_last_lines(self) -> None:
        """Note the last line of each rank, and the last lines that report success.

        Only a prefix makes a line another rank's. In other files, the very last line is enough.
        """
        last, known = self.reader.last, self.evidence.last
        shapes = _shape("\n".join(text for _, text in last)).split(b"\n")
        end = b"\n".join(set(shapes)).lower().decode()
        may_finish = any(word in end for word in _FINISHED_WORDS)
        if not (may_finish or self.labels):
            last = [entry for entry in last[:-1] if entry[1].startswith(("[", "("))] + last[-1:]
        for (_, before), (number, text) in pairwise([(0, ""), *last]):
            finished = may_finish and _FINISHED_RANK.search(text)
            if not (finished or self.labels or text.startswith(("[", "(")) or number == last[-1][0]):
                continue
            line = parse_line(self.log, self.labels, number, text)
            # The last line of the program is clearer than the frames of C++ after it.
            if not C10D.search(line.body) or (self.log.name, line.rank) not in known:
                is_progress = line.time is not None and _shape(text) in self.memory.counting
                found = LastLine(number, line.text, self.log.name, line.body, line.time, is_progress)
                known[self.log.name, line.rank] = found
            # `set -x` shows that the script printed a line, which it does whatever happened.
            is_script = any(event.traceback for event in self.own) and before.startswith("+ echo ")
            if line.rank is not None and finished and reports_end_of_inputs(line.body):
                self.evidence.inputs.ended[line.rank] = LastLine(number, line.text, self.log.name)
            elif line.rank is not None and shapes.count(_shape(text)) > 1 and _shape(text) in self.memory.counting:
                self.evidence.inputs.ended.pop(line.rank, None)
            if finished and not is_script and _says_success(line.body):
                self.evidence.success.append((self.attempt, line))
        self._note_training_without_steps(end)
        # A line that a program writes from time to time does not show its end.
        if last and shapes.count(_shape(last[-1][1])) == 1 and not self.reader.is_cut:
            line = parse_line(self.log, self.labels, *last[-1])
            if _RESULT.search(_LOGGER.sub("", line.body)):
                self.evidence.results.append(line)

    def _note_training_without_steps(self, end: str) -> None:
        """Note that Lightning ended a training right after it had restored a checkpoint. `end` is in lower case."""
        restored = 0
        for number, text in self.reader.last if "restored all states" in end else ():
            if _RESTORED.search(text):
                restored = number
            elif restored and number - restored <= LINES_OF_RESTORE and _REACHED.search(text):
                self.evidence.untrained = parse_line(self.log, self.labels, number, text)

    def _note_busy_rank(self) -> None:
        """Note the only rank of a labelled file that printed lines while the remaining ranks waited in vain."""
        waits = [event.line.number for event in self.own if event.rule.class_ == "collective-timeout"]
        if not (self.labels and waits):
            return
        before = [parse_line(self.log, self.labels, *each) for each in self.reader.last if each[0] < min(waits)]
        output = [line for line in before if line.body.strip() and not line.body.startswith((" ", TRACEBACK))]
        ranks = {line.rank for line in output[-LINES_OF_BUSY:]}
        if len(output) >= LINES_OF_BUSY and len(ranks) == 1:
            self.evidence.busy |= ranks - {None}

    def _note_last_time(self) -> None:
        """Note the last time that the program has printed."""
        for number, text in reversed(self.reader.last[-LINES_OF_END:]):
            if SYSTEM_MESSAGE.search(text):
                continue
            line = parse_line(self.log, self.labels, number, text)
            if line.time is not None:
                latest = self.evidence.last_stamp
                if latest is None or line.time > latest.time:
                    is_cut = self.reader.is_cut or "slurmstepd" in text
                    self.evidence.last_stamp = Stamp(line, line.time, self.log, self.labels, is_cut)
                return
            # Steps without a time may be those of hours.
            if _shape(text) in self.memory.counting:
                return

    def _note_stacks(self) -> None:
        """Note the last stacks of the ranks, if the program printed no progress after them."""
        for rank, stack in self.dumps.last.items():
            if self.reader.count_progress() > stack.progress:
                self.evidence.stacks.setdefault(rank, None)
            else:
                self.evidence.stacks[rank] = stack
        waiting = [each for each in self.dumps.workers.values() if self.reader.count_progress() <= each.progress]
        self.evidence.loaders.stuck += waiting
        self.evidence.loaders.is_awaited |= self.dumps.waits_for_workers
        for event in self.own:
            crash = self.dumps.crashes.get(event.line.number)
            if crash and crash.traceback.frames:
                event.groups.setdefault("detail", crash.place + (" in a worker process" if crash.is_helper else ""))

    def _merge_last_words(self) -> None:
        """Add what victims print after the end of an attempt to it: a new attempt would report progress."""
        last = [event for event in self.own if event.attempt == self.attempt]
        went_on = self.reader.count_progress() > self.progress_at_start or self.attempt_kind != "plain"
        ended_by = [event for event in self.own if event.attempt == self.attempt - 1 and event.rule.kind == "end"]
        explained = {name for event in ended_by for name in event.rule.explains}
        if not self.attempt or not last or went_on:
            return
        if any(event.rule.kind != "consequence" and event.rule.class_ not in explained for event in last):
            return
        self.attempt -= 1
        for event in last:
            event.attempt = self.attempt
        ends = self.evidence.ends
        moved = {end.line for end in ends if end.line.file == self.log.name and end.attempt == self.attempt + 1}
        self.evidence.ends = [end._replace(attempt=self.attempt) if end.line in moved else end for end in ends]

    def _start_attempt(self) -> None:
        self.tracebacks.close_all(self.before)
        self.attempt_kind, self.progress_at_start = self.pending_attempt, self.reader.count_progress()
        # Steps of a known shape may follow its announcement before a line is read.
        self.starts.append(self.progress_at_end if self.pending_attempt else self.progress_at_start)
        self.attempt, self.pending_attempt = self.attempt + 1, ""
        self.reports.start_step()
        self.dumps = DumpReader()

    # ---- lines

    def _examine(self, line: Line) -> bool:
        """Return whether a line matters: lines of its shape are then read again."""
        if line.rank is None:
            line = line._replace(rank=self._rank_of_message(line))
        if line.rank is not None:
            self._note_rank(line, line.rank)
        self._note_time(line)
        if not _is_end_noise(line.body):
            self.output_line = line.number
            if _RETRIES.search(line.body):
                self.retry_line = line.number
        if _TORCHRUN.search(line.text):
            self.evidence.has_torchrun = True
        takes_back = self._take_back(line)
        if self.pending_attempt and self._has_begun_again(line):
            self._start_attempt()
        # A line belongs to one reader: the further lines of a message are no messages of their own.
        before = self._line_before(line) if TRACEBACK in line.body else self.before
        matters = self._own_error(line) or self._dump(line) or self.tracebacks.read(line, before)
        matters = matters or self._table(line)
        matters = matters or self._launcher_report(line) or self._plain(line)
        self.before = line
        return matters or takes_back

    def _line_before(self, line: Line) -> Line | None:
        """Return the line before a traceback, also if another file contained this line and it was skipped here."""
        if self.before is None or self.before.number < line.number - 1:
            text = self.reader.line_before()
            return parse_line(self.log, self.labels, line.number - 1, text) if text else self.before
        return self.before

    def _has_begun_again(self, line: Line) -> bool:
        """Return whether another attempt of the program runs: ranks that end print a few more lines."""
        if self.pending_attempt == "any":
            return bool(line.body) and not _is_end_noise(line.body)
        # The remaining ranks may print a few steps that were under way.
        more = HANDLED_AFTER * max(len(self.ranks), 1)
        return self.reader.count_progress() - self.progress_at_end >= more

    def _note_rank(self, line: Line, rank: int) -> None:
        """Note the rank, the label and the host of a line."""
        label = self._label(line)
        if line.is_local:
            self.agents.add(int(label["rank"]) if label else -1)
        elif label is not None and int(label["rank"]) != rank:
            self.nodes[rank] = int(label["rank"])
        if self.log.rank is not None and (rank != self.log.rank or line.text.startswith(f"[rank{rank}]")):
            self.stated_ranks.add(rank)
        self.evidence.ranks.add(rank)
        self.ranks.add(rank)
        if line.host:
            self.evidence.hosts.setdefault(rank, line.host)

    def _note_time(self, line: Line) -> None:
        """Note the time of a line that the job itself printed."""
        if line.time is not None and not KERNEL.search(line.text):
            began = self.evidence.began
            self.evidence.began = line.time if began is None else min(began, line.time)

    def _take_back(self, line: Line) -> bool:
        """Turn errors before a line into warnings if the line states that the program continues or a link is back.

        Return whether it states so of the line right before it: each such line is read, also if its shape is known.
        """
        is_after = bool(self.own) and self.own[-1].line[:2] == (line.file, line.number - 1)
        takes_back = is_after and self.own[-1].line.rank == line.rank
        if takes_back:
            falls_back, goes_on = bool(_FALLS_BACK.match(line.body)), bool(GOES_ON.match(line.body))
            takes_back = falls_back or goes_on
            if falls_back:
                self.own[-1].strength = WARNING
            if goes_on:
                for event in self.own[-3:]:
                    event.is_survived |= event.line == self.before and event.strength in {LINE, WARNING}
        for pattern, applies in _TAKEN_BACK.items():
            if pattern.search(line.body):
                self._weaken(applies)
        if line.body.startswith("Submitted batch job "):
            # A refusal before it does not concern the job that ran.
            self._weaken(lambda event: event.line.body.startswith("sbatch: "), LINE)
        if found := _LINK_UP.match(line.body):
            link = found["link"]
            self._weaken(lambda event: event.host == line.host and event.line.body.startswith(link))
        if found := _MOUNT_UP.search(line.body):
            target = found["target"]
            self._weaken(lambda event: event.is_hint and event.host == line.host and target in event.line.body)
        return takes_back

    def _weaken(self, applies: Callable[[Event], bool], strength: Strength = WARNING) -> None:
        for event in self.own:
            if applies(event):
                event.strength = strength
                event.is_survived |= strength == WARNING

    def _rank_of_message(self, line: Line) -> int | None:
        """Return the rank that a line without a rank belongs to: a report about it, or a message, goes on."""
        if (reported := self.reports.rank_of_error(line)) is not None:
            return reported
        before = self.before
        goes_on = before and (
            _CONTINUES.match(line.body)
            or before.body.startswith("Last error:")
            or self.tracebacks.is_in_worker(before.rank)
        )
        return before.rank if before and goes_on else None

    # ---- other lines

    def _own_error(self, line: Line) -> bool:
        """Read what an error of hpc-kit found and what it advises. Return whether a line belongs to one."""
        event, part = self.errors.get(line.rank), _OWN_PART.match(line.body)
        if event is None or part is None:
            self.errors.pop(line.rank, None)
            return False
        groups = event.groups
        label = part["label"] or ("do" if "remedy" in groups else "found")
        name = "remedy" if label == "do" else "found"
        if name in groups:
            # A further line of `found` is a further fact; a line of the remedy may go on in the next one.
            between = "; " if name == "found" and not groups[name].endswith((";", ",", ":")) else " "
            groups[name] += between + part["text"]
        else:
            groups[name] = part["text"]
        event.strength = max(event.strength, LINE)
        return True

    def _dump(self, line: Line) -> bool:
        is_part = self.dumps.read(line, self.reader.count_progress())
        if is_part:
            self.reader.freeze()
        return is_part

    def _table(self, line: Line) -> bool:
        rows = self.tables.parse(line)
        self.evidence.rows += rows
        return bool(rows) or self.tables.is_open

    def _launcher_report(self, line: Line) -> bool:
        boundary = self.reports.earlier_end(line)
        # A task ends once per step: a second end, after new output, is that of a later srun.
        if 0 < boundary < self.output_line:
            self._start_attempt()
            self.evidence.has_later_step |= self.retry_line < boundary
            for event in self.own:
                if event.line.number > boundary:
                    event.attempt = self.attempt
        if starts_report(line.body):
            self.tracebacks.close_all(self.before)
        return self.reports.read(line, self.attempt)

    def _plain(self, line: Line) -> bool:
        body = line.body
        is_quiet = _QUIET.search(body) is not None
        # `###` mostly is a banner of the script, and no comment.
        is_statement = (not is_quiet or body.startswith("###")) and self._note_attempt(body, line.rank)
        # NCCL's debug output names the hosts and the number of the ranks.
        is_statement |= self.facts.read(line, self.attempt + bool(self.pending_attempt))
        if is_quiet:
            return is_statement
        is_call = self.facts.read_collective(line)
        # Python prints a SyntaxError of the main program without the header of a traceback: its code comes before it.
        exception = bool(_SYNTAX.match(body)) and self.before is not None and self.before.body.startswith(" ")
        if printed := self._exception_of_hydra(body):
            body, exception = printed, True
        matches = match_line(body, exception=exception or bool(_BARE_EXCEPTION.match(body)))
        if not matches and (english := translate(body)) != body:
            matches = match_line(english)
        if len(matches) > 1:
            matches = [match for match in matches if match.rule.name != "python-exception"]
        if not matches:
            if self.pending_attempt == "plain" and not _is_end_noise(body):
                self._start_attempt()
            return bool(self.pending_attempt) or is_call or is_statement
        strength = EXCEPTION if exception else _strength(line, matches[0].rule)
        for match in matches[:3]:
            self._add(match, line, strength)
        if body.startswith("hpc-kit: ") and self.own and self.own[-1].line is line:
            self.errors[line.rank] = event = self.own[-1]
            if event.rule.name == "hpc-kit-error" and not _REFERS.match(body):
                event.strength = WARNING  # a note, until a line with a remedy follows
        return True

    def _note_attempt(self, body: str, rank: int | None) -> bool:
        """Begin another attempt at a new submission after a refused one, and note a line that announces one.

        Return whether a line counts restarts.
        """
        if self.is_refused and body.startswith(("sbatch: ", "salloc: ", "srun: ")):
            self._start_attempt()
            self.is_refused = False
        self.is_refused |= bool(_REFUSED.match(body))
        has_failed = bool(self.own) and self.own[-1].strength >= SYSTEM and self.own[-1].attempt == self.attempt
        next_try = _NEXT_TRY.search(body)
        is_again = has_failed and next_try is not None and int(next_try["count"]) > 1
        is_first = next_try is not None and int(next_try["count"]) == 1 and not self.own
        if found := None if is_first else _NEW_ATTEMPT.search(body) or (next_try if is_again else None):
            self.pending_attempt = "plain" if _END_OF_JOB.search(found[0]) else "any"
            self.progress_at_end = self.reader.count_progress()
        # A count of 0 is that of the first attempt. Each rank may print the count of its restarts.
        restart = _RESTART.search(body)
        count = int(restart["count"]) if restart else 0
        if count and (count != self.restart[0] or rank in self.restart[1]):
            self.pending_attempt, self.restart = "any", (count, set())
        if count and rank is not None:
            self.restart[1].add(rank)
        return restart is not None or next_try is not None

    def _exception_of_hydra(self, body: str) -> str | None:
        """Return the exception that Hydra prints without a traceback, in the form of a traceback."""
        if self.before is None or not _HYDRA.match(self.before.body):
            return None
        printed = _PRINTED_EXCEPTION.match(body)
        if not printed:
            return None
        number = f"[Errno {printed['errno']}] " if printed["errno"] else ""
        return f"{printed['name']}: {number}{printed['message']}"

    def _add_traceback(self, match: Match, line: Line, traceback: Traceback) -> None:
        if traceback.rank is not None:
            line = line._replace(rank=traceback.rank, host=None)
        self._add(match, line, EXCEPTION if traceback.exceptions else LINE, traceback)

    def _add(self, match: Match, line: Line, strength: Strength, traceback: Traceback | None = None) -> None:
        evidence = self.evidence
        if len(evidence.events) >= MAX_EVENTS:
            return
        if not self.own:
            self.reader.freeze()
        match = specify_exit_code(match)
        groups = match.groups
        if match.rule.name == LONE_TASKS:
            # Each task calls itself rank 0: the launcher's label, or the name of the file, distinguishes them.
            label = self._label(line)
            groups["task"] = label["rank"] if label else "" if self.log.rank is None else str(self.log.rank)
        if match.rule.kind == "end" or match.rule.name == "exit-code" or match.rule.class_ == "collective-timeout":
            groups["before"] = self.reader.line_before()
        # A line of one process may be about another one, such as a message of srun.
        about = tuple(map(int, re.findall(r"\d+", groups.get("ranks", ""))))
        given = groups.get("rank") or groups.get("task") or (about and str(about[0]))
        # DeepSpeed numbers the processes of each node from 0.
        if local := groups.get("local"):
            given = str(self.facts.first_rank + int(local))
        rank = int(given) if given else line.rank
        is_about_another = None not in {rank, line.rank} and rank != line.rank
        host = groups.get("host") or (None if is_about_another else line.host)
        if rank is not None and host:
            evidence.hosts.setdefault(rank, host)
        event = Event(
            match.rule,
            groups,
            line,
            rank,
            host,
            self.attempt,
            len(evidence.events),
            strength,
            traceback,
            self.reader.count_progress(),
            progress_line=self.progress_line,
            is_hint=match.is_hint,
            about=about,
        )
        evidence.events.append(event)
        self.own.append(event)


def _shape(text: str) -> bytes:
    return text.encode().translate(None, b"0123456789")


def _strength(line: Line, rule: Rule) -> Strength:
    if _FALLS_BACK.search(line.body):
        return WARNING
    if SYSTEM_MESSAGE.search(line.text):
        return SYSTEM
    # Words such as "warning" or "retrying" make it one, unless the rule is about warnings.
    return WARNING if SOFTENED.search(line.text) and not rule.warns else LINE


def _says_success(body: str) -> bool:
    text = _LOGGER.sub("", _INFO_PREFIX.sub("", body))
    found = SUCCESS.search(text)
    if not found or SOFTENED.search(text.replace("INFO", "", 1)) or _is_end_noise(text):
        return False
    return _UNFINISHED.search(text, 0, found.end()) is None


def _is_end_noise(body: str) -> bool:
    return bool(re.match(r"(?:srun|slurmstepd\S*): |Terminated|Killed|\*\*\*|\++ ", body))
