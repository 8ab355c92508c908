"""One watcher for all jobs of a Slurm: submitit's `InfoWatcher`, with squeue before the accounting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from submitit.slurm.slurm import SlurmInfoWatcher

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.runs.follow import LOST_LOOKS
from hpc_kit.slurm.job_ids import base_id
from hpc_kit.slurm.job_status import combined
from hpc_kit.slurm.states import State

if TYPE_CHECKING:
    from hpc_kit.runs.access import Access
    from hpc_kit.slurm.job_status import JobStatus


class Watcher(SlurmInfoWatcher):
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
        self.statuses |= {**{base: combined(own) for base, own in arrays.items()}, **told}
        for job_id in wanted:
            known = self.statuses.get(job_id)
            self._misses[job_id] = 0 if known else self._misses.get(job_id, 0) + 1
            if known and known.state.finished:
                self._finished.add(job_id)

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Slurm's state; UNKNOWN where it does not know the job."""
        self.get_info(job_id, mode)
        status = self.statuses.get(job_id)
        return str(status.state if status else State.UNKNOWN)

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
        return State(state).finished or self._misses.get(job_id, 0) >= LOST_LOOKS


_WATCHERS: dict[tuple[str | None, ...], Watcher] = {}
_TELLING = ("PATH", "SLURM_CONF", "SLURM_CLUSTERS", "HPC_KIT_SLURM_CONF", "HPC_KIT_SLURM_STATE")


def watcher_of(access: Access) -> Watcher:
    """The one watcher of a Slurm."""
    key = (str(access.embedded), *(access.environ.get(name) for name in _TELLING))
    return _WATCHERS.setdefault(key, Watcher(access))
