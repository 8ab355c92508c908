"""What the handles of programs and of functions share: submitit's `Job`, with a state that needs no accounting."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from submitit.core.utils import FailedJobError, JobPaths, pickle_load
from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob, SlurmJobEnvironment

from hpc_kit.errors import JobFailed, SlurmUnavailable
from hpc_kit.run_files import SCRIPT, read_first_failure
from hpc_kit.runs.access import Access, access_of
from hpc_kit.runs.follow import LOST_LOOKS
from hpc_kit.runs.outcome import Outcome, read_state, record_outcome
from hpc_kit.runs.run_folders import Run, open_run
from hpc_kit.slurm.job_ids import base_id
from hpc_kit.slurm.job_status import merge_statuses, scancel_argv
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from hpc_kit.runs.access import Access
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.job_status import JobStatus
    from hpc_kit.spec.cluster import Cluster


R_co = TypeVar("R_co", covariant=True)

FILE_PAUSE = 1.0
"""Seconds between two looks for a result's file."""


class ScriptFailed(JobFailed, FailedJobError):
    """A job ended badly; for both families of `except`, ours and submitit's."""

    def __init__(self, end: Outcome) -> None:
        failure = end.failure
        who = (
            f"rank {failure.rank} on {failure.host}: " if failure and failure.rank is not None and failure.host else ""
        )
        why = f"{who}{failure.headline}" if failure else end.sentence
        log = failure.log if failure and failure.log else end.batch_log
        super().__init__(
            f"job {end.job_id} {end.name} {end.state}: {why}",
            found=failure.text if failure and failure.text else None,
            remedy=f"read {log}" if log and log.exists() else None,
        )
        self.outcome = end

    def __reduce__(self) -> tuple[type[ScriptFailed], tuple[Outcome]]:
        return type(self), (self.outcome,)


class SlurmHandle(SlurmJob[R_co]):
    """What both kinds of jobs share: where their Slurm is, their run folder, their state.

    Args:
        folder: Folder of its files; of pickled functions, submitit's.
        job_id: Slurm's id; `12_3` for an element of an array.
        tasks: The tasks; one handle a task where there are several.
    """

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        self._cluster: Cluster | None = None
        self._access: Access | None = None
        self._run_folder = Path(folder)
        super().__init__(folder=folder, job_id=job_id, tasks=tasks)

    def attach(self, run: Path, access: Access | None, cluster: Cluster | None) -> None:
        """Tell it its run folder and its Slurm; afterwards it can be asked."""
        self._run_folder, self._access, self._cluster = run, access, cluster
        for task in self._sub_jobs:
            if isinstance(task, SlurmHandle):
                task.attach(run, access, cluster)

    @property
    def access(self) -> Access:
        """Its Slurm."""
        if self._access is None:
            self._access = access_of(self._cluster) if self._cluster else Access(dict(os.environ), embedded=False)
        return self._access

    @property
    def watcher(self) -> JobWatcher:  # type: ignore[override]  # one for each Slurm, where submitit has one for all
        """Who asks that Slurm."""
        return shared_watcher(self.access)

    @property
    def run(self) -> Run:
        """Its logs, markers and record."""
        return open_run(self._run_folder)

    def _register_in_watcher(self) -> None:
        """Nothing yet: the first question registers it."""

    def __getstate__(self) -> dict[str, Any]:
        # The environment may hold secrets, and a pickle is a file.
        return {**self.__dict__, "_access": None}

    def status(self, *, force: bool = False) -> JobStatus | None:
        """What Slurm says of it; None where it does not know it (any more)."""
        watcher = self.watcher
        watcher.get_info(self.job_id, mode="force" if force else "standard")
        return watcher.statuses.get(self.job_id)

    @property
    def state(self) -> str:
        """Slurm's state; where Slurm has forgotten the job, what its own files say."""
        return str(read_state(self.run, self.status()))

    def cancel(self, check: bool = True) -> None:
        """End it.

        Args:
            check: Whether an scancel that fails is an error.
        """
        answer = self.access.ask(scancel_argv([self.job_id]))
        if check and answer.returncode:
            raise SlurmUnavailable(
                f"scancel did not end {self.job_id}", found=answer.stderr.strip(), remedy=f"squeue --job={self.job_id}"
            )

    def _interrupt(self, timeout: bool = False) -> None:
        for signal in ([] if timeout else ["SIGTERM"]) + [SlurmJobEnvironment.USR_SIG]:
            self.access.ask(scancel_argv([self.job_id], signal))

    def wait(self) -> None:
        """Return when it is over."""
        while not self.done():
            time.sleep(min(FILE_PAUSE, self.access.pause))

    def outcome(self) -> Outcome:
        """How it ended; waits for that, and writes it into the record."""
        self.wait()
        return record_outcome(self.run, self.status())


