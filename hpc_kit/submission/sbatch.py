"""Handing a script to sbatch: once, with its answer understood, and never a second time because the first was lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm.client import Completed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hpc_kit.runs.access import Access
    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.submission.deferred_signals import Ends

SBATCH_SECONDS = 300.0
"""Sbatch itself tries for minutes to reach a busy controller."""

INTERRUPTED_SECONDS = 10.0
_KILLED_SECONDS = 2.0

_IDS = (
    re.compile(r"^Submitted batch job (\d+)(?: on cluster (\S+))?", re.MULTILINE),
    re.compile(r"^(\d+)(?:;(\S+))?$", re.MULTILINE),
    re.compile(r"\bjob (\d+)()"),
)


class Answer(NamedTuple):
    """What became of a script."""

    job_id: str
    cluster: str | None
    """Slurm's own name of the cluster that took it, where sbatch tells: of several it chooses one."""

    interrupted: bool = False
    """Ctrl-C came meanwhile."""


class AnswerLost(SlurmUnavailable):
    """Sbatch gave no answer; the job may be in the queue."""


class SubmitInterrupted(KeyboardInterrupt):
    """Ctrl-C while sbatch was at work: the job is in the queue, its record is written.

    Args:
        job_id: Its id.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} is submitted and goes on; to end it: scancel {job_id}")
        self.job_id = job_id


def hand_over(
    resolved: Resolved, script: Path, access: Access, cwd: Path, meanwhile: Callable[[], object], ends: Ends
) -> Answer:
    """Give a script to sbatch.

    Args:
        resolved: The job, for the words of an error.
        script: The file; nothing else ever has its path.
        access: The Slurm, with the environment for sbatch.
        cwd: Where sbatch runs, and so where the job does unless it says otherwise.
        meanwhile: What to import while sbatch is at work.
        ends: Held: between the start of sbatch and its answer none of them may be lost.

    Raises:
        SubmitRefused: Sbatch took no job.
        AnswerLost: It cannot be known whether it took the job.
        SlurmUnavailable: It could not be asked.
    """
    process = _start(["sbatch", str(script)], access.environ, cwd)
    try:
        out, err, interrupted = _answer(process, meanwhile, ends)
    except BaseException:
        _kill(process)
        raise
    code = process.poll()
    answer = Completed(("sbatch", str(script)), -signal.SIGKILL if code is None else code, out, err)
    told = _told(answer) or _without_id(answer, resolved, script, access, ends)
    return told._replace(interrupted=interrupted)


def _answer(process: subprocess.Popen[str], meanwhile: Callable[[], object], ends: Ends) -> tuple[str, str, bool]:
    """What sbatch says, and whether Ctrl-C came meanwhile."""
    try:
        if not ends.heard:
            with ends.heard_at_once():
                with suppress(ImportError):
                    meanwhile()
                return *process.communicate(timeout=SBATCH_SECONDS), False
    except subprocess.TimeoutExpired:
        return *_kill(process), False
    except KeyboardInterrupt:
        pass
    # sbatch has its own session, so it goes on, and takes well under a second; a second Ctrl-C does not wait for it.
    try:
        with ends.heard_at_once():
            return *process.communicate(timeout=INTERRUPTED_SECONDS), True
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        return *_kill(process), True


def _without_id(answer: Completed, resolved: Resolved, script: Path, access: Access, ends: Ends) -> Answer:
    """The job of an answer that was lost on its way, or the error."""
    from hpc_kit.submission.lost_answers import look
    from hpc_kit.submission.refusals import LOST, own_words, refusal

    if answer.returncode > 0 and not LOST.search(own_words(answer)):
        raise refusal(resolved, access, answer)
    try:
        with ends.heard_at_once():
            found = look(script, access)
    except KeyboardInterrupt:
        # Whoever does not want to wait leaves behind what finds the job later.
        found = None
    if found is None:
        raise _lost(answer, resolved, script)
    return Answer(found.job_id, found.cluster)


def _start(argv: list[str], environ: Mapping[str, str], cwd: Path) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise SlurmUnavailable(
            "cannot run sbatch",
            found=f"{error.filename}: {error.strerror}",
            remedy="run this on a login node, or add --cluster local for the embedded Slurm",
        ) from error


def _kill(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End it with all that it has started: a site's wrapper leaves the real sbatch behind, which holds the pipes."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        out, err = process.communicate(timeout=_KILLED_SECONDS)
    except subprocess.TimeoutExpired as error:  # what has left the session goes on holding them
        return _text(error.stdout), _text(error.stderr)
    return out, err


def _text(read: bytes | str | None) -> str:
    """What had come until a time-out, which is not decoded yet."""
    return read.decode(errors="replace") if isinstance(read, bytes) else read or ""


def _told(answer: Completed) -> Answer | None:
    """The job's id and its cluster; sites put words of their own around them.

    Slurm's own sentence counts whatever the exit status: a site's wrapper may end badly behind it.
    """
    patterns = _IDS if answer.returncode == 0 else _IDS[:1]
    matches = (pattern.search(answer.stdout) for pattern in patterns)
    return next((Answer(match[1], (match[2] or "").lower() or None) for match in matches if match), None)


def _lost(answer: Completed, resolved: Resolved, script: Path) -> AnswerLost:
    from hpc_kit.submission.pickles import listed
    from hpc_kit.submission.refusals import own_words

    words = own_words(answer) if answer.returncode > 0 else "it was ended before it had answered"
    if answer.returncode == 0:
        words = f"no job id in its answer: {answer.stdout.strip()!r}"
    # Of functions, two submissions of the same script are two.
    later = "the next submission looks for it first, and gives it its functions; the same again would be a second job"
    if listed(script.parent) is None:
        later = "submit it again later: then it is looked for first, and found by the path of its script"
    return AnswerLost(
        f"sbatch did not tell whether it took {resolved.job.name}",
        found=words,
        remedy=f"{later}. By hand:\nsqueue --me --states=all --format='%i %T %o' | grep {script.parent.name}",
    )
