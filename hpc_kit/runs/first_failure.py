"""Why a job failed: the rank that failed first, its host, and its own words; never those of ranks that fell with it."""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.run_files import read_first_failure
from hpc_kit.slurm.nodelist import expand
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
AFTER_OTHERS = 3
TAIL_BYTES = 1 << 18

ENDED_FROM_OUTSIDE = frozenset(
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

_TASK = re.compile(
    r"^srun: error: (?P<host>[^\s:]+): tasks? (?P<tasks>[\d,-]+): "
    r"(?:Exited with exit code (?P<code>\d+)|(?P<signal>Killed|Terminated|Aborted|Segmentation fault|Bus error"
    r"|Floating point exception|Illegal instruction|Hangup|Interrupt|Trace/breakpoint trap|Out Of Memory)"
    r"(?: \(core dumped\))?)",
)
_SIGNALS = {
    "Killed": "SIGKILL",
    "Terminated": "SIGTERM",
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
    "Hangup": "SIGHUP",
    "Interrupt": "SIGINT",
    "Trace/breakpoint trap": "SIGTRAP",
    "Out Of Memory": "SIGKILL",
}
_CUT = re.compile(r"^slurmstepd\S*: error: \*\*\* .* CANCELLED AT (?P<time>\S+) DUE TO ")
_SLURM_SAYS = re.compile(r"^(?:srun|slurmstepd|slurmd|sbatch)(?:-\S+)?: (?:error|fatal): .*")
_MEMORY = re.compile(r"oom.?kill|out of memory|exceeded .*memory limit|memory cgroup", re.IGNORECASE)


SHELL_MESSAGE = re.compile(r"(?:(?:task|worker|agent): line \d+: +\d+ [A-Z]\w+.*|Terminated|Killed)$")
"""What bash says of a program that a signal ended, in the shell of its task; of SIGTERM, it may be the word alone."""


class RankFailure(NamedTuple):
    """The first failure of a job."""

    rank: int | None
    """None: the batch script itself, or Slurm."""

    host: str | None
    exit_code: int | None
    signal: str | None
    headline: str
    """One line: the exception, or what killed it."""

    text: str
    """Its own words: the traceback alone, or the last lines of its log."""

    log: Path | None
    """Where they stand."""


def find_failure(run: Run, status: JobStatus | None) -> RankFailure | None:
    """The first failure of a run; None where none can be told, as of a job that was cancelled while all went well.

    Args:
        run: Its files.
        status: What Slurm says of it, if it still does.
    """
    state = status.state if status else JobState.UNKNOWN
    batch = [line for path in run.batch_logs() for line in _tail(path).splitlines()]
    marker = read_first_failure(run.folder)
    if marker is not None and not _fell_with_the_job(marker, state, status, batch):
        killed = signal_name(marker.exit_code)
        return _of_rank(run, _TaskEnd(marker.rank, marker.host, marker.exit_code, killed), batch)
    if state in ENDED_FROM_OUTSIDE or run.is_launch:
        return None
    ends = list(_tasks(batch))
    # SIGTERM is what srun sends to those that are to end because another one did.
    first = next((end for end in ends if end.killed != "SIGTERM"), ends[0] if ends else None)
    if first is not None:
        return _of_rank(run, first._replace(rank=first.rank * run.ranks_per_task), batch)
    return _of_batch(run, batch, status)


def signal_name(exit_code: int | None) -> str | None:
    """The signal behind a shell's exit code, 137 for SIGKILL; None for a code that a program chose itself."""
    if exit_code is None or not 128 < exit_code < 128 + signal.NSIG:
        return None
    try:
        return signal.Signals(exit_code - 128).name
    except ValueError:
        return None


def _fell_with_the_job(marker: FirstFailure, state: JobState, status: JobStatus | None, batch: list[str]) -> bool:
    """Slurm ended the job, and with it this rank: killed by a signal, or by what its peers' end did to it."""
    if state not in ENDED_FROM_OUTSIDE:
        return False
    if signal_name(marker.exit_code):
        return True
    # Cut short by the time limit, a rank may still raise while it goes down.
    grace = 60
    end = _cut_short(batch) or (status.end if status else None)
    return state is JobState.TIMEOUT and end is not None and marker.time > end.timestamp() - grace


def _cut_short(batch: list[str]) -> dt.datetime | None:
    """When the nodes say that Slurm ended the job: their clock made the marker, too, and Slurm's may be another."""
    for match in filter(None, map(_CUT.search, batch)):
        with suppress(ValueError):
            return dt.datetime.fromisoformat(match["time"])
    return None


class _TaskEnd(NamedTuple):
    """How one rank ended."""

    rank: int
    host: str
    code: int | None
    killed: str | None


def _tasks(lines: Iterable[str]) -> Iterator[_TaskEnd]:
    """The ends that srun reports, in its order."""
    for match in filter(None, map(_TASK.match, lines)):
        code = int(match["code"]) if match["code"] else None
        killed = _SIGNALS[match["signal"]] if match["signal"] else signal_name(code)
        yield _TaskEnd(_first(match), match["host"], code, killed)


def _first(match: re.Match[str]) -> int:
    return int(re.split("[,-]", match["tasks"])[0])


def _of_rank(run: Run, ended: _TaskEnd, batch: list[str]) -> RankFailure:
    rank, host, code, killed = ended
    for path in run.rank_logs(rank):
        # Python ends with 1 by an exception. Who ended otherwise may have got over one long before.
        traceback = last_traceback(_tail(path), NEAR_END if code in {1, None} and not killed else AFTER_OTHERS)
        if traceback:
            return RankFailure(rank, host, code, killed, exception_line(traceback), traceback, path)
    log = next((path for path in run.rank_logs(rank) if _tail(path).strip()), None)
    last = _last_lines(_tail(log) if log else "", KILLED_LINES if killed in {"SIGKILL", "SIGTERM"} else TAIL_LINES)
    # Programs write of memory what may have been (Ray's advice); Slurm, and the rank itself, what was.
    memory = [line for line in (*filter(_SLURM_SAYS.match, batch), *last) if _MEMORY.search(line)]
    ends = [line for line in batch if killed and (match := _TASK.match(line)) and _first(match) == rank]
    told = f"killed by {killed}" if killed else "it failed" if code is None else f"exit code {code}"
    if memory:
        told += ", out of memory"
    words = [line for line in dict.fromkeys([*ends, *memory]) if line not in last]
    return RankFailure(rank, host, code, killed, told, "\n".join([*last, *words]), log)


def _of_batch(run: Run, batch: list[str], status: JobStatus | None) -> RankFailure | None:
    """The script itself failed, or never began."""
    end = run.end_marker()
    failed = status.state.failed if status and status.state is not JobState.UNKNOWN else bool(end and end.exit_code)
    if not failed:
        return None
    code = end.exit_code if end else status.exit_code if status else None
    # The script runs on the first of its nodes.
    host = expand(status.nodelist)[0] if status and status.nodelist else None
    log = next((path for path in run.batch_logs() if path.is_file()), None)
    if log is None:
        return RankFailure(None, host, code, None, f"its log was never written: {run.batch_log}", _silence(run), None)
    last = _last_lines("\n".join(batch), TAIL_LINES)
    said = [line for line in last if _SLURM_SAYS.match(line)] or last
    told = said[-1] if said else "the batch script failed without a word"
    return RankFailure(None, host, code, signal_name(code), told, "\n".join(last), log)


def _silence(run: Run) -> str:
    """What is to be said of a job that left no log, by the release that ran it."""
    told = run.record.slurm_version if run.record else None
    if LOGLESS_JOBS_VANISH.holds(parse_version(told) if told else None) is False:
        return ""
    return (
        f"Slurm {LOGLESS_JOBS_VANISH.releases} gives no reason where a log cannot be opened:"
        " see whether its folder is there, and may be written to, on the node"
    )


def _last_lines(text: str, most: int) -> list[str]:
    """The last lines; of a progress bar what it showed last, and nothing of the shell around the program."""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.rstrip().split("\n")]
    return [line for line in lines if not SHELL_MESSAGE.match(line)][-most:] if text.strip() else []


