"""One Slurm job of a benchmark: submitted, waited for and removed at the end."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

from hpc_kit.errors import HostlistError, JobFailed
from hpc_kit.slurm import nodelist
from hpc_kit.slurm.client import user_name
from hpc_kit.slurm.command_environment import query_environment, submit_environment
from hpc_kit.slurm.pending_reasons import explain_reason, is_user_limit, needs_intervention

_RESULT_PAUSE = 0.05
QUEUE_PAUSE = 2.0
"""Seconds between two queries of Slurm."""
STUCK_SECONDS, NODES_STUCK_SECONDS = 10.0, 60.0
"""Seconds to wait if a pending reason does not end by itself; nodes may return."""
_NODES_TAKEN = re.compile("reserved for|nodes required", re.IGNORECASE)
"""Slurm uses the same words for nodes that are down and for nodes that other jobs use or have reserved."""
_LEAVE_QUEUE_SECONDS = 60.0
"""Seconds for a job to leave the queue."""


class JobNeverStarts(JobFailed):
    """The job waits for something that the end of other jobs does not bring."""


class QueueState(NamedTuple):
    """A job as squeue shows it; an empty state means that it has left the queue."""

    state: str
    reason: str = ""
    partition: str = ""


def submit_job(argv: list[str], environ: Mapping[str, str]) -> str:
    """Run a command that submits a job and return the job's id.

    Raises:
        JobFailed: Slurm rejected the job.
    """
    # A session of its own: Ctrl-C must not interrupt the submission before its id is known.
    begun = subprocess.Popen(
        argv,
        env=submit_environment(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complaint = begun.communicate()
    except KeyboardInterrupt:
        said, _ = begun.communicate()
        if match := _parse_job_id(said):
            run_command(["scancel", match], environ)
        raise
    if begun.returncode or not (job := _parse_job_id(said)):
        raise JobFailed(
            "the job was not submitted", found=(complaint or said).strip(), remedy="fewer --ranks or more --nodes"
        )
    return job


def _parse_job_id(said: str) -> str:
    match = re.search(r"^(?:job\s+)?(\d+)", said, re.MULTILINE)
    return match[1] if match else ""


@contextmanager
def submitted_job(argv: list[str], environ: Mapping[str, str], note: Callable[[str], None]) -> Iterator[str]:
    """Submit a job; on exit, wait until it has left the queue and note if it has not.

    Raises:
        JobFailed: Slurm rejected the job.
    """
    job = submit_job(argv, environ)
    ended = False
    try:
        yield job
        ended = True
    finally:
        if not ended:
            run_command(["scancel", job], environ)
        deadline = time.time() + _LEAVE_QUEUE_SECONDS
        while query_queue(job, environ).state:
            if time.time() > deadline:
                note(f"Job {job} had not left the queue after {_LEAVE_QUEUE_SECONDS:.0f} s: scancel {job}")
                break
            time.sleep(QUEUE_PAUSE)


def wait_for_result(
    job: str, folder: Path, environ: Mapping[str, str], deadline: float, report_progress: Callable[[str], None]
) -> dict[str, float]:
    """Wait for the file that rank 0 writes and return its content.

    Raises:
        NeverBegins: It waits for what does not end by itself.
        JobFailed: The job ended without a step, or the deadline passed.
    """
    found, looked = folder / "found.json", time.time()
    queue = _QueueWatcher(job, environ, report_progress)
    while not found.exists():
        if time.time() - looked > QUEUE_PAUSE:
            looked = time.time()
            if not queue.update() and not found.exists():
                log = folder / "log"
                said = log.read_text(errors="replace")[-1500:] if log.exists() else f"hpc-kit logs {job} --all"
                raise JobFailed(f"job {job} ended without a first step", found=said, remedy="its log")
        if time.time() > deadline:
            raise JobFailed(
                f"job {job} had no first step in time",
                found=queue.describe(),
                remedy="a longer --timeout, which counts the time in the queue, too",
            )
        time.sleep(_RESULT_PAUSE)
    told: dict[str, float] = json.loads(found.read_text())
    return told


class _QueueWatcher:
    """Follows one job through the queue."""

    def __init__(self, job: str, environ: Mapping[str, str], report_progress: Callable[[str], None]) -> None:
        self._job, self._environ, self._report_progress = job, environ, report_progress
        self._now = QueueState("PENDING", "None")
        self._since = time.time()

    def update(self) -> bool:
        """Query the job; return whether it is still in the queue.

        Raises:
            NeverBegins: It waits for what does not end by itself.
        """
        now = query_queue(self._job, self._environ)
        if now != self._now:
            self._now, self._since = now, time.time()
            if now.state == "PENDING":
                self._report_progress(f"waiting: {self.describe()}")
        if now.state == "PENDING" and time.time() - self._since > self._tolerated_seconds():
            held = self._blocking_allocation()
            raise JobNeverStarts(
                f"job {self._job} does not begin",
                found=f"{self.describe()}\n{held}" if held else self.describe(),
                remedy=self._remedy(held),
            )
        return bool(now.state)

    def describe(self) -> str:
        """Describe the job's state."""
        if self._now.state != "PENDING":
            return self._now.state
        return f"PENDING ({self._now.reason}): {explain_reason(self._now.reason, self._job).sentence}"

    def _blocking_allocation(self) -> Allocation | None:
        """Return the surrounding job's allocation if only its end lets this job start; None otherwise."""
        return (
            surrounding_allocation(self._now.partition, self._environ, run_command)
            if self._now.reason == "Resources"
            else None
        )

    def _remedy(self, held: Allocation | None) -> str:
        if held:
            return "hpc-kit bench start, on the login node, where it holds nothing; or fewer --ranks"
        step = explain_reason(self._now.reason, self._job).next_step
        if is_user_limit(self._now.reason) and "SLURM_JOB_ID" in self._environ:
            return f"the job around this bench counts, too: hpc-kit bench start, on the login node\n{step}"
        return step

    def _tolerated_seconds(self) -> float:
        """Return the seconds to wait with this reason; infinite if it may end by itself."""
        reason = self._now.reason
        if _NODES_TAKEN.search(reason):
            return math.inf
        if needs_intervention(reason):
            return NODES_STUCK_SECONDS if re.match("ReqNode|.*Down|.*Inactive", reason) else STUCK_SECONDS
        mine = is_user_limit(reason) and not self._has_other_jobs()
        return STUCK_SECONDS if mine or self._blocking_allocation() else math.inf

    def _has_other_jobs(self) -> bool:
        """Return whether another job of this user runs, except this job and the surrounding one."""
        own = {self._job, self._environ.get("SLURM_JOB_ID", "")}
        asked = ["squeue", "--noheader", f"--user={user_name()}", "--states=RUNNING,COMPLETING", "--format=%A"]
        done = run_command(asked, self._environ)
        return done.returncode != 0 or bool(set(done.stdout.split()) - own)


