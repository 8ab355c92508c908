"""Handing a script to sbatch: once, with its answer understood, and never a second time because the first was lost."""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import AnswerNo, SlurmUnavailable, SubmitRefused
from hpc_kit.runs.access import access_of
from hpc_kit.script.quoting import pasted
from hpc_kit.script.render import render_resolved
from hpc_kit.slurm.client import Completed
from hpc_kit.slurm.command_environment import drop_overriding_variables, submit_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hpc_kit.runs.access import Access
    from hpc_kit.slurm.client import Completed
    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.submission.deferred_signals import DeferredSignals


SBATCH_SECONDS = 300.0
"""Sbatch itself tries for minutes to reach a busy controller."""

INTERRUPTED_SECONDS = 10.0
_KILLED_SECONDS = 2.0

_IDS = (
    re.compile(r"^Submitted batch job (\d+)(?: on cluster (\S+))?", re.MULTILINE),
    re.compile(r"^(\d+)(?:;(\S+))?$", re.MULTILINE),
    re.compile(r"\bjob (\d+)()"),
)


class SbatchResult(NamedTuple):
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


def run_sbatch(
    resolved: Resolved, script: Path, access: Access, cwd: Path, meanwhile: Callable[[], object], ends: DeferredSignals
) -> SbatchResult:
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


def _answer(
    process: subprocess.Popen[str], meanwhile: Callable[[], object], ends: DeferredSignals
) -> tuple[str, str, bool]:
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


def _without_id(
    answer: Completed, resolved: Resolved, script: Path, access: Access, ends: DeferredSignals
) -> SbatchResult:
    """The job of an answer that was lost on its way, or the error."""
    from hpc_kit.submission.lost_answers import find_job
    from hpc_kit.submission.sbatch import ANSWER_LOST, refusal_error, sbatch_message

    if answer.returncode > 0 and not ANSWER_LOST.search(sbatch_message(answer)):
        raise refusal_error(resolved, access, answer)
    try:
        with ends.heard_at_once():
            found = find_job(script, access)
    except KeyboardInterrupt:
        # Whoever does not want to wait leaves behind what finds the job later.
        found = None
    if found is None:
        raise _lost(answer, resolved, script)
    return SbatchResult(found.job_id, found.cluster)


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


def _told(answer: Completed) -> SbatchResult | None:
    """The job's id and its cluster; sites put words of their own around them.

    Slurm's own sentence counts whatever the exit status: a site's wrapper may end badly behind it.
    """
    patterns = _IDS if answer.returncode == 0 else _IDS[:1]
    matches = (pattern.search(answer.stdout) for pattern in patterns)
    return next((SbatchResult(match[1], (match[2] or "").lower() or None) for match in matches if match), None)


def _lost(answer: Completed, resolved: Resolved, script: Path) -> AnswerLost:
    from hpc_kit.submission.sbatch import sbatch_message
    from hpc_kit.submission.staging import read_pickle_list

    words = sbatch_message(answer) if answer.returncode > 0 else "it was ended before it had answered"
    if answer.returncode == 0:
        words = f"no job id in its answer: {answer.stdout.strip()!r}"
    # Of functions, two submissions of the same script are two.
    later = "the next submission looks for it first, and gives it its functions; the same again would be a second job"
    if read_pickle_list(script.parent) is None:
        later = "submit it again later: then it is looked for first, and found by the path of its script"
    return AnswerLost(
        f"sbatch did not tell whether it took {resolved.job.name}",
        found=words,
        remedy=f"{later}. By hand:\nsqueue --me --states=all --format='%i %T %o' | grep {script.parent.name}",
    )


Remedy = str | Callable[["Access"], str]

_MINE = "sacctmgr show associations user=$USER format=account%30,partition%20,qos%40"
_SINFO_SECONDS = 10.0

ANSWER_LOST = re.compile(
    r"socket timed out|zero bytes|transport endpoint|connection reset|connection timed out|broken pipe"
    r"|insane message|interrupted system call|communication connection failure",
    re.IGNORECASE,
)
"""The controller may have taken the job although sbatch did not hear of it."""

_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|connection refused|configuration source|munge|authentication"
    r"|controller .*not respond|backup controller|unable to establish",
    re.IGNORECASE,
)


