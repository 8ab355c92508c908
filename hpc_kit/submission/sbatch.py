"""Runs sbatch: submits a script exactly once, explains refusals, and asks the scheduler for a start time."""

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
from hpc_kit.script.quoting import copyable_command
from hpc_kit.slurm.client import Completed, SlurmClient
from hpc_kit.slurm.command_environment import drop_overriding_variables, submit_environment
from hpc_kit.slurm.units import format_count
from hpc_kit.spec.cluster_client import open_client
from hpc_kit.submission.exclusions import exclude_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.submission.deferred_signals import DeferredSignals

SBATCH_SECONDS = 300.0
"""sbatch itself tries for minutes to reach a busy controller."""

SLOW_SECONDS = 5.0
"""sbatch usually answers within a second."""

INTERRUPTED_SECONDS = 10.0
"""After Ctrl-C, sbatch has this long to answer."""

_KILLED_SECONDS = 2.0
"""Time to read the output of a killed sbatch."""

START_ESTIMATE_SECONDS = 120.0
"""The scheduler of a large site may take long."""

_SINFO_SECONDS = 10.0

_JOB_ID = (
    re.compile(r"^Submitted batch job (\d+)(?: on cluster (\S+))?", re.MULTILINE),
    re.compile(r"^(\d+)(?:;(\S+))?$", re.MULTILINE),
    re.compile(r"\bjob (\d+)()"),  # the empty group stands for the cluster
)
"""Answers with the id of the job and perhaps its cluster: Slurm's own, that of --parsable, and a site's wrapper's."""

ANSWER_LOST = re.compile(
    r"socket timed out|zero bytes|transport endpoint|connection reset|connection timed out|broken pipe"
    r"|insane message|interrupted system call|communication connection failure",
    re.IGNORECASE,
)
"""Errors of sbatch after which the job may be in the queue."""

_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|connection refused|configuration source|munge|authentication"
    r"|controller .*not respond|backup controller|unable to establish",
    re.IGNORECASE,
)

_START = re.compile(
    r"^sbatch: Job \d+ to start at (?P<start>\S+) (?:a )?using (?P<cpus>\d+) processors on (?:nodes )?(?P<nodes>\S+)"
    r"(?: in partition (?P<partition>\S+))?",
    re.MULTILINE,
)
_PREEMPTS = re.compile(r"^sbatch:\s+Preempts: (?P<ids>\S+)", re.MULTILINE)


class SbatchResult(NamedTuple):
    """A job that sbatch submitted."""

    job_id: str
    cluster: str | None
    """Slurm's own name of the cluster, if sbatch printed it: it chooses one of several."""

    interrupted: bool = False
    """Ctrl-C came while sbatch ran."""


class AnswerLost(SlurmUnavailable):
    """sbatch gave no answer; the job may be in the queue."""