def _tail(path: Path) -> str:
    """The last part of a log, which may be huge."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


NEAR_END = 60
"""Lines that may follow the traceback a process died of: what libraries say at the exit, not the training going on."""

MAX_MESSAGE = 40
"""Lines of one exception's message that are taken."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK = re.compile(r"^\[rank\d+\]: ?")
_HEAD = re.compile(r"^(?P<indent>[ |+]*)(?:Exception Group )?Traceback \(most recent call last\):$")
_SYNTAX = re.compile(r'^  File ".*", line \d+$')
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::|$)")
_NOT_FATAL = re.compile(
    r"^(Exception ignored |Exception in thread |Error in atexit|--- Logging error ---|Exception in default)"
)
_NOISE = re.compile(
    r"^(srun: |slurmstepd: |\[?[WEIF]\d{4} |\[?[WEIF]\d{3,4}[ \]]|\[rank\d+\]:\[|terminate called|Fatal Python error"
    r"|Exception ignored |Exception in |Error in atexit|Traceback \()"
)


class _Part(NamedTuple):
    """One traceback, or a chain of them: the lines [start, end); `said` is the line behind the exception itself."""

    start: int
    end: int
    said: int


def last_traceback(text: str, most_after: int = NEAR_END) -> str | None:
    """The traceback that ended a process: the last one in its log, whole, with all that led to it.

    Parts joined by "During handling ..." or "... direct cause ..." belong together. What torch puts before each line
    (`[rank5]: `) and colours are taken off. Tracebacks that a program lives on from are not meant: of a thread, of a
    destructor, or with much output behind them.

    Args:
        text: The log, or its end.
        most_after: Lines that may follow the exception, its message's further lines among them.
    """
    lines = [_RANK.sub("", _ANSI.sub("", line)).rstrip() for line in text.splitlines()]
    found: _Part | None = None
    index = 0
    while index < len(lines):
        chain = _chain(lines, index)
        if chain is None:
            index += 1
            continue
        if index == 0 or not _NOT_FATAL.match(lines[index - 1]):
            found = chain
        index = chain.end
    if found is None or len(lines) - found.said > most_after:
        return None
    return "\n".join(lines[found.start : found.end])


