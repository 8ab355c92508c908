"""The rank that failed first: its host, its signal and its traceback. Ranks that failed because of it are ignored."""

from __future__ import annotations

import datetime as dt
import os
import re
import shlex
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.run_files import SCRIPT, UNKNOWN_HOST, read_first_failure
from hpc_kit.slurm.nodelist import expand, fold
from hpc_kit.slurm.states import JobState
from hpc_kit.slurm.versions import LOGLESS_JOBS_VANISH, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from hpc_kit.run_files import FirstFailure
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.job_status import JobStatus

TAIL_LINES = 20
KILLED_LINES = 5
TAIL_BYTES = 1 << 18

LINES_AFTER_TRACEBACK = 60
"""Lines that may follow the traceback of a process that died from it: libraries print at exit."""

LINES_AFTER_HANDLED_TRACEBACK = 3
"""The same limit if the process ended with another code than 1: it may have handled the exception long before."""

MAX_MESSAGE_LINES = 40
"""Limit for the message of one exception."""

ENDED_BY_SLURM = frozenset(
    {
        JobState.CANCELLED,
        JobState.TIMEOUT,
        JobState.PREEMPTED,
        JobState.DEADLINE,
        JobState.NODE_FAIL,
        JobState.BOOT_FAIL,
        JobState.LAUNCH_FAILED,
        JobState.RECONFIG_FAIL,
        JobState.REVOKED,
    },
)

# srun prints the text of strsignal(), and its own text for a task that the memory limit ended.
_SIGNALS = {str(signal.strsignal(each)): each.name for each in signal.Signals} | {"Out Of Memory": "SIGKILL"}
_TASK = re.compile(
    r"^srun: error: (?P<host>[^\s:]+): tasks? (?P<task>\d+)[\d,-]*: "
    rf"(?:Exited with exit code (?P<code>\d+)|(?P<signal>{'|'.join(map(re.escape, _SIGNALS))}))",
)
_TASK_LAUNCH = re.compile(r"^srun: error: Task launch for \S+ failed on node (?P<host>[^\s:]+): (?P<reason>.+)")
_REQUEUED = re.compile(r"^slurmstepd\S*: error: \*\*\* JOB .* DUE TO JOB REQUEUE")
_CANCELLED = re.compile(r"^slurmstepd\S*: error: \*\*\* .* CANCELLED AT (?P<time>\S+) DUE TO ")
_SLURM_MESSAGE = re.compile(r"^(?:srun|slurmstepd|slurmd|sbatch)(?:-\S+)?: (?:error|fatal): .*")
_OUT_OF_MEMORY = re.compile(r"oom.?kill|out of memory|exceeded .*memory limit|memory cgroup", re.IGNORECASE)