class JobWatcher(SlurmInfoWatcher):
    """Asks one Slurm for all jobs of this process at once; squeue first, so that it works without accounting."""

    def __init__(self, access: Access) -> None:
        super().__init__(delay_s=int(access.pause))
        self.access = access
        self.statuses: dict[str, JobStatus] = {}
        self._misses: dict[str, int] = {}

    def register_job(self, job_id: str) -> None:
        """Take a job in; one that no answer has told of yet is asked for at once."""
        self._registered.add(job_id)
        if job_id not in self.statuses:
            self._last_status_check = float("-inf")

    def update_if_long_enough(self, mode: str) -> None:
        """Ask again where the last answer is older than the pause that this Slurm is owed."""
        if mode == "cache" or (mode != "force" and time.time() - self._last_status_check < self.access.pause):
            return
        self.update()

    def update(self) -> None:
        """One query for all jobs that are not over; an array's id brings all its elements."""
        wanted = self._registered - self._finished
        if not wanted:
            return
        self._num_calls += 1
        self._last_status_check = time.time()
        try:
            told = self.access.query(sorted({base_id(job_id) for job_id in wanted}))
        except SlurmUnavailable:
            # The controller is away for a while; what was known stays.
            return
        arrays: dict[str, list[JobStatus]] = {}
        for job_id, status in told.items():
            arrays.setdefault(base_id(job_id), []).append(status)
        self.statuses |= {**{base: merge_statuses(own) for base, own in arrays.items()}, **told}
        for job_id in wanted:
            known = self.statuses.get(job_id)
            self._misses[job_id] = 0 if known else self._misses.get(job_id, 0) + 1
            if known and known.state.finished:
                self._finished.add(job_id)

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Slurm's state; UNKNOWN where it does not know the job."""
        self.get_info(job_id, mode)
        status = self.statuses.get(job_id)
        return str(status.state if status else JobState.UNKNOWN)

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        """The few fields that submitit has of a job."""
        if job_id not in self._registered:
            self.register_job(job_id)
        self.update_if_long_enough(mode)
        status = self.statuses.get(job_id)
        return {"JobID": job_id, "State": str(status.state), "NodeList": status.nodelist} if status else {}

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether it is over, or forgotten by Slurm."""
        state = self.get_state(job_id, mode=mode)
        return JobState(state).finished or self._misses.get(job_id, 0) >= LOST_LOOKS


_WATCHERS: dict[tuple[str | None, ...], JobWatcher] = {}
_TELLING = ("PATH", "SLURM_CONF", "SLURM_CLUSTERS", "HPC_KIT_SLURM_CONF", "HPC_KIT_SLURM_STATE")


def shared_watcher(access: Access) -> JobWatcher:
    """The one watcher of a Slurm."""
    key = (str(access.embedded), *(access.environ.get(name) for name in _TELLING))
    return _WATCHERS.setdefault(key, JobWatcher(access))


__all__ = ["FunctionJob", "ScriptFailed", "ScriptJob"]


class RunPaths(JobPaths):
    """What submitit calls the files of a script job."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.folder, job_id=run.job_id)
        self._run = run

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._run.folder

    @property
    def submission_file(self) -> Path:
        """The script, in the folder with the record."""
        return self._run.array_folder / SCRIPT

    @property
    def stdout(self) -> Path:
        """What rank 0 says."""
        return self._run.rank_log(0)

    @property
    def stderr(self) -> Path:
        """What the batch script, srun and Slurm say."""
        return self._run.batch_log


