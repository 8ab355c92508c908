"""Cancels jobs by id or by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hpc_kit.runs.backend import SLURM, Backend
from hpc_kit.runs.cluster_match import may_belong_to, unknown_here
from hpc_kit.runs.known_jobs import JobSelection
from hpc_kit.runs.run_folders import Run, RunIndex
from hpc_kit.runs.status import JobLine, list_jobs
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.job_ids import base_id


def cancel(words: Sequence[str], runs: Path, client: SlurmClient, *, cluster: str | None = None) -> list[JobLine]:
    """Cancel jobs by id, or all jobs of a name; returns the state of each before. Ended jobs stay as they are.

    A run of another cluster than that of the file `cluster` is not cancelled, nor the job that has its id here.

    Raises:
        UnknownJob: Neither Slurm nor `runs` knows an id or a name, or it belongs to another cluster. Then no job is
            cancelled.
        SlurmUnavailable: Slurm does not answer, or refuses.
        LaunchError: A launch over ssh cannot be cancelled from here.
    """
    selection, index = JobSelection.from_words(words), RunIndex(runs)
    runs_by_id = {
        job_id: index.find(job_id, lambda run: may_belong_to(run, cluster, client)) for job_id in selection.ids
    }
    _check_cluster(runs_by_id.values(), cluster, client)
    # This raises before anything is cancelled if an id or a name is unknown.
    before = list_jobs(selection, index, client, cluster=cluster, require_slurm=True).lines
    queued_names = {line.name for line in before if line.status is not None}
    others = (run for name in selection.names if name not in queued_names for run in index.find_by_name(name)[:1])
    _check_cluster(others, cluster, client)
    going = [line for line in before if line.status is not None and not line.status.state.finished]
    known = {
        job_id for line in going for job_id in (line.job_id, base_id(line.job_id), line.status and line.status.raw_id)
    }
    # An array is cancelled as a whole, or by the ids of elements as they were typed.
    ids = [job_id for job_id in selection.ids if job_id in known]
    ids += [base_id(line.job_id) for line in going if line.name in selection.names]
    runs_by_id |= {base_id(line.job_id): line.run for line in going if base_id(line.job_id) not in runs_by_id}
    by_backend: dict[Backend, dict[str, Run | None]] = {}
    for job_id in dict.fromkeys(ids):
        run = runs_by_id.get(job_id)
        by_backend.setdefault(run.backend if run is not None else SLURM, {})[job_id] = run
    for backend, jobs in by_backend.items():
        backend.cancel(jobs, client)
    return before


def needs_slurm(words: Sequence[str], runs: Path) -> bool:
    """Return whether Slurm may know one of the jobs; False if all are ids of launches over ssh."""
    selection, index = JobSelection.from_words(words), RunIndex(runs)
    runs_by_id = map(index.find, selection.ids)
    return bool(selection.names) or any(run is None or run.backend.uses_slurm for run in runs_by_id)


def _check_cluster(runs: Iterable[Run | None], cluster: str | None, client: SlurmClient) -> None:
    """Refuse a run of another cluster: its id may belong to another job here."""
    for run in runs:
        if run is not None and run.record is not None and not may_belong_to(run, cluster, client):
            raise unknown_here(run, run.record, cluster, client, f"hpc-kit cancel {run.job_id}")
