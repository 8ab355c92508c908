"""Ending jobs, by id or by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.runs import launched
from hpc_kit.runs.cluster_match import client_for, may_belong_to, unknown_here
from hpc_kit.runs.run_folders import RunIndex
from hpc_kit.runs.status import JobLine, JobSelection, statuses
from hpc_kit.slurm.job_ids import base_id
from hpc_kit.slurm.job_status import scancel_argv

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hpc_kit.runs.access import Access
    from hpc_kit.runs.run_folders import Run


def cancel(words: Sequence[str], runs: Path, access: Access, *, cluster: str | None = None) -> list[JobLine]:
    """End jobs, by id or all of a name; returns what each was before. One that has ended already is left as it is.

    Args:
        words: Ids and names of jobs.
        runs: The folder of runs.
        access: The Slurm.
        cluster: Its name in records: a run of another cluster is not ended, nor who has its id here. None: all are.

    Raises:
        UnknownJob: Of an id or name, neither Slurm nor `runs` knows anything, or it is of another cluster; then none is
            cancelled.
        SlurmUnavailable: Slurm does not answer, or refuses.
    """
    wanted = JobSelection.from_words(words)
    known_runs = RunIndex(runs)
    runs_of = {
        job_id: known_runs.find(job_id, lambda run: may_belong_to(run, cluster, access)) for job_id in wanted.ids
    }
    _check_cluster(runs_of.values(), cluster, access)
    before = statuses(words, runs, access, cluster=cluster)
    here = {line.name for line in before if line.status is not None}
    _check_cluster(
        (run for name in wanted.names if name not in here for run in known_runs.find_by_name(name)[:1]), cluster, access
    )
    going = [line for line in before if line.status is not None and not line.status.state.finished]
    for line in going:
        if line.run is not None and line.run.is_launch:
            launched.stop(line.run)
    going = [line for line in going if line.run is None or not line.run.is_launch]
    known = {
        job_id for line in going for job_id in (line.job_id, base_id(line.job_id), line.status and line.status.raw_id)
    }
    ids = [job_id for job_id in wanted.ids if job_id in known]
    ids += [base_id(line.job_id) for line in going if line.name in wanted.names]
    runs_of |= {base_id(line.job_id): line.run for line in going if base_id(line.job_id) not in runs_of}
    by_cluster: dict[str | None, list[str]] = {}
    for job_id in dict.fromkeys(ids):
        own = client_for(runs_of.get(job_id), access)
        by_cluster.setdefault(own.environ.get("SLURM_CLUSTERS"), []).append(job_id)
    for name, own_ids in by_cluster.items():
        _scancel(own_ids, access.at(name))
    return before


def are_launches(words: Sequence[str], runs: Path) -> bool:
    """Whether all that is named are launches over ssh, by id: no Slurm is needed to end them."""
    known, wanted = RunIndex(runs), JobSelection.from_words(words)
    found = [known.find(job_id) for job_id in wanted.ids]
    return not wanted.names and all(run is not None and run.is_launch for run in found)


def _scancel(ids: list[str], access: Access) -> None:
    answer = access.ask(scancel_argv(ids))
    if answer.returncode and "already completing or completed" not in answer.stderr:
        raise SlurmUnavailable(
            f"scancel did not end {', '.join(ids)}",
            found=answer.stderr.strip() or f"exit status {answer.returncode}",
            remedy="see who owns it: squeue --job=" + ",".join(ids),
        )


def _check_cluster(runs: Iterable[Run | None], cluster: str | None, access: Access) -> None:
    """Each cluster counts from 1: an id that means a run of another one must not end whoever has it here."""
    for run in runs:
        if run is not None and run.record is not None and not may_belong_to(run, cluster, access):
            raise unknown_here(run, run.record, cluster, access, f"hpc-kit cancel {run.job_id}")