def refusal_error(resolved: Resolved, access: Access, answer: Completed) -> AnswerNo:
    """The error for an sbatch that gave no job: its own words first, then what to do.

    Args:
        resolved: The job.
        access: The Slurm that was asked.
        answer: What sbatch did.
    """
    from hpc_kit.slurm.job_status import suggest_remedy

    words = sbatch_message(answer)
    if _UNREACHABLE.search(words):
        what = "Slurm does not answer, and the job was not submitted"
        return SlurmUnavailable(what, found=words, remedy=suggest_remedy(words))
    return SubmitRefused(f"sbatch refused {resolved.job.name}", found=words, remedy=_remedy(words, resolved, access))


def sbatch_message(answer: Completed) -> str:
    """What sbatch said, without its name before each line."""
    text = answer.stderr.strip() or answer.stdout.strip() or f"exit status {answer.returncode}, without a word"
    return re.sub(r"^sbatch: (?:error: |fatal: )?", "", text, flags=re.MULTILINE)


def _remedy(words: str, resolved: Resolved, access: Access) -> str:
    if re.search(r"invalid partition|no partition specified|default partition", words, re.IGNORECASE):
        return _partition(resolved.job.resources.partition, access)
    if re.search(r"node configuration|node count|processors|cpu count|requested nodes?", words, re.IGNORECASE):
        return _nodes(resolved, access)
    for said, remedy in _REMEDIES:
        if re.search(said, words, re.IGNORECASE):
            return remedy if isinstance(remedy, str) else remedy(access)
    return f"mend what it names; the script: {pasted(resolved.again)}" if resolved.again else "mend what it names"


def _sinfo(access: Access, field: str) -> list[str]:
    """Values of one field over all partitions; none where sinfo does not answer."""
    try:
        answer = access.ask(["sinfo", "--noheader", f"--format={field}"], timeout=_SINFO_SECONDS)
    except SlurmUnavailable:
        return []
    return sorted({line.strip() for line in answer.stdout.splitlines() if line.strip()})