def query_queue(job: str, environ: Mapping[str, str]) -> QueueState:
    """Query squeue for a job. If squeue fails, the state is UNKNOWN, because the job may still be queued."""
    done = run_command(["squeue", "--noheader", f"--jobs={job}", "--format=%T|%r|%P"], environ)
    if done.returncode and "Invalid job id" not in done.stderr:
        return QueueState("UNKNOWN")
    state, _, rest = done.stdout.strip().partition("|")
    reason, _, partition = rest.rpartition("|")
    return QueueState(state, reason, partition)


def run_command(argv: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm without variables of the surrounding job and without the user's filters."""
    return subprocess.run(
        argv, env=query_environment(submit_environment(environ)), capture_output=True, text=True, check=False
    )


RunCommand = Callable[[list[str], Mapping[str, str]], CompletedProcess[str]]
"""Runs a command of Slurm."""


class Allocation(NamedTuple):
    """A job's allocation in a partition without any other running job."""

    job: str
    cpus: int
    partition_cpus: int
    """CPUs of the partition's nodes that are up."""

    def __str__(self) -> str:
        return (
            f"no other job uses its nodes: of their {self.partition_cpus} CPUs {self.cpus} are held by"
            f" job {self.job}, around this bench"
        )


def surrounding_allocation(partition: str, environ: Mapping[str, str], run: RunCommand) -> Allocation | None:
    """Return the surrounding job's allocation if no other job uses the partition; None otherwise or if unknown.

    Args:
        partition: One or several partitions, as squeue shows them.
        environ: Environment with Slurm's variables of the surrounding job.
        run: Runs a command of Slurm.
    """
    job, nodes = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if not job or not nodes or not partition:
        return None
    try:
        mine = sum(nodelist.expand_tasks_per_node(environ.get("SLURM_JOB_CPUS_PER_NODE", "")))
        own = set(nodelist.expand(nodes))
    except HostlistError:
        return None
    done = run(["sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N %C"], environ)
    counts = dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)  # once a partition
    if done.returncode or not own & counts.keys():
        return None
    try:
        held = {node: tuple(map(int, text.split("/"))) for node, text in counts.items()}
        busy = {node: allocated for node, (allocated, *_) in held.items() if allocated}
        up = sum(allocated + idle for allocated, idle, *_ in held.values())
    except ValueError:  # on large clusters sinfo may print 1.5K
        return None
    return Allocation(job, mine, up) if busy.keys() <= own and sum(busy.values()) <= mine else None