class ScriptJob(SlurmHandle[dict[str, object]]):
    """A submitted program. Its result is the summary that the training left (`summary.json`), an empty one otherwise.

    Of an array, `elements()` are the jobs; the array itself is done when all are, and `results()` has one for each.

    Args:
        folder: The run folder.
        job_id: Slurm's id; `12_3` for an element of an array.
        tasks: submitit's; a script has one.

    Attributes:
        found_again: It is of an earlier submission of the same script, whose answer was lost.
    """

    found_again = False

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        super().__init__(folder, job_id, tasks)
        self._paths = RunPaths(self.run)

    def elements(self) -> list[ScriptJob]:
        """The jobs of an array, in the order of their indices; none where it is no array."""
        found = []
        for run in self.run.elements():
            found.append(type(self)(run.folder, run.job_id))
            found[-1].attach(run.folder, self._access, self._cluster)
        return found

    def done(self, force_check: bool = False) -> bool:
        """Whether it is over, all elements of an array included."""
        mode = "force" if force_check else "standard"
        if self.watcher.is_done(self.job_id, mode=mode):
            elements = self.elements()
            return all(job.watcher.is_done(job.job_id) for job in elements)
        return False

    def results(self) -> list[dict[str, object]]:
        """The summaries, one; of an array, one for each element.

        Raises:
            ScriptFailed: It ended badly.
        """
        error = self.exception()
        if error is not None:
            raise error
        return [job.run.summary() for job in self.elements() or [self]]

    def result(self) -> dict[str, object]:
        """The summary of a job that is no array.

        Raises:
            ScriptFailed: It ended badly.
        """
        return self.results()[0]

    def exception(self) -> ScriptFailed | None:
        """How it failed, or None; waits for its end. Of an array, the first element that failed."""
        self.wait()
        ends = (job.outcome() for job in self.elements() or [self])
        return next((ScriptFailed(end) for end in ends if end.exit_status), None)


class FunctionJob(SlurmHandle[R_co]):
    """A submitted function; one result a rank."""

    def results(self) -> list[R_co]:
        """The results of all ranks, in their order.

        Raises:
            ScriptFailed: A rank failed; it is the first that did.
        """
        error = self.exception()
        if error is not None:
            raise error
        found: list[R_co] = super().results()
        return found

    def exception(self) -> ScriptFailed | None:
        """The first failure, or None; waits for the end of the job, or for this task's result."""
        self.wait()
        told = self._answers()
        if all(answer is not None and answer[0] == "success" for answer in told.values()):
            return None
        end = record_outcome(self.run, self.status())
        first = read_first_failure(self._run_folder)
        ranks = [first.rank] if first else [rank for rank, answer in told.items() if answer and answer[0] == "error"]
        if not ranks and not end.exit_status:
            return ScriptFailed(self._without_result(end, told))
        return ScriptFailed(self._with_own_words(end, ranks[0] if ranks else None, told))

    def _answers(self) -> dict[int | None, tuple[str, Any] | None]:
        """What each rank left; of a job that ended well, waited for as long as a slow file system may hide it."""
        jobs = [job for job in (self._sub_jobs or [self]) if isinstance(job, FunctionJob)]
        until = time.monotonic() + self._results_timeout_s
        while True:
            told = {job.task_id: job.answer() for job in jobs}
            if None not in told.values() or self.state != "COMPLETED" or time.monotonic() >= until:
                return told
            # A change of its folder makes NFS ask the server anew for what lies in it.
            with suppress(OSError):
                self.paths.folder.chmod(self.paths.folder.stat().st_mode)
            time.sleep(FILE_PAUSE)

    def answer(self) -> tuple[str, Any] | None:
        """What this rank left: "success" and its result, or "error" and its traceback; None where it left nothing."""
        try:
            answer: tuple[str, Any] = pickle_load(self.paths.result_pickle)
        except (OSError, EOFError):
            return None
        return answer

    def _without_result(self, end: Outcome, told: dict[int | None, tuple[str, Any] | None]) -> Outcome:
        """The outcome of a job that ended well, and of which a rank's result is not there."""
        from hpc_kit.runs.first_failure import RankFailure

        lacking = next(task for task, answer in told.items() if answer is None)
        job = next((each for each in self._sub_jobs if each.task_id == lacking), self)
        rank = lacking or 0
        why = f"rank {rank} left no result: {job.paths.result_pickle} is missing"
        return end._replace(exit_status=1, failure=RankFailure(rank, None, None, None, why, "", None))

    @staticmethod
    def _with_own_words(end: Outcome, rank: int | None, told: dict[int | None, tuple[str, Any] | None]) -> Outcome:
        """The outcome, with the traceback that the failing rank itself has left."""
        answer = told.get(rank)
        if answer is None or answer[0] != "error":
            return end
        from hpc_kit.runs.first_failure import RankFailure, exception_line

        text = str(answer[1]).rstrip()
        earlier = end.failure or RankFailure(rank, None, None, None, "", "", None)
        state = end.state if end.state.failed else JobState.FAILED
        failure = earlier._replace(rank=rank, headline=exception_line(text), text=text)
        return end._replace(state=state, exit_status=end.exit_status or 1, failure=failure)