def _near(wanted: str, known: list[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(wanted, known, n=3) or known[:8]


def _partition(wanted: str | None, access: Access) -> str:
    known = _sinfo(access, "%R")
    if not known:
        return "partitions that there are: sinfo --summarize"
    if wanted is None:
        return f"name one: --partition={' or '.join(known[:8])}"
    return " or ".join(f"--partition={name}" for name in _near(wanted, known))


def _hosts(access: Access) -> str:
    known = _sinfo(access, "%N")
    return f"nodes that there are: {', '.join(known)}" if known else "nodes that there are: sinfo --format=%N"


def _features(access: Access) -> str:
    known = sorted({word for line in _sinfo(access, "%f") for word in line.split(",")} - {"(null)"})
    return f"features that there are: {', '.join(known)}" if known else "no node has features: leave --constraint out"


def _generic(access: Access) -> str:
    known = [line for line in _sinfo(access, "%P %G") if not line.endswith("(null)")]
    return f"what the partitions have: {'; '.join(known)}" if known else "no node here has GPUs or other gres"


def _time(access: Access) -> str:
    limits = ", ".join(_sinfo(access, "%R %l"))
    return f"--time within the partition's limit: {limits}" if limits else "a smaller --time: sinfo --format='%R %l'"


def _nodes(resolved: Resolved, access: Access) -> str:
    known = _sinfo(access, "%R: %D nodes of %c CPUs, %m MiB, gres %G")
    resources = resolved.job.resources
    each = "the site's CPUs for their GPUs" if resolved.cpus_by_slurm else f"{resolved.cpus} CPUs"
    asked = f"asked for: {resolved.nodes} nodes, {resolved.ntasks} tasks x {each}"
    memory = [f"{name} {value}" for name, value in resources.given().items() if name.startswith("mem")]
    asked = ", ".join([asked, *memory])
    return "\n".join([asked, *known[:8]]) if known else f"{asked}; there are: sinfo --format='%R %D %c %m %G'"


_REMEDIES: tuple[tuple[str, Remedy], ...] = (
    (r"group not permitted|not permitted to use this partition", "another --partition, or ask to be let in"),
    (r"invalid account", f"--account=... of yours: {_MINE}"),
    (r"invalid qos", f"--qos=... of yours: {_MINE}"),
    (r"time limit", _time),
    (r"node name", _hosts),
    (r"memory", "less --mem: sinfo --format='%R %m' tells what the nodes have, in MiB"),
    (r"generic resource|\bgres\b", _generic),
    (r"invalid feature", _features),
    (r"reservation", "reservations that there are: scontrol show reservation"),
    (r"job violates|accounting/qos policy|submit limit|max.*jobs", f"fewer or smaller jobs at a time; {_MINE}"),
    (r"job array", "indices below MaxArraySize: scontrol show config | grep MaxArraySize"),
    (r"dependency", "jobs that are still known: squeue --me"),
    (r"wckey", "leave --wckey out, or one of yours: sacctmgr show wckeys user=$USER"),
    (r"license", "licences that there are: scontrol show licenses"),
    (
        r"unrecognized option|invalid option|ambiguous",
        "this Slurm does not know that option: leave it out (sbatch --help)",
    ),
)


TRIAL_SECONDS = 120.0
"""The scheduler may think for long on a large site."""

_START = re.compile(
    r"^sbatch: Job \d+ to start at (?P<start>\S+) (?:a )?using (?P<cpus>\d+) processors on (?:nodes )?(?P<nodes>\S+)"
    r"(?: in partition (?P<partition>\S+))?",
    re.MULTILINE,
)
_PREEMPTS = re.compile(r"^sbatch:\s+Preempts: (?P<ids>\S+)", re.MULTILINE)


class StartEstimate(NamedTuple):
    """When and where a job would start, were it submitted now."""

    start: dt.datetime
    """On the controller's clock, without a zone, as Slurm gives times."""

    nodes: str
    """A host list."""

    cpus: int
    partition: str | None
    preempts: tuple[str, ...]
    """Jobs that would have to make room for it."""


def estimate_start(
    resolved: Resolved, *, root: Path, standalone: bool = False, environ: Mapping[str, str] | None = None
) -> StartEstimate:
    """Ask when a job would start; nothing is submitted, and no file of a run is made.

    Args:
        resolved: The job, fitted to its cluster.
        root: The user's project.
        standalone: Need no hpc_kit on the nodes.
        environ: The environment to ask from (default: this process's).

    Raises:
        SubmitRefused: Sbatch would not take it.
        SlurmUnavailable: There is no Slurm, or it does not answer.
    """
    from hpc_kit.submission.sbatch import refusal_error, sbatch_message

    text = render_resolved(resolved, standalone=standalone, root=root)
    access = access_of(resolved.cluster, environ)
    access.require(resolved.cluster.name)
    environ, _ = drop_overriding_variables(submit_environment(access.environ), text)
    # The time is read as Slurm prints it where nobody wishes for another form.
    access = access._replace(environ={name: each for name, each in environ.items() if name != "SLURM_TIME_FORMAT"})
    with tempfile.NamedTemporaryFile("w", prefix="hpc_kit.", suffix=".sbatch", encoding="utf-8") as script:
        script.write(text)
        script.flush()
        answer = access.ask(["sbatch", "--test-only", script.name], timeout=TRIAL_SECONDS)
    if answer.returncode:
        raise refusal_error(resolved, access, answer)
    found = parse_start_estimate(answer.stderr)
    if found is None:
        raise SlurmUnavailable(
            "sbatch --test-only does not say when the job would start",
            found=sbatch_message(answer),
            remedy="submit it, and ask then: hpc-kit status",
        )
    return found


def parse_start_estimate(stderr: str) -> StartEstimate | None:
    """What `sbatch --test-only` says; None where that is something else.

    Source: printed by sbatch 22.05 and, without `a`, by later ones; seen on both engines.
    """
    said = _START.search(stderr)
    if said is None:
        return None
    try:
        start = dt.datetime.fromisoformat(said["start"])
    except ValueError:
        return None
    preempts = _PREEMPTS.search(stderr)
    ids = tuple(preempts["ids"].split(",")) if preempts else ()
    return StartEstimate(start, said["nodes"], int(said["cpus"]), said["partition"], ids)
