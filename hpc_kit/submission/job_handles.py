"""Handles of submitted jobs: a program's result is its summary, a function's one value a rank."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submitit.core.utils import JobPaths, pickle_load

from hpc_kit.run_files import SCRIPT, read_first_failure
from hpc_kit.runs.outcome import Outcome, end_of
from hpc_kit.slurm.states import State
from hpc_kit.submission.handle import FILE_PAUSE, Handle, R_co, ScriptFailed

if TYPE_CHECKING:
    from hpc_kit.runs.run_folders import Run

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


class ScriptJob(Handle[dict[str, object]]):
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


class FunctionJob(Handle[R_co]):
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
        end = end_of(self.run, self.status())
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
        from hpc_kit.runs.first_failure import Failure

        lacking = next(task for task, answer in told.items() if answer is None)
        job = next((each for each in self._sub_jobs if each.task_id == lacking), self)
        rank = lacking or 0
        why = f"rank {rank} left no result: {job.paths.result_pickle} is missing"
        return end._replace(exit_status=1, failure=Failure(rank, None, None, None, why, "", None))

    @staticmethod
    def _with_own_words(end: Outcome, rank: int | None, told: dict[int | None, tuple[str, Any] | None]) -> Outcome:
        """The outcome, with the traceback that the failing rank itself has left."""
        answer = told.get(rank)
        if answer is None or answer[0] != "error":
            return end
        from hpc_kit.runs.first_failure import Failure
        from hpc_kit.runs.tracebacks import headline

        text = str(answer[1]).rstrip()
        earlier = end.failure or Failure(rank, None, None, None, "", "", None)
        state = end.state if end.state.failed else State.FAILED
        failure = earlier._replace(rank=rank, headline=headline(text), text=text)
        return end._replace(state=state, exit_status=end.exit_status or 1, failure=failure)
