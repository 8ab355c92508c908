"""One Slurm job of a benchmark: submitted, waited for and removed at the end."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hpc_kit.errors import HostlistError, JobFailed, SlurmUnavailable
from hpc_kit.runs.follow import JobTracker
from hpc_kit.slurm import nodelist
from hpc_kit.slurm.client import SlurmClient, user_name
from hpc_kit.slurm.command_environment import submit_environment
from hpc_kit.slurm.pending_reasons import explain_reason, is_user_limit, needs_intervention
from hpc_kit.slurm.states import JobState

RESULT_FILE = "found.json"
"""File with the seconds of each phase, which rank 0 of first_step.py writes."""
_RESULT_PAUSE = 0.05
"""Seconds between two looks for the file; short, because the next start waits for it."""
QUEUE_PAUSE = 2.0
"""Seconds between two queries of Slurm."""
STUCK_SECONDS, NODES_STUCK_SECONDS = 10.0, 60.0
"""Seconds to wait if a pending reason does not end by itself; nodes may return."""
_NODES_TAKEN = re.compile("reserved for|nodes required", re.IGNORECASE)
"""Reasons like `Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions`. Slurm
gives them for nodes that are down and for nodes that other jobs use, so the job may start by itself."""
_LEAVE_QUEUE_SECONDS = 60.0
"""Seconds for a job to leave the queue."""


class JobNeverStarts(JobFailed):
    """The job waits for something that the end of other jobs does not bring."""


def submit_job(argv: list[str], client: SlurmClient) -> str:
    """Run a command that submits a job and return the job's id.

    Raises:
        JobFailed: Slurm rejected the job.
    """
    # A session of its own: Ctrl-C must not interrupt the submission before its id is known.
    process = subprocess.Popen(
        argv,
        env=submit_environment(client.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate()
    except KeyboardInterrupt:
        output, _ = process.communicate()
        if job := _parse_job_id(output):
            client.run(["scancel", job])
        raise
    if process.returncode or not (job := _parse_job_id(output)):
        raise JobFailed(
            "the job was not submitted", found=(errors or output).strip(), remedy="fewer --ranks or more --nodes"
        )
    return job


def _parse_job_id(output: str) -> str:
    match = re.search(r"^(?:job\s+)?(\d+)", output, re.MULTILINE)
    return match[1] if match else ""


@contextmanager
def submitted_job(argv: list[str], client: SlurmClient, note: Callable[[str], None]) -> Iterator[QueuedJob]:
    """Submit a job; on exit, wait until it has left the queue and note if it has not.

    Raises:
        JobFailed: Slurm rejected the job.
    """
    job = QueuedJob(submit_job(argv, client), client)
    succeeded = False
    try:
        yield job
        succeeded = True
    finally:
        if not succeeded:
            client.run(["scancel", job.job_id])
        deadline = time.time() + _LEAVE_QUEUE_SECONDS
        while not job.has_ended():
            if time.time() > deadline:
                note(
                    f"Job {job.job_id} had not left the queue after {_LEAVE_QUEUE_SECONDS:.0f} s: scancel {job.job_id}"
                )
                break
            time.sleep(QUEUE_PAUSE)


def wait_for_result(
    job: QueuedJob, folder: Path, deadline: float, report_progress: Callable[[str], None]
) -> dict[str, float]:
    """Wait for the file that rank 0 writes and return its content.

    Raises:
        JobNeverStarts: The job waits for something that does not end by itself.
        JobFailed: The job ended without a step, or the deadline passed.
    """
    result, last_query = folder / RESULT_FILE, time.time()
    while not result.exists():
        if time.time() - last_query > QUEUE_PAUSE:
            last_query, previous = time.time(), job.describe()
            # The job may have written the file and ended since the last look.
            if job.has_ended() and not result.exists():
                log = folder / "log"
                text = log.read_text(errors="replace")[-1500:] if log.exists() else f"hpc-kit logs {job.job_id} --all"
                raise JobFailed(f"job {job.job_id} ended without a first step", found=text, remedy="its log")
            if job.is_pending and job.describe() != previous:
                report_progress(f"waiting: {job.describe()}")
            job.check_can_start()
        if time.time() > deadline:
            raise JobFailed(
                f"job {job.job_id} had no first step in time",
                found=job.describe(),
                remedy="a longer --timeout, which counts the time in the queue, too",
            )
        time.sleep(_RESULT_PAUSE)
    seconds: dict[str, float] = json.loads(result.read_text())
    return seconds


class QueuedJob:
    """A job of a benchmark on its way through the queue."""

    def __init__(self, job_id: str, client: SlurmClient) -> None:
        self.job_id, self._client, self._tracker = job_id, client, JobTracker()
        self._reason, self._partition, self._since = "None", "", time.time()

    @property
    def is_pending(self) -> bool:
        """Return whether the job waits, as far as known."""
        return self._tracker.state in {None, JobState.PENDING}

    def has_ended(self) -> bool:
        """Query Slurm; return whether the job has ended. If Slurm does not answer, it may still be queued."""
        try:
            status = self._client.query([self.job_id]).get(self.job_id)
        except SlurmUnavailable:
            return False
        self._tracker.update(status.state if status else JobState.UNKNOWN, status)
        reason = (status.reason if status else None) or "None"
        if reason != self._reason:
            self._reason, self._since = reason, time.time()
        self._partition = status.partition if status else ""
        return self._tracker.is_over

    def describe(self) -> str:
        """Describe the job's state."""
        if not self.is_pending:
            return str(self._tracker.state)
        return f"PENDING ({self._reason}): {explain_reason(self._reason, self.job_id).sentence}"

    def check_can_start(self) -> None:
        """Check that the job does not wait forever, some seconds after its last change.

        Raises:
            JobNeverStarts: It waits for something that does not end by itself.
        """
        if not self.is_pending or time.time() - self._since <= self._tolerated_seconds():
            return
        remedy = explain_reason(self._reason, self.job_id).next_step
        if self._reason == "Resources":
            remedy = "hpc-kit bench start, on the login node, where it holds nothing; or fewer --ranks"
        elif is_user_limit(self._reason) and "SLURM_JOB_ID" in self._client.environ:
            remedy = f"the job around this bench counts, too: hpc-kit bench start, on the login node\n{remedy}"
        raise JobNeverStarts(f"job {self.job_id} does not begin", found=self.describe(), remedy=remedy)

    def _tolerated_seconds(self) -> float:
        """Return the seconds to wait with this reason; infinite if it may end by itself."""
        if _NODES_TAKEN.search(self._reason):
            return math.inf
        if needs_intervention(self._reason):
            # A node may come back, for example from a reboot.
            return NODES_STUCK_SECONDS if re.match("ReqNode|.*Down|.*Inactive", self._reason) else STUCK_SECONDS
        if is_user_limit(self._reason):
            # Only the end of another job frees a place below the limit.
            return STUCK_SECONDS if not self._has_other_jobs() else math.inf
        # The job around this process waits for this benchmark, so it never frees its CPUs.
        is_blocked = self._reason == "Resources" and has_all_allocated_cpus(self._client, self._partition)
        return STUCK_SECONDS if is_blocked else math.inf

    def _has_other_jobs(self) -> bool:
        """Return whether another job of this user runs, except this job and the surrounding one."""
        own = {self.job_id, self._client.environ.get("SLURM_JOB_ID", "")}
        done = self._client.run(
            ["squeue", "--noheader", f"--user={user_name()}", "--states=RUNNING,COMPLETING", "--format=%A"]
        )
        return done.returncode != 0 or bool(set(done.stdout.split()) - own)


def has_all_allocated_cpus(client: SlurmClient, partition: str) -> bool:
    """Return whether the job around this process has every allocated CPU of a partition; False if unknown."""
    environ = client.environ
    done = client.run(["sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N %C"])
    try:
        own = set(nodelist.expand(environ["SLURM_JOB_NODELIST"]))
        cpus = sum(nodelist.expand_tasks_per_node(environ["SLURM_JOB_CPUS_PER_NODE"]))
        # sinfo prints a node once for each partition, with the CPUs `allocated/idle/other/total`; large numbers
        # may be shortened to 1.5K.
        pairs = (line.split() for line in done.stdout.splitlines())
        allocated = {node: int(counts.split("/")[0]) for node, counts in pairs}
    except (KeyError, ValueError, HostlistError):
        return False
    busy = {node for node, number in allocated.items() if number}
    return bool(busy) and busy <= own and sum(allocated.values()) <= cpus