def exception_line(traceback: str) -> str:
    """The exception itself, on one line."""
    lines = traceback.splitlines()
    if "Exception Group" in lines[0]:
        drawn = [line.strip(" |+") for line in lines]
        return next((line for line in drawn[1:] if _EXCEPTION.match(line)), drawn[0])
    part = _chain(lines, 0)
    return lines[part.said - 1 if part else -1].strip()


def _chain(lines: list[str], start: int) -> _Part | None:
    """The chain of tracebacks that begins at a line."""
    part = _one(lines, start)
    while part is not None:
        joint = _after_blanks(lines, part.end)
        if joint >= len(lines) or lines[joint] not in _CHAIN:
            break
        further = _one(lines, _after_blanks(lines, joint + 1))
        if further is None:
            break
        part = further._replace(start=start)
    return part


def _after_blanks(lines: list[str], index: int) -> int:
    while index < len(lines) and not lines[index]:
        index += 1
    return index


def _one(lines: list[str], start: int) -> _Part | None:
    """One traceback: its frames, then the exception and the further lines of its message."""
    head = _HEAD.match(lines[start]) if start < len(lines) else None
    if head and head["indent"]:
        end = _group_end(lines, start)
        return _Part(start, end, end)
    if not head and not _is_syntax_error(lines, start):
        return None
    said = start + 1
    while said < len(lines) and (lines[said].startswith("  ") or not lines[said]):
        said += 1
    said = min(said + 1, len(lines))
    end = said
    # A message goes on without any mark; what a process says while it exits looks otherwise.
    while end < min(len(lines), said + MAX_MESSAGE) and not _NOISE.match(lines[end]) and not _joins(lines, end):
        end += 1
    while not lines[end - 1]:
        end -= 1
    return _Part(start, end, said)


def _joins(lines: list[str], index: int) -> bool:
    return any(line in _CHAIN for line in lines[index : index + 2])


def _is_syntax_error(lines: list[str], start: int) -> bool:
    """A script that cannot be parsed gives its place and the fault alone, without a heading."""
    if start >= len(lines) or not _SYNTAX.match(lines[start]):
        return False
    for line in lines[start + 1 : start + 6]:
        if re.match(r"(SyntaxError|IndentationError|TabError)\b", line):
            return True
        if not line.startswith("  "):
            return False
    return False


def _group_end(lines: list[str], start: int) -> int:
    """An exception group draws its members with bars at the left."""
    index = start + 1
    while index < len(lines) and re.match(r"^ *[|+]", lines[index]):
        index += 1
    return index