SHELL_MESSAGE = re.compile(r"(?:(?:.*/)?(?:task|worker|agent)(?:\.sh)?: line \d+: +\d+ [A-Z]\w+.*|Terminated|Killed)$")
"""Bash's message in a task's shell about a program that a signal ended; for SIGTERM it may be a single word."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_RANK_PREFIX_AT_END = re.compile(r"\[rank\d+\]: ?$")
_BASH_MESSAGE = re.compile(r"\S*/slurm_script: line (?P<line>\d+): (?P<message>.*)")
_TRACEBACK = re.compile(r"^(?P<indent>[ |+]*)(?:Exception Group )?Traceback \(most recent call last\):$")
_SYNTAX_ERROR = re.compile(r'^  File ".*", line \d+$')
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::|$)")
_NOT_FATAL = re.compile(
    r"^(Exception ignored |Exception in thread |Error in atexit|--- Logging error ---|Exception in default)"
)
_NOT_MESSAGE = re.compile(
    r"^(srun: |slurmstepd: |\[?[WEIF]\d{4} |\[?[WEIF]\d{3,4}[ \]]|\[rank\d+\]:\[|terminate called|Fatal Python error"
    r"|Exception ignored |Exception in |Error in atexit|Traceback \()"
)


class RankFailure(NamedTuple):
    """The first failure of a job."""

    rank: int | None
    """None: the batch script itself, or a node."""

    host: str | None
    exit_code: int | None
    signal: str | None
    headline: str
    """One line: the exception, or the signal that ended the rank."""

    text: str
    """The traceback alone, or the last lines of the log."""

    log: Path | None
    """The log with this text."""

    unusable_nodes: str = ""
    """Nodes that could not launch their tasks. The headline names them."""

    @property
    def process(self) -> str:
        """The process that failed, with its host; empty if a node failed."""
        if self.unusable_nodes:
            return ""
        process = "the batch script" if self.rank is None else f"rank {self.rank}"
        return f"{process} on {self.host}" if self.host else process


def find_failure(run: Run, status: JobStatus | None) -> RankFailure | None:
    """Return the first failure of a run; None if there is none, for example in a cancelled job.

    Args:
        run: The run.
        status: The scheduler's status of the job; None: the scheduler does not know it.
    """
    state = status.state if status else JobState.UNKNOWN
    batch = _lines_of_last_attempt(line for path in run.batch_logs() for line in _read_tail(path).splitlines())
    if launches := [match for line in batch if (match := _TASK_LAUNCH.match(line))]:
        return _failure_of_nodes(run, launches)
    marker = read_first_failure(run.folder)
    if marker is not None and not _ended_by_slurm(marker, state, status, batch):
        if marker.reason:
            return _failure_of_missing_rank(run, marker)
        killed = signal_name(marker.exit_code)
        return _failure_of_rank(run, _TaskEnd(marker.rank, marker.host, marker.exit_code, killed), batch)
    if state in ENDED_BY_SLURM or not run.backend.has_batch_script:
        return None
    ends = list(_task_ends(batch))
    # srun sends SIGTERM to the remaining tasks after the first failure.
    first = next((end for end in ends if end.killed != "SIGTERM"), ends[0] if ends else None)
    if first is not None:
        return _failure_of_rank(run, first._replace(rank=first.rank * run.ranks_per_task), batch)
    return _failure_of_batch_script(run, batch, status)


def _lines_of_last_attempt(batch: Iterable[str]) -> list[str]:
    """Return the lines behind the last requeue: all attempts of a job append to one log."""
    lines: list[str] = []
    for line in batch:
        lines = [] if _REQUEUED.match(line) else [*lines, line]
    return lines


def _failure_of_nodes(run: Run, launches: list[re.Match[str]]) -> RankFailure:
    """Return the failure of nodes whose slurmd cannot launch tasks. Slurm then kills all other ranks of the step."""
    hosts = list(dict.fromkeys(match["host"] for match in launches))
    words = run.record.command_line if run.record else []
    excluded = (run.record.resolved.job.resources.exclude if run.record else None) or ""
    earlier = expand(excluded) if "/" not in excluded else []  # with a slash, it is the path of a file
    option = f"--exclude={fold(dict.fromkeys([*earlier, *hosts]))}"
    end = words.index("--") if "--" in words else len(words)
    again = shlex.join([*words[:end], option, *words[end:]])
    lines = [*dict.fromkeys(match[0] for match in launches), f"submit again without it: {again}"]
    headline = f"{fold(hosts)} cannot launch tasks: {launches[0]['reason']}"
    return RankFailure(None, hosts[0], None, None, headline, "\n".join(lines), run.batch_log, fold(hosts))


def signal_name(exit_code: int | None) -> str | None:
    """Return the signal of a shell's exit code: SIGKILL for 137; None for an exit code that the program chose."""
    return next((each.name for each in signal.Signals if each + 128 == exit_code), None)


def _ended_by_slurm(marker: FirstFailure, state: JobState, status: JobStatus | None, batch: list[str]) -> bool:
    """Return whether a rank failed only because Slurm ended the job."""
    if state not in ENDED_BY_SLURM:
        return False
    if signal_name(marker.exit_code):
        return True
    # A rank that the time limit ends may still raise an exception during its shutdown.
    grace = 60
    end = _cancellation_time(batch) or (status.end if status else None)
    return state is JobState.TIMEOUT and end is not None and marker.time > end.timestamp() - grace


def _cancellation_time(batch: list[str]) -> dt.datetime | None:
    """Return when the nodes ended the job. The marker has the time of their clock, which may differ from Slurm's."""
    for match in filter(None, map(_CANCELLED.search, batch)):
        with suppress(ValueError):
            return dt.datetime.fromisoformat(match["time"])
    return None


class _TaskEnd(NamedTuple):
    """The end of one rank."""

    rank: int
    host: str
    code: int | None
    killed: str | None


def _task_ends(lines: Iterable[str]) -> Iterator[_TaskEnd]:
    """Yield the failed tasks that srun reported, in its order."""
    for match in filter(None, map(_TASK.match, lines)):
        code = int(match["code"]) if match["code"] else None
        killed = _SIGNALS[match["signal"]] if match["signal"] else signal_name(code)
        yield _TaskEnd(int(match["task"]), match["host"], code, killed)


