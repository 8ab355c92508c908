"""What the handles of programs and of functions share: submitit's `Job`, with a state that needs no accounting."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from submitit.core.utils import FailedJobError
from submitit.slurm.slurm import SlurmJob, SlurmJobEnvironment

from hpc_kit.errors import JobFailed, SlurmUnavailable
from hpc_kit.runs.access import Access, access_of
from hpc_kit.runs.outcome import Outcome, end_of, end_state
from hpc_kit.runs.run_folders import Run, of_folder
from hpc_kit.slurm.commands import scancel_argv
from hpc_kit.submission.watcher import Watcher, watcher_of

if TYPE_CHECKING:
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


class Handle(SlurmJob[R_co]):
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
            if isinstance(task, Handle):
                task.attach(run, access, cluster)

    @property
    def access(self) -> Access:
        """Its Slurm."""
        if self._access is None:
            self._access = access_of(self._cluster) if self._cluster else Access(dict(os.environ), embedded=False)
        return self._access

    @property
    def watcher(self) -> Watcher:  # type: ignore[override]  # one for each Slurm, where submitit has one for all
        """Who asks that Slurm."""
        return watcher_of(self.access)

    @property
    def run(self) -> Run:
        """Its logs, markers and record."""
        return of_folder(self._run_folder)

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
        return str(end_state(self.run, self.status()))

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
        return end_of(self.run, self.status())