class SubmitInterrupted(KeyboardInterrupt):
    """Ctrl-C came while sbatch ran. The job is in the queue, and its record is written."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} was submitted and continues; to cancel it: scancel {job_id}")
        self.job_id = job_id


def run_sbatch(
    resolved: Resolved,
    script: Path,
    client: SlurmClient,
    cwd: Path,
    meanwhile: Callable[[], object],
    signals: DeferredSignals,
    on_slow: Callable[[], object] = lambda: None,
    options: Sequence[str] = (),
) -> SbatchResult:
    """Submit a script whose path no other submission uses: after a lost answer, the path identifies the job.

    See `submit_script` for `meanwhile` and `on_slow`.

    Raises:
        SubmitRefused: sbatch refused the job.
        AnswerLost: It is unknown whether Slurm has the job.
        SlurmUnavailable: sbatch cannot run, or Slurm does not answer.
    """
    argv = ["sbatch", *options, str(script)]
    process = _start(argv, client.environ, cwd)
    try:
        out, err, interrupted = _communicate(process, meanwhile, signals, on_slow)
    except BaseException:
        _kill_with_children(process)
        raise
    code = process.poll()
    answer = Completed(tuple(argv), -signal.SIGKILL if code is None else code, out, err)
    # Without an id in the answer, squeue shows whether Slurm has the job.
    result = _parse_result(answer) or _find_submitted_job(answer, resolved, script, client, signals)
    return result._replace(interrupted=interrupted)


def _communicate(
    process: subprocess.Popen[str],
    meanwhile: Callable[[], object],
    signals: DeferredSignals,
    on_slow: Callable[[], object],
) -> tuple[str, str, bool]:
    """Return the output and the errors of sbatch, and whether Ctrl-C came."""
    try:
        if not signals.received:
            with signals.interruptible():
                with suppress(ImportError):  # the caller imports the module again, and reports the error
                    meanwhile()
                try:
                    return *process.communicate(timeout=SLOW_SECONDS), False
                except subprocess.TimeoutExpired:
                    on_slow()
                return *process.communicate(timeout=SBATCH_SECONDS - SLOW_SECONDS), False
    except subprocess.TimeoutExpired:
        return *_kill_with_children(process), False
    except KeyboardInterrupt:
        pass
    # sbatch has its own session, so Ctrl-C does not reach it. Wait for its answer; a second Ctrl-C kills it.
    try:
        with signals.interruptible():
            return *process.communicate(timeout=INTERRUPTED_SECONDS), True
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        return *_kill_with_children(process), True


def _find_submitted_job(
    answer: Completed, resolved: Resolved, script: Path, client: SlurmClient, signals: DeferredSignals
) -> SbatchResult:
    """Return the job if Slurm has it although the answer has no id. Raise an error otherwise."""
    from hpc_kit.submission.lost_answers import find_job

    if answer.returncode > 0 and not ANSWER_LOST.search(sbatch_message(answer)):
        raise refusal_error(resolved, client, answer)
    try:
        with signals.interruptible():
            found = find_job(script, client)
    except KeyboardInterrupt:
        found = None  # the next submission looks for the job again
    if found is None:
        raise _answer_lost_error(answer, resolved, script)
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


def _kill_with_children(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Kill sbatch with its children: a site's wrapper leaves the real sbatch running, which keeps the pipes open."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        out, err = process.communicate(timeout=_KILLED_SECONDS)
    except subprocess.TimeoutExpired as error:  # A child that left the session keeps the pipes open.
        return _decode(error.stdout), _decode(error.stderr)
    return out, err


def _decode(output: bytes | str | None) -> str:
    # TimeoutExpired has bytes, even in text mode.
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _parse_result(answer: Completed) -> SbatchResult | None:
    """Return the job id and the cluster; a site's wrapper may print more text around them.

    Slurm's own sentence counts with any exit status: the wrapper may fail after sbatch has submitted the job.
    """
    patterns = _JOB_ID if answer.returncode == 0 else _JOB_ID[:1]
    matches = (pattern.search(answer.stdout) for pattern in patterns)
    return next((SbatchResult(match[1], (match[2] or "").lower() or None) for match in matches if match), None)


def _answer_lost_error(answer: Completed, resolved: Resolved, script: Path) -> AnswerLost:
    from hpc_kit.submission.staging import read_pickle_list

    found = sbatch_message(answer) if answer.returncode > 0 else "it was killed before it answered"
    if answer.returncode == 0:
        found = f"no job id in its answer: {answer.stdout.strip()!r}"
    remedy = "submit the job again later: hpc-kit then first looks for this one by the path of its script"
    if read_pickle_list(script.parent) is not None:
        # Two submissions of functions with the same script are two jobs.
        remedy = (
            "make another submission: it first looks for this job and gives it its functions; repeating this one "
            "would create a second job"
        )
    return AnswerLost(
        f"sbatch did not report whether it accepted {resolved.job.name}",
        found=found,
        remedy=f"{remedy}. By hand:\nsqueue --me --states=all --format='%i %T %o' | grep {script.parent.name}",
    )


def refusal_error(resolved: Resolved, client: SlurmClient, answer: Completed) -> AnswerNo:
    """Return the error for an sbatch that submitted nothing: its message, and what to do."""
    from hpc_kit.slurm.job_status import suggest_remedy

    message = sbatch_message(answer)
    if _UNREACHABLE.search(message):
        what = "Slurm does not answer, and the job was not submitted"
        return SlurmUnavailable(what, found=message, remedy=suggest_remedy(message))
    remedy = _suggest_change(message, resolved, client)
    return SubmitRefused(f"sbatch refused {resolved.job.name}", found=message, remedy=remedy)


def sbatch_message(answer: Completed) -> str:
    """Return the message of sbatch without the name of the command in each line."""
    # A site's wrapper of sbatch may print its errors to stdout.
    text = answer.stderr.strip() or answer.stdout.strip() or f"exit status {answer.returncode} without a message"
    return re.sub(r"^sbatch: (?:error: |fatal: )?", "", text, flags=re.MULTILINE)


def _suggest_change(message: str, resolved: Resolved, client: SlurmClient) -> str:
    if re.search(r"invalid partition|no partition specified|default partition", message, re.IGNORECASE):
        return _suggest_partition(resolved.job.resources.partition, client)
    if re.search(r"node configuration|node count|processors|cpu count|requested nodes?", message, re.IGNORECASE):
        return _compare_sizes(resolved, client)
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, message, re.IGNORECASE):
            return remedy if isinstance(remedy, str) else remedy(client)
    fix = "change the option that the message names"
    return f"{fix}; print the script: {copyable_command(resolved.render_command)}" if resolved.render_command else fix


def _sinfo(client: SlurmClient, field: str) -> list[str]:
    """Return the values of one field over all partitions; nothing if sinfo does not answer."""
    try:
        answer = client.run(["sinfo", "--noheader", f"--format={field}"], timeout=_SINFO_SECONDS)
    except SlurmUnavailable:
        return []
    return sorted({line.strip() for line in answer.stdout.splitlines() if line.strip()})


def _suggest_partition(given: str | None, client: SlurmClient) -> str:
    from difflib import get_close_matches

    known = _sinfo(client, "%R")
    if not known:
        return "choose one of the partitions: sinfo --summarize"
    if given is None:
        return f"name one: --partition={' or '.join(known[:8])}"
    near = get_close_matches(given, known, n=3) or known[:8]
    return "use " + " or ".join(f"--partition={name}" for name in near)


def _list_hosts(client: SlurmClient) -> str:
    hosts = _sinfo(client, "%N")
    return f"choose among the nodes: {', '.join(hosts)}" if hosts else "choose among the nodes: sinfo --format=%N"


def _list_features(client: SlurmClient) -> str:
    features = sorted({word for line in _sinfo(client, "%f") for word in line.split(",")} - {"(null)"})
    if features:
        return f"choose among the features: {', '.join(features)}"
    return "remove --constraint: no node has features"


def _list_gres(client: SlurmClient) -> str:
    gres = [line for line in _sinfo(client, "%P %G") if not line.endswith("(null)")]
    if gres:
        return f"ask for what the partitions have: {'; '.join(gres)}"
    return "ask for no GPUs: no node here has GPUs or other gres"


def _list_time_limits(client: SlurmClient) -> str:
    limits = ", ".join(_sinfo(client, "%R %l"))
    if limits:
        return f"choose --time within the partition's limit: {limits}"
    return "choose a smaller --time: sinfo --format='%R %l'"


def _compare_sizes(resolved: Resolved, client: SlurmClient) -> str:
    known = _sinfo(client, "%R: %D nodes of %c CPUs, %m MiB, gres %G")
    resources = resolved.job.resources
    cpus = "the site's CPUs for their GPUs" if resolved.cpus_by_slurm else format_count(resolved.cpus, "CPU")
    size = f"{format_count(resolved.nodes, 'node')}, {format_count(resolved.ntasks, 'task')} x {cpus}"
    memory = [f"{name} {value}" for name, value in resources.given().items() if name.startswith("mem")]
    lines = [f"fit the job to the nodes. It asks for {', '.join([size, *memory])}"]
    option, excluded = exclude_option(resolved, client)
    if option:
        lines += [*excluded[:8], "use a node again: hpc-kit cluster include NODE"]
    if not known:
        lines[-1] += "; list the nodes: sinfo --format='%R %D %c %m %G'"
    return "\n".join(lines + known[:8])


_OWN_ASSOCIATIONS = "sacctmgr show associations user=$USER format=account%30,partition%20,qos%40"

_REMEDIES: tuple[tuple[str, str | Callable[[SlurmClient], str]], ...] = (
    (r"group not permitted|not permitted to use this partition", "use another --partition, or ask for access"),
    (r"invalid account", f"use --account=... of yours: {_OWN_ASSOCIATIONS}"),
    (r"invalid qos", f"use --qos=... of yours: {_OWN_ASSOCIATIONS}"),
    (r"time limit", _list_time_limits),
    (r"node name", _list_hosts),
    (r"memory", "choose a smaller --mem; list the memory of the nodes in MiB: sinfo --format='%R %m'"),
    (r"generic resource|\bgres\b", _list_gres),
    (r"invalid feature", _list_features),
    (r"reservation", "choose one of the reservations: scontrol show reservation"),
    (
        r"job violates|accounting/qos policy|submit limit|max.*jobs",
        f"submit fewer or smaller jobs at a time; {_OWN_ASSOCIATIONS}",
    ),
    (r"job array", "choose indices below MaxArraySize: scontrol show config | grep MaxArraySize"),
    (r"dependency", "name jobs that Slurm still knows: squeue --me"),
    (r"wckey", "remove --wckey, or use one of yours: sacctmgr show wckeys user=$USER"),
    (r"license", "choose one of the licences: scontrol show licenses"),
    (
        r"unrecognized option|invalid option|ambiguous",
        "remove the option, which this Slurm does not know (sbatch --help)",
    ),
)


class StartEstimate(NamedTuple):
    """When and where a job would start if it were submitted now."""

    start: dt.datetime
    """By the controller's clock, without a zone, as Slurm prints times."""

    nodes: str
    """A node list."""

    cpus: int
    partition: str | None
    preempts: tuple[str, ...]
    """Jobs that it would preempt."""