_ADVICE = (
    (
        re.compile(
            r"environment variable \w+ expected, but not set$|^KeyError: '(LOCAL_)?(RANK|WORLD_SIZE)'$", re.MULTILINE
        ),
        "to set these variables: --set launch.bootstrap=true, or bootstrap = true in [launch] of the job file",
    ),
    (
        re.compile(r"^EOFError: EOF when reading a line$", re.MULTILINE),
        "a job has no keyboard: pass the answer as an argument of the program",
    ),
)
"""What to do about exceptions that are caused by running in a job."""


def _failure_of_rank(run: Run, end: _TaskEnd, batch: list[str]) -> RankFailure:
    rank, host, code, killed = end
    # An exception ends Python with code 1. With another code, the last traceback may be one that was handled.
    limit = LINES_AFTER_TRACEBACK if code in {1, None} and not killed else LINES_AFTER_HANDLED_TRACEBACK
    for path in run.rank_logs(rank):
        if traceback := last_traceback(_read_tail(path), limit):
            advice = [advice for error, advice in _ADVICE if error.search(traceback)]
            text = "\n".join([traceback, *advice])
            return RankFailure(rank, host, code, killed, exception_line(traceback), text, path)
    log = next((path for path in run.rank_logs(rank) if _read_tail(path).strip()), None)
    last = _last_lines(_read_tail(log) if log else "", KILLED_LINES if killed in {"SIGKILL", "SIGTERM"} else TAIL_LINES)
    # Other programs print general advice about memory (Ray). Slurm and the rank itself report facts.
    memory = [line for line in (*filter(_SLURM_MESSAGE.match, batch), *last) if _OUT_OF_MEMORY.search(line)]
    ends = [line for line in batch if killed and (match := _TASK.match(line)) and int(match["task"]) == rank]
    headline = f"killed by {killed}" if killed else "it failed" if code is None else f"exit code {code}"
    if memory:
        headline += ", out of memory"
    messages = [line for line in dict.fromkeys([*ends, *memory]) if line not in last]
    return RankFailure(rank, host, code, killed, headline, "\n".join([*last, *messages]), log)


def _failure_of_missing_rank(run: Run, marker: FirstFailure) -> RankFailure:
    """Return the failure of a rank for which the other ranks waited in vain. It has no exit code of its own."""
    log = run.rank_log(marker.rank)
    # Slurm resumes a stopped process before it kills it. The process then reports a lost connection.
    text = _read_tail(log).partition("Traceback (most recent call last)")[0]
    lines = "\n".join(_last_lines(_RANK_PREFIX_AT_END.sub("", text), KILLED_LINES))
    host = None if marker.host == UNKNOWN_HOST else marker.host
    return RankFailure(marker.rank, host, None, None, marker.reason, lines, log)


def _failure_of_batch_script(run: Run, batch: list[str], status: JobStatus | None) -> RankFailure | None:
    """Return the failure of the script itself, which may not even have started; None if it did not fail."""
    end = run.end_marker()
    failed = status.state.failed if status and status.state is not JobState.UNKNOWN else bool(end and end.exit_code)
    if not failed:
        return None
    code = end.exit_code if end else status.exit_code if status else None
    # The script runs on the first node of the job.
    host = expand(status.nodelist)[0] if status and status.nodelist else None
    log = next((path for path in run.batch_logs() if path.is_file()), None)
    if log is None:
        headline = f"its log was never written: {run.batch_log}"
        return RankFailure(None, host, code, None, headline, _explain_missing_log(run), None)
    last = [_name_script_line(line, run) for line in _last_lines("\n".join(batch), TAIL_LINES)]
    messages = [line for line in last if _SLURM_MESSAGE.match(line)] or last
    # A full disk takes no message either. It may have been emptied since, then the cause is not known.
    silent = "the disk of its logs is full" if is_disk_full(log) else "the batch script failed without a message"
    headline = messages[-1] if messages else silent
    return RankFailure(None, host, code, signal_name(code), headline, "\n".join(last), log)


def _name_script_line(line: str, run: Run) -> str:
    """Return a message of bash with the line that the user wrote, instead of a place in Slurm's copy of the script."""
    match = _BASH_MESSAGE.match(line)
    if match is None:
        return line
    try:
        text = (run.folder / SCRIPT).read_text(encoding="utf-8").splitlines()[int(match["line"]) - 1].strip()
    except (OSError, IndexError):
        return line
    return f"`{text}`: {match['message']} ({SCRIPT}, line {match['line']})"


