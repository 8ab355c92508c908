"""Collects what Slurm, further backends and the run folders report about the jobs of a listing."""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from typing import NamedTuple

from hpc_kit.errors import UnknownJob
from hpc_kit.runs.backend import query_runs
from hpc_kit.runs.cluster_match import is_same_job, may_belong_to
from hpc_kit.runs.outcome import recorded_outcome
from hpc_kit.runs.run_folders import RECENT_RUNS, Run, RunIndex
from hpc_kit.slurm.client import SlurmClient, user_name
from hpc_kit.slurm.job_ids import base_id, parse_job_ids
from hpc_kit.slurm.job_status import JobStatus
from hpc_kit.slurm.queries import QueueSnapshot


class JobSelection(NamedTuple):
    """The jobs of a listing: by id, by name, the queue of this user, the latest runs."""

    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    mine: bool = False
    latest: bool = False
    project_only: bool = False
    """List only those queued jobs that belong to this project. A name always means jobs of this project."""

    is_repeated: bool = False
    """An earlier poll found these jobs: a missing job is no error, and the ended elements of an array do not matter."""

    @classmethod
    def from_words(cls, words: Iterable[str] | None) -> JobSelection:
        """Return the selection that words of a command line mean: ids as Slurm writes them, all others job names."""
        given = list(dict.fromkeys(words or ()))
        ids = tuple(dict.fromkeys(job_id for word in given for job_id in parse_job_ids(word)))
        names = tuple(word for word in given if not parse_job_ids(word))
        return cls(ids, names, mine=not given, latest=not given)


class KnownJobs:
    """The answers to the queries for the jobs of a selection: one squeue, one sacct, and the files of the runs.

    The controller may not have answered (`unreachable`). The answers then come from the accounting and from files.

    Args:
        selection: The jobs.
        index: The runs of the project.
        client: The commands of Slurm.
        cluster: Runs of another cluster than that of this file are not queried; None: all runs are.
    """

    def __init__(self, selection: JobSelection, index: RunIndex, client: SlurmClient, cluster: str | None) -> None:
        self.selection, self.index, self.client, self.cluster = selection, index, client, cluster
        self.user = user_name()
        self.recent = self._recent_runs()
        """Recent runs that the selection means, also if Slurm has forgotten their jobs."""

        snapshot = self._query_slurm()
        self.queue, self.unreachable = snapshot.queue, snapshot.unreachable
        """The queue of all users, and the error if the controller did not answer."""

        self.other_jobs: list[JobStatus] = []
        """Jobs of this user with the right names, which belong to other projects."""

        # If jobs of two clusters have one id, the one of the run wins.
        self._by_id = {each.job_id: each for each in self._own_queue()} | snapshot.found | self._query_others()
        self._by_base: dict[str, list[JobStatus]] = {}
        for job_id, status in self._by_id.items():
            # A task of an array that was queried by its own number has two keys.
            if job_id == status.job_id:
                self._by_base.setdefault(base_id(job_id), []).append(status)

    def base_ids(self) -> KeysView[str]:
        """Return the ids of the jobs that Slurm knows. The elements of an array are one job."""
        return self._by_base.keys()

    def statuses(self, job_id: str) -> list[JobStatus]:
        """Return Slurm's status of a job, or of each of its elements or components; an empty list if it has none."""
        statuses = self._by_base.get(job_id, [])
        # While Slurm splits an array, it may list the array beside its elements.
        parts = [status for status in statuses if status.job_id != job_id] or statuses
        if not parts and job_id in self._by_id:
            return [self._by_id[job_id]]
        return parts

    def find_run(self, job_id: str) -> Run | None:
        """Return the run of a job; of jobs of two clusters with this id, the one of this cluster."""
        return self.index.find(job_id, self.is_here)

    def is_here(self, run: Run) -> bool:
        """Return whether a run may be one of this cluster."""
        return may_belong_to(run, self.cluster, self.client)

    def has_name(self, job_id: str, name: str) -> bool:
        """Return whether a job has a name."""
        run = self.find_run(job_id)
        return (run is not None and run.name == name) or any(
            each.name == name for each in self._by_base.get(base_id(job_id), [])
        )

    def owns_id(self, run: Run) -> bool:
        """Return whether the id of a run means this run in the listing, and not a job of another cluster."""
        found = self.find_run(run.job_id)
        is_own = found is not None and found.folder == run.folder
        return is_own and (self.is_here(run) or run.job_id not in self._by_base)

    def unknown_job_error(self, missing: list[str]) -> UnknownJob:
        """Return the error that nothing is known about some ids or names."""
        named = [each for each in self.other_jobs if each.name in missing]
        if not named:
            return self.index.unknown_job_error(missing, "Slurm does not know it, and ")
        elsewhere = list(dict.fromkeys(base_id(each.job_id) for each in named if not each.state.finished))
        if not elsewhere:
            return UnknownJob(
                f"no job of this project is named {', '.join(missing)}",
                found="your jobs with this name were submitted elsewhere, and have ended",
                remedy="run this in the project that submitted them",
            )
        return UnknownJob(
            f"no job of this project is named {', '.join(missing)}",
            found=f"jobs of yours with this name, submitted elsewhere: {', '.join(elsewhere[:10])}",
            remedy=f"use the id of a job ({elsewhere[0]}), or run this in the project that submitted it",
        )

    def _recent_runs(self) -> list[Run]:
        if self.selection.names:
            return [run for name in self.selection.names for run in self.index.find_by_name(name)[:RECENT_RUNS]]
        return self.index.recent(4 * RECENT_RUNS) if self.selection.latest else []

    def _query_slurm(self) -> QueueSnapshot:
        """Query each cluster for its own runs, and for the ids without a run."""
        unfinished = (run.job_id for run in self.recent if self.is_here(run) and recorded_outcome(run) is None)
        ids = {job_id: self.find_run(job_id) for job_id in (*self.selection.ids, *unfinished)}
        runs = {job_id: run for job_id, run in ids.items() if run is None or run.backend.uses_slurm}
        if ids and not (runs or self.selection.names or self.selection.mine):
            return QueueSnapshot([], {}, None)
        parts = []
        for client in self.client.for_each_cluster():
            own = [
                job_id
                for job_id, run in runs.items()
                if run is None or not self.is_here(run) or may_belong_to(run, self.cluster, client)
            ]
            # The queue of all users shows how many jobs are ahead; the ids add the jobs that have ended.
            parts.append(client.query_queue(own, ended=not self.selection.is_repeated))
        queue = [each for part in parts for each in part.queue]
        found = {job_id: each for part in reversed(parts) for job_id, each in part.found.items()}
        return QueueSnapshot(queue, found, next((part.unreachable for part in parts if part.unreachable), None))

    def _query_others(self) -> dict[str, JobStatus]:
        """Query the backends that are not in Slurm's queue."""
        runs = [*filter(None, map(self.find_run, self.selection.ids)), *self.recent]
        return query_runs([run for run in runs if not run.backend.uses_slurm], self.client)

    def _own_queue(self) -> list[JobStatus]:
        mine, names = self.selection.mine, self.selection.names
        jobs = [each for each in self.queue if each.user == self.user and (mine or each.name in names)]
        if not (self.selection.project_only or names):
            return jobs
        of_project: list[JobStatus] = []
        for each in jobs:
            (of_project if self._is_of_project(each) else self.other_jobs).append(each)
        return of_project

    def _is_of_project(self, status: JobStatus) -> bool:
        run = self.find_run(base_id(status.job_id))
        return run is not None and run.name == status.name and self.is_here(run) and is_same_job(run, status)
