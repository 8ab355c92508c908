"""Handles of submitted jobs: submitit's `Job`, with a state that does not depend on sacct.

The result of a program is its summary. The result of a function is one value for each rank.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from submitit.core.utils import FailedJobError, JobPaths, pickle_load
from submitit.slurm.slurm import SlurmJob, SlurmJobEnvironment

from hpc_kit.errors import JobFailed, SlurmUnavailable
from hpc_kit.run_files import SCRIPT, read_first_failure
from hpc_kit.runs.backend import SLURM
from hpc_kit.runs.first_failure import RankFailure
from hpc_kit.runs.follow import JobTracker
from hpc_kit.runs.outcome import Outcome, read_state, record_outcome
from hpc_kit.runs.run_folders import Run, open_run
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.job_ids import base_id
from hpc_kit.slurm.job_status import merge_statuses, parse_sacct, sacct_argv, scancel_argv
from hpc_kit.slurm.states import JobState
from hpc_kit.spec.cluster_client import open_client

if TYPE_CHECKING:
    from hpc_kit.slurm.job_status import JobStatus
    from hpc_kit.spec.cluster import Cluster

__all__ = ["FunctionJob", "ScriptFailed", "ScriptJob"]

R_co = TypeVar("R_co", covariant=True)

RESULT_POLL_SECONDS = 1.0
"""Pause between two looks for the file of a result."""

HURRY_SECONDS = 60.0
"""A cancelled job is queried every second for this long. Slurm needs up to KillWait, 30 s by default, to end it."""


class ScriptFailed(JobFailed, FailedJobError):
    """A job failed. Both hpc_kit's and submitit's exception class catch it."""

    def __init__(self, outcome: Outcome) -> None:
        failure = outcome.failure
        cause = failure.headline if failure else outcome.sentence
        log = failure.log if failure and failure.log else outcome.batch_log
        super().__init__(
            f"job {outcome.job_id} {outcome.name} {outcome.state}: {cause}",
            found=failure.text if failure and failure.text else None,
            remedy=f"read {log}" if log and log.exists() else None,
        )
        self.outcome = outcome

    # Exceptions are unpickled with `args`, which contain the text and not the outcome.
    def __reduce__(self) -> tuple[type[ScriptFailed], tuple[Outcome]]:
        return type(self), (self.outcome,)


class JobWatcher:
    """Queries one Slurm for all jobs of this process together. It replaces submitit's watcher, which needs sacct.

    submitit's `Job` calls the methods with a `mode`: `standard` queries if the last answer is old, `force` always, and
    `cache` never.
    """

    def __init__(self, client: SlurmClient) -> None:
        self.client = client
        self.statuses: dict[str, JobStatus] = {}
        self._trackers: dict[str, JobTracker] = {}
        self._polled_at = float("-inf")
        self._hurried_until = float("-inf")
        self._cancelled: set[str] = set()
        self._lock = threading.Lock()

    def query(self, job_id: str, mode: str = "standard") -> JobStatus | None:
        """Return the status of a job; None if Slurm does not know it, or no longer."""
        # Threads that wait for several jobs share the answer of one query.
        with self._lock:
            return self._query(job_id, mode)

    def _query(self, job_id: str, mode: str) -> JobStatus | None:
        if job_id not in self._trackers:
            self._trackers[job_id] = JobTracker()
            # The query of an array has returned its elements. Any other new job is queried immediately.
            if known := self.statuses.get(job_id):
                self._trackers[job_id].update(known.state, known)
            else:
                self._polled_at = float("-inf")
        now, pause = time.monotonic(), self.client.poll_seconds
        is_due = now - self._polled_at >= (min(pause, RESULT_POLL_SECONDS) if now < self._hurried_until else pause)
        if mode == "force" or (mode != "cache" and is_due):
            self._poll()
        return self.statuses.get(job_id)

    def expect_end(self, job_id: str) -> None:
        """Query every second for a while, because this job was cancelled."""
        self._cancelled.add(job_id)
        self._polled_at, self._hurried_until = float("-inf"), time.monotonic() + HURRY_SECONDS

    def _poll(self) -> None:
        # Lost jobs are queried, too: they may appear again.
        active = {job_id: each for job_id, each in self._trackers.items() if not (each.state and each.state.finished)}
        if not active:
            return
        self._polled_at = time.monotonic()
        try:
            # The id of an array returns all its elements.
            found = self.client.query(sorted({base_id(job_id) for job_id in active}))
        except SlurmUnavailable:
            # The controller may answer the next query; the last statuses stay.
            return
        found |= self._cancelled_in_accounting(found)
        arrays: dict[str, list[JobStatus]] = {}
        for job_id, status in found.items():
            arrays.setdefault(base_id(job_id), []).append(status)
        found = {**{base: merge_statuses(own) for base, own in arrays.items()}, **found}
        self.statuses |= found
        for job_id, tracker in active.items():
            known = found.get(job_id)
            tracker.update(known.state if known else JobState.UNKNOWN, known)
            if known is None and tracker.is_over:
                self.statuses.pop(job_id, None)

    def _cancelled_in_accounting(self, found: Mapping[str, JobStatus]) -> dict[str, JobStatus]:
        """Return the final statuses of cancelled jobs that squeue still shows as COMPLETING.

        sacct already has the final state while Slurm ends their processes, for up to KillWait.
        """
        ending = [
            job_id
            for job_id, status in found.items()
            if status.state is JobState.COMPLETING and self._cancelled & {job_id, base_id(job_id)}
        ]
        if not ending:
            return {}
        try:
            answer = self.client.run(sacct_argv(ending, clusters=self.client.environ.get("SLURM_CLUSTERS")))
        except SlurmUnavailable:
            return {}
        # A job that had ended by itself before scancel is not CANCELLED.
        return {each.job_id: each for each in parse_sacct(answer.stdout) if each.state is JobState.CANCELLED}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return the name of the state; UNKNOWN if Slurm does not know the job."""
        status = self.query(job_id, mode)
        return str(status.state if status else JobState.UNKNOWN)

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        """Return the fields that submitit reads."""
        status = self.query(job_id, mode)
        return {"JobID": job_id, "State": str(status.state), "NodeList": status.nodelist} if status else {}

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Return whether the job has ended, or Slurm has forgotten it."""
        self.query(job_id, mode)
        return self._trackers[job_id].is_over


_watchers: dict[tuple[str | None, ...], JobWatcher] = {}
_IDENTIFYING = ("PATH", "SLURM_CONF", "SLURM_CLUSTERS", "HPC_KIT_SLURM_CONF", "HPC_KIT_SLURM_STATE")


def shared_watcher(client: SlurmClient) -> JobWatcher:
    """Return the watcher of a Slurm; there is one for each Slurm."""
    key = (str(client.embedded), *(client.environ.get(name) for name in _IDENTIFYING))
    return _watchers.setdefault(key, JobWatcher(client))


class SlurmHandle(SlurmJob[R_co]):
    """A job with its client and its run folder. submitit also makes one handle for each of several tasks."""

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        self._cluster: Cluster | None = None
        self._client: SlurmClient | None = None
        self._run_folder = Path(folder)
        super().__init__(folder=folder, job_id=job_id, tasks=tasks)

    def attach(self, run: Path, client: SlurmClient | None, cluster: Cluster | None) -> None:
        """Set the run folder and the Slurm of the job."""
        self._run_folder, self._client, self._cluster = run, client, cluster
        for task in self._sub_jobs:
            if isinstance(task, SlurmHandle):
                task.attach(run, client, cluster)

    @property
    def client(self) -> SlurmClient:
        """The client of the Slurm that has the job."""
        if self._client is None:
            environ = dict(os.environ)
            self._client = open_client(self._cluster) if self._cluster else SlurmClient(environ, embedded=False)
        return self._client

    @property
    def watcher(self) -> JobWatcher:  # type: ignore[override]  # one for each Slurm; submitit has one for all
        """The watcher of the same Slurm."""
        return shared_watcher(self.client)

    @property
    def run(self) -> Run:
        """The run: logs, markers and record."""
        return open_run(self._run_folder)

    def _register_in_watcher(self) -> None:
        """Do nothing: submitit calls this before the client is known. The first query registers the job."""

    def __getstate__(self) -> dict[str, Any]:
        # The environment may contain secrets, and a pickle is a file.
        return {**self.__dict__, "_client": None}

    def status(self, *, force: bool = False) -> JobStatus | None:
        """Return Slurm's status; None if Slurm does not know the job, or no longer."""
        return self.watcher.query(self.job_id, "force" if force else "standard")

    @property
    def state(self) -> str:
        """Slurm's state, or the state that the files of the run show if Slurm has forgotten the job."""
        return str(read_state(self.run, self.status()))

    def cancel(self, check: bool = True) -> None:
        """Cancel the job. Raise SlurmUnavailable if scancel fails, unless `check` is False."""
        try:
            SLURM.cancel({self.job_id: None}, self.client)
        except SlurmUnavailable:
            if check:
                raise
        self.watcher.expect_end(self.job_id)

    def _interrupt(self, timeout: bool = False) -> None:
        for signal in ([] if timeout else ["SIGTERM"]) + [SlurmJobEnvironment.USR_SIG]:
            self.client.run(scancel_argv([self.job_id], signal))

    def wait(self) -> None:
        """Wait for the end of the job."""
        while not self.done():
            time.sleep(min(RESULT_POLL_SECONDS, self.client.poll_seconds))

    def outcome(self) -> Outcome:
        """Wait for the end of the job, add its outcome to the record, and return the outcome."""
        self.wait()
        return record_outcome(self.run, self.status())


