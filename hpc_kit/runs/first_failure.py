"""The failure of a run for the commands that show it in a few lines: the answer of `why`, with the end of the log."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.run_files import SCRIPT, read_first_failure
from hpc_kit.runs.logs import read_tail
from hpc_kit.slurm.nodelist import expand
from hpc_kit.slurm.states import ENDED_BY_SLURM, JobState

if TYPE_CHECKING:
    from pathlib import Path

    from hpc_kit.runs.run_folders import Run
    from hpc_kit.runs.why.verdicts import Verdict
    from hpc_kit.slurm.job_status import JobStatus

TAIL_LINES = 20
KILLED_LINES = 5
TAIL_BYTES = 1 << 18

MAX_BYTES = 1 << 26
"""Bytes of logs that are read for one failure. Of larger logs, the ends are read."""

SHELL_MESSAGE = re.compile(r"(?:(?:.*/)?(?:task|worker|agent)(?:\.sh)?: line \d+: +\d+ [A-Z]\w+.*|Terminated|Killed)$")
"""Bash's message in a task's shell about a program that a signal ended; for SIGTERM it may be a single word."""

_BASH_MESSAGE = re.compile(r"\S*/slurm_script: line (?P<line>\d+): (?P<message>.*)")


class RankFailure(NamedTuple):
    """The failure of a job."""

    rank: int | None
    """None: the batch script, a node, or the job as a whole."""

    host: str | None
    exit_code: int | None
    signal: str | None
    headline: str
    """The cause: the sentence of `hpc-kit why`."""

    text: str
    """The traceback, or the last lines of the log."""

    log: Path | None
    """The log with this text."""

    fix: str = ""
    """Advice that begins with an imperative."""


def find_failure(run: Run, status: JobStatus | None, state: JobState = JobState.UNKNOWN) -> RankFailure | None:
    """Return the failure of a run; None if it has not failed by itself, for example in a cancelled job.

    `status` is None if the scheduler does not know the job; `state` is then its state.
    """
    from hpc_kit.runs.why.report import mask_secrets
    from hpc_kit.runs.why.run_evidence import explain_run

    state = status.state if status and status.state is not JobState.UNKNOWN else state
    marker, end = read_first_failure(run.folder), run.end_marker()
    if state is JobState.COMPLETED or not (state.failed or marker or (end and end.exit_code)):
        return None
    verdict = explain_run(run, status, state, max_bytes=MAX_BYTES)
    by_slurm = state in ENDED_BY_SLURM and not (verdict.is_own_failure and (marker or verdict.host))
    if by_slurm or verdict.cause.startswith("did not fail"):
        return None
    code = verdict.exit_code
    if verdict.rank is None:
        code = end.exit_code if end else status.exit_code if status else None
    text, log = _text_and_log(run, verdict)
    host = verdict.host
    if host is None and verdict.rank is None and status and status.nodelist:
        host = expand(status.nodelist)[0]  # the batch script runs on the first node
    if status is None and marker is None and verdict.cause.startswith("unknown") and not text:
        return None  # the sentence about the state of the run contains more
    headline = mask_secrets(verdict.cause).removeprefix("unknown: ")
    # The traceback stands below this line, and the fix of an exception without a rule is to read it.
    fix = "" if verdict.class_ == "python-exception" else verdict.fix
    return RankFailure(verdict.rank, host, code, signal_name(code), headline, text, log, fix)


def find_hidden_failure(run: Run) -> str | None:
    """Return the cause if the training of a job with exit status 0 has certainly failed."""
    from hpc_kit.runs.why.report import mask_secrets
    from hpc_kit.runs.why.run_evidence import explain_run

    verdict = explain_run(run, None, JobState.COMPLETED, max_bytes=MAX_BYTES)
    failed = verdict.confidence == "certain" and not verdict.cause.startswith(("did not fail", "unknown"))
    return mask_secrets(verdict.cause) if failed else None


def _text_and_log(run: Run, verdict: Verdict) -> tuple[str, Path | None]:
    """Return the traceback, or the last lines of the log with the lines that show the cause; and the log."""
    logs = run.batch_logs() if verdict.rank is None else (*run.rank_logs(verdict.rank), *run.batch_logs())
    log = next((path for path in logs if read_tail(path, TAIL_BYTES).strip()), None)
    if verdict.traceback:
        return verdict.traceback, log
    killed = verdict.class_ in {"killed", "host-memory", "late-rank"}
    tail = read_tail(log, TAIL_BYTES) if log else ""
    if verdict.class_ == "late-rank":
        # Slurm resumes a stopped process before it kills it. The process then reports a lost connection.
        tail = tail.partition("Traceback (most recent call last)")[0].rpartition("\n")[0]
    last = _last_lines(tail, KILLED_LINES if killed else TAIL_LINES)
    proofs = [proof.text for proof in verdict.evidence if proof.file.endswith((".log", ".out", ".err"))]
    lines = [*last, *(text for text in dict.fromkeys(proofs) if text not in last)]
    return "\n".join(_name_script_line(line, run) for line in lines), log


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


def signal_name(exit_code: int | None) -> str | None:
    """Return the signal of a shell's exit code: SIGKILL for 137; None for an exit code that the program chose."""
    return next((each.name for each in signal.Signals if each + 128 == exit_code), None)


def _last_lines(text: str, limit: int) -> list[str]:
    """Return the last lines: the last state of a progress bar, and no messages of the shell around the program."""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.rstrip().split("\n")]
    return [line for line in lines if not SHELL_MESSAGE.match(line)][-limit:] if text.strip() else []