def is_disk_full(path: Path) -> bool:
    """Return whether a disk has no room for one more block. The reserve of root does not count."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    return disk.f_bavail == 0


def _explain_missing_log(run: Run) -> str:
    version = run.record.slurm_version if run.record else None
    if LOGLESS_JOBS_VANISH.holds(parse_version(version) if version else None) is False:
        return ""
    return (
        f"Slurm {LOGLESS_JOBS_VANISH.releases} gives no reason if it cannot open a log:"
        " check on the node that the folder exists and that you may write to it"
    )


def _last_lines(text: str, limit: int) -> list[str]:
    """Return the last lines: the last state of a progress bar, and no messages of the shell around the program."""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.rstrip().split("\n")]
    return [line for line in lines if not SHELL_MESSAGE.match(line)][-limit:] if text.strip() else []


def _read_tail(path: Path) -> str:
    """Read the last part of a log, which may be huge."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


class _Traceback(NamedTuple):
    """A traceback, or a chain of them: the lines [start, end). `exception_end` follows the line of the exception."""

    start: int
    end: int
    exception_end: int


def last_traceback(text: str, limit: int = LINES_AFTER_TRACEBACK) -> str | None:
    """Return the traceback that ended a process: the last one in its log, with the chain of its causes.

    Colours and torch's prefixes (`[rank5]: `) are removed. Tracebacks that do not end a program are ignored: those of
    threads and destructors, and those with much output after them.

    Args:
        text: The log, or its end.
        limit: Lines that may follow the exception, including the further lines of its message.
    """
    lines = [_RANK_PREFIX.sub("", _ANSI.sub("", line)).rstrip() for line in text.splitlines()]
    found: _Traceback | None = None
    index = 0
    while index < len(lines):
        chain = _parse_chain(lines, index)
        if chain is None:
            index += 1
            continue
        if index == 0 or not _NOT_FATAL.match(lines[index - 1]):
            found = chain
        index = chain.end
    if found is None or len(lines) - found.exception_end > limit:
        return None
    return "\n".join(lines[found.start : found.end])


def exception_line(traceback: str) -> str:
    """Return the first line of the exception."""
    lines = traceback.splitlines()
    if "Exception Group" in lines[0]:
        undecorated = [line.strip(" |+") for line in lines]
        return next((line for line in undecorated[1:] if _EXCEPTION.match(line)), undecorated[0])
    chain = _parse_chain(lines, 0)
    return lines[chain.exception_end - 1 if chain else -1].strip()


def _parse_chain(lines: list[str], start: int) -> _Traceback | None:
    """Return the chain of tracebacks that begins at a line."""
    chain = _parse_traceback(lines, start)
    while chain is not None:
        joint = _skip_blank(lines, chain.end)
        if joint >= len(lines) or lines[joint] not in _CHAIN:
            break
        following = _parse_traceback(lines, _skip_blank(lines, joint + 1))
        if following is None:
            break
        chain = following._replace(start=start)
    return chain


def _skip_blank(lines: list[str], index: int) -> int:
    while index < len(lines) and not lines[index]:
        index += 1
    return index


def _parse_traceback(lines: list[str], start: int) -> _Traceback | None:
    """Return one traceback: its frames, the exception, and the further lines of its message."""
    head = _TRACEBACK.match(lines[start]) if start < len(lines) else None
    if head and head["indent"]:
        # The members of an exception group have bars at the left.
        end = start + 1
        while end < len(lines) and re.match(r"^ *[|+]", lines[end]):
            end += 1
        return _Traceback(start, end, end)
    if not head and not _is_syntax_error(lines, start):
        return None
    exception = start + 1
    while exception < len(lines) and (lines[exception].startswith("  ") or not lines[exception]):
        exception += 1
    exception_end = min(exception + 1, len(lines))
    end = exception_end
    # Further lines of a message have no mark. Output of a process that exits looks different.
    while (
        end < min(len(lines), exception_end + MAX_MESSAGE_LINES)
        and not _NOT_MESSAGE.match(lines[end])
        and not any(line in _CHAIN for line in lines[end : end + 2])
    ):
        end += 1
    while not lines[end - 1]:
        end -= 1
    return _Traceback(start, end, exception_end)


def _is_syntax_error(lines: list[str], start: int) -> bool:
    """Return whether Python refused to parse a file: it then prints the position without a heading."""
    if start >= len(lines) or not _SYNTAX_ERROR.match(lines[start]):
        return False
    # The source line and its marks are indented.
    after = next((line for line in lines[start + 1 : start + 6] if not line.startswith("  ")), "")
    return re.match(r"(SyntaxError|IndentationError|TabError)\b", after) is not None