class RunPaths(JobPaths):
    """submitit's names of the files of a script job."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.folder, job_id=run.job_id)
        self._run = run

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._run.folder

    @property
    def submission_file(self) -> Path:
        """The script, in the folder of the record."""
        return self._run.array_folder / SCRIPT

    @property
    def stdout(self) -> Path:
        """The log of rank 0."""
        return self._run.rank_log(0)

    @property
    def stderr(self) -> Path:
        """The log of the batch script, with messages of srun and Slurm."""
        return self._run.batch_log


class ScriptJob(SlurmHandle[dict[str, object]]):
    """A submitted program. Its result is the summary that the training wrote (`summary.json`), or an empty one.

    An array is done when all its elements are. `elements()` returns their jobs, and `results()` one result for each.

    Attributes:
        found_again: An earlier submission of the same script, whose answer was lost, created the job.
    """

    found_again = False

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        super().__init__(folder, job_id, tasks)
        self._paths = RunPaths(self.run)

    def elements(self) -> list[ScriptJob]:
        """Return the jobs of an array in the order of their indices; nothing if this is no array."""
        found = []
        for run in self.run.elements():
            found.append(type(self)(run.folder, run.job_id))
            found[-1].attach(run.folder, self._client, self._cluster)
        return found

    def done(self, force_check: bool = False) -> bool:
        """Return whether the job has ended, with all elements of an array."""
        if not self.watcher.is_done(self.job_id, mode="force" if force_check else "standard"):
            return False
        return all(job.watcher.is_done(job.job_id) for job in self.elements())

    def results(self) -> list[dict[str, object]]:
        """Return a list with the summary, or with one summary for each element of an array.

        Raises:
            ScriptFailed: The job failed.
        """
        error = self.exception()
        if error is not None:
            raise error
        return [job.run.summary() for job in self.elements() or [self]]

    def result(self) -> dict[str, object]:
        """Return the summary of a job that is no array.

        Raises:
            ScriptFailed: The job failed.
        """
        return self.results()[0]

    def exception(self) -> ScriptFailed | None:
        """Wait for the end; return the failure of the job, or of the first failed element of an array, or None."""
        self.wait()
        outcomes = (job.outcome() for job in self.elements() or [self])
        return next((ScriptFailed(outcome) for outcome in outcomes if outcome.exit_status), None)


class FunctionJob(SlurmHandle[R_co]):
    """A submitted function, with one result for each rank."""

    def results(self) -> list[R_co]:
        """Return the results of all ranks in order.

        Raises:
            ScriptFailed: A rank failed; the error describes the first failure.
        """
        error = self.exception()
        if error is not None:
            raise error
        found: list[R_co] = super().results()
        return found

    def exception(self) -> ScriptFailed | None:
        """Wait for the end of the job, or for this task's result; return the first failure, or None."""
        self.wait()
        results = self._wait_for_results()
        if all(result is not None and result[0] == "success" for result in results.values()):
            return None
        outcome = record_outcome(self.run, self.status())
        first = read_first_failure(self._run_folder)
        ranks = [first.rank] if first else [rank for rank, result in results.items() if result and result[0] == "error"]
        if not ranks and not outcome.exit_status:
            return ScriptFailed(self._outcome_without_result(outcome, results))
        return ScriptFailed(_outcome_with_traceback(outcome, ranks[0] if ranks else None, results))

    def _wait_for_results(self) -> dict[int | None, tuple[str, Any] | None]:
        """Return the result of each rank. After a successful job, wait for files that a file system still hides."""
        jobs = [job for job in (self._sub_jobs or [self]) if isinstance(job, FunctionJob)]
        until = time.monotonic() + self._results_timeout_s
        while True:
            results = {job.task_id: job.read_result() for job in jobs}
            if None not in results.values() or self.state != "COMPLETED" or time.monotonic() >= until:
                return results
            # A change of the folder makes an NFS client ask the server again for its content.
            with suppress(OSError):
                self.paths.folder.chmod(self.paths.folder.stat().st_mode)
            time.sleep(RESULT_POLL_SECONDS)

    def read_result(self) -> tuple[str, Any] | None:
        """Return "success" and the result of this rank, or "error" and its traceback; None if it wrote neither."""
        try:
            result: tuple[str, Any] = pickle_load(self.paths.result_pickle)
        except (OSError, EOFError):
            return None
        return result

    def _outcome_without_result(self, outcome: Outcome, results: dict[int | None, tuple[str, Any] | None]) -> Outcome:
        """Return the outcome of a job that ended successfully, although the result of a rank is missing."""
        missing = next(task for task, result in results.items() if result is None)
        job = next((each for each in self._sub_jobs if each.task_id == missing), self)
        rank = missing or 0
        cause = f"rank {rank} left no result: {job.paths.result_pickle} is missing"
        return outcome._replace(exit_status=1, failure=RankFailure(rank, None, None, None, cause, "", None))


def _outcome_with_traceback(
    outcome: Outcome, rank: int | None, results: dict[int | None, tuple[str, Any] | None]
) -> Outcome:
    """Return the outcome with the traceback that the failed rank wrote."""
    result = results.get(rank)
    if result is None or result[0] != "error":
        return outcome
    text = str(result[1]).rstrip()
    last = text.splitlines()[-1] if text else "no message"
    earlier = outcome.failure or RankFailure(rank, None, None, None, f"rank {rank} failed with {last}", "", None)
    state = outcome.state if outcome.state.failed else JobState.FAILED
    failure = earlier._replace(rank=rank, text=text)
    return outcome._replace(state=state, exit_status=outcome.exit_status or 1, failure=failure)
