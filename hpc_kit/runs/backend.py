"""The backends of runs: Slurm, and the launcher over ssh. A backend reports the state of its runs and cancels them.

The command line registers the backend of the ssh launcher. Slurm's backend is here, because every run without a record
is one of Slurm's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.runs.backend_registry import registered_backend
from hpc_kit.runs.cluster_match import client_for
from hpc_kit.slurm.job_status import JobStatus, scancel_argv, status_of_job
from hpc_kit.slurm.states import JobState, explain_state

if TYPE_CHECKING:
    from hpc_kit.runs.record import RunRecord
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.client import SlurmClient


class Backend(Protocol):
    """Reports the state of runs, and cancels them."""

    uses_slurm: bool
    """Slurm's queue lists its jobs."""

    has_batch_script: bool
    """A batch script starts the ranks and has a log of its own."""

    records_outcome: bool
    """The process that runs the job writes the outcome into the record itself."""

    def query(self, runs: Iterable[Run], client: SlurmClient) -> dict[str, JobStatus]:
        """Return the status of runs by job id, with one query for all. A run that has ended may be missing."""
        ...

    def cancel(self, jobs: Mapping[str, Run | None], client: SlurmClient) -> None:
        """Cancel jobs, given by id with their runs."""
        ...

    def state_from_files(self, run: Run) -> JobState:
        """Return the state of a run of which neither the scheduler nor the record has one."""
        ...

    def describe_end(self, run: Run, state: JobState, *, from_files: bool = False) -> str:
        """Return a sentence on the end of a run.

        `from_files`: the scheduler no longer knows the job, and the state was read from the files of the run.
        """
        ...


class SlurmBackend:
    """Jobs in the queue of a Slurm."""

    uses_slurm = True
    has_batch_script = True
    records_outcome = False

    def query(self, runs: Iterable[Run], client: SlurmClient) -> dict[str, JobStatus]:
        """Ask squeue, and sacct for what it has forgotten."""
        ids = [run.job_id for run in runs]
        found = client.query(ids)
        return {job_id: status for job_id in ids if (status := status_of_job(found, job_id)) is not None}

    def cancel(self, jobs: Mapping[str, Run | None], client: SlurmClient) -> None:
        """Run scancel once for each cluster: an id is unambiguous within one cluster only."""
        by_cluster: dict[str | None, list[str]] = {}
        for job_id, run in jobs.items():
            by_cluster.setdefault(client_for(run, client).environ.get("SLURM_CLUSTERS"), []).append(job_id)
        for name, ids in by_cluster.items():
            answer = client.for_cluster(name).run(scancel_argv(ids))
            # A job may end between the query of its state and scancel.
            ended = [line for line in answer.stderr.splitlines() if "already completing or completed" in line]
            errors = [line for line in answer.stderr.splitlines() if "error" in line and line not in ended]
            if answer.returncode and (errors or not ended):
                raise SlurmUnavailable(
                    f"scancel did not cancel {', '.join(ids)}",
                    found=answer.stderr.strip() or f"exit status {answer.returncode}",
                    remedy="look up the owner: squeue --job=" + ",".join(ids),
                )

    def state_from_files(self, run: Run) -> JobState:
        """Read the marker that the batch script writes last."""
        marker = run.end_marker()
        if marker is None:
            return JobState.UNKNOWN
        return JobState.FAILED if marker.exit_code else JobState.COMPLETED

    def describe_end(self, run: Run, state: JobState, *, from_files: bool = False) -> str:
        """Explain the state."""
        recorded = run.record.end if run.record is not None else None
        if recorded is not None and recorded.problem is not None:
            return recorded.problem
        if not from_files:
            return explain_state(state)
        if state is JobState.UNKNOWN:
            return "Slurm no longer knows the job, and its script did not reach its end."
        return f"{explain_state(state)} Slurm no longer knows the job; its state comes from its files."


SLURM = SlurmBackend()


def backend_of(record: RunRecord | None) -> Backend:
    """Return the backend that a record names; Slurm's for a run without a record."""
    return (record and registered_backend(record.slurm)) or SLURM


def query_runs(runs: Iterable[Run], client: SlurmClient) -> dict[str, JobStatus]:
    """Return the status of runs of any backend by job id, with one query for each backend."""
    by_backend: dict[Backend, list[Run]] = {}
    for run in runs:
        by_backend.setdefault(run.backend, []).append(run)
    return {job_id: each for backend, own in by_backend.items() for job_id, each in backend.query(own, client).items()}