def estimate_start(resolved: Resolved, text: str) -> StartEstimate:
    """Ask the scheduler when a job would start. Nothing is submitted, and no file of a run is written.

    Raises:
        SubmitRefused: sbatch would refuse the job.
        SlurmUnavailable: There is no Slurm, or it does not answer.
    """
    client = open_client(resolved.cluster)
    client.check_available(resolved.cluster.name)
    environ, _ = drop_overriding_variables(submit_environment(client.environ), text)
    # SLURM_TIME_FORMAT changes the format of the start time.
    client = client._replace(environ={name: each for name, each in environ.items() if name != "SLURM_TIME_FORMAT"})
    with tempfile.NamedTemporaryFile("w", prefix="hpc_kit.", suffix=".sbatch", encoding="utf-8") as script:
        script.write(text)
        script.flush()
        answer = client.run(
            ["sbatch", "--test-only", *exclude_option(resolved, client)[0], script.name], timeout=START_ESTIMATE_SECONDS
        )
    if answer.returncode:
        raise refusal_error(resolved, client, answer)
    found = parse_start_estimate(answer.stderr)
    if found is None:
        raise SlurmUnavailable(
            "sbatch --test-only does not print when the job would start",
            found=sbatch_message(answer),
            remedy="submit it, then run hpc-kit status",
        )
    return found


def parse_start_estimate(stderr: str) -> StartEstimate | None:
    """Parse the output of `sbatch --test-only`; None if it has another form.

    Source: printed by sbatch 22.05 and, without `a`, by later releases; both were observed.
    """
    match = _START.search(stderr)
    if match is None:
        return None
    try:
        start = dt.datetime.fromisoformat(match["start"])
    except ValueError:
        return None
    preempts = _PREEMPTS.search(stderr)
    ids = tuple(preempts["ids"].split(",")) if preempts else ()
    return StartEstimate(start, match["nodes"], int(match["cpus"]), match["partition"], ids)
