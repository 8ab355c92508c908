"""Finds the job of a submission whose answer was lost, by the path of its script: no job is submitted twice."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import AnswerNo, SlurmUnavailable
from hpc_kit.run_files import SCRIPT
from hpc_kit.slurm import cluster_identity
from hpc_kit.slurm.job_ids import base_id
from hpc_kit.slurm.job_status import sacct_clusters
from hpc_kit.slurm.states import JobState, parse_state
from hpc_kit.submission.staging import STAGING, commit_found_job, discard_unanswered, is_unanswered

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpc_kit.slurm.client import SlurmClient

LOOK_SECONDS = 15.0
"""After a busy controller answers again, it may take this long until it lists the job."""

AWAY_SECONDS = 60.0
"""Time limit for a controller that does not answer at all."""

LOOK_PAUSE = 2.0

_SQUEUE = ("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%o")
_SACCT = (
    *("sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-7days"),
    "--format=JobID,State,SubmitLine",
)

_SUBMIT_COMMAND = re.compile(r"\|[^|\s]*sbatch[^|\s]* (?:--\S+ )*")
"""The beginning of a SubmitLine such as `sbatch --exclude=n1 PATH`. squeue prints the path alone."""


class FoundJob(NamedTuple):
    """A job that Slurm created from a script."""

    job_id: str
    state: JobState
    cluster: str | None
    """Its cluster, if several are queried."""


def find_job(script: Path, client: SlurmClient) -> FoundJob | None:
    """Wait for the job of a script that was just submitted; None if there is none, or if Slurm does not answer."""
    began = time.monotonic()
    answered: float | None = None
    # squeue may answer before the controller has processed the request of sbatch.
    while True:
        jobs = _query_queue(client)
        now = time.monotonic()
        if jobs is not None and (found := jobs.get(os.fspath(script))):
            return found
        if jobs is not None and answered is None:
            answered = now
        if (now - answered >= LOOK_SECONDS) if answered is not None else (now - began >= AWAY_SECONDS):
            return None
        time.sleep(LOOK_PAUSE)


def resolve_unanswered(folder: Path, text: str, client: SlurmClient, *, repeat: bool) -> str | None:
    """Find the jobs of the unanswered submissions in `folder`, and commit their records.

    Return the job of this very script, unless it has failed since; else None. `repeat`: the same script means the same
    submission.

    Raises:
        SlurmUnavailable: There are such submissions, and Slurm does not answer.
    """
    unanswered = [own for own in sorted(folder.glob(f"{STAGING}*")) if is_unanswered(own)]
    if not unanswered:
        return None
    jobs = _query_jobs(unanswered, client)
    same: str | None = None
    for own in unanswered:
        found = jobs.get(os.fspath(own / SCRIPT))
        if found is None:
            discard_unanswered(own, client.min_job_age())
            continue
        is_same = repeat and not found.state.failed and _script_text(own / SCRIPT) == text
        commit_found_job(own, found.job_id, found.cluster)
        same = found.job_id if is_same else same
    return same


def _query_jobs(unanswered: Sequence[Path], client: SlurmClient) -> dict[str, FoundJob]:
    """Return the user's jobs by the path of their script: from squeue, and from sacct if squeue has forgotten one."""
    jobs = _query_queue(client)
    if jobs is None:
        raise SlurmUnavailable(
            "an earlier submission's answer was lost, and Slurm does not tell yet what became of it",
            found=os.fspath(unanswered[0]),
            remedy="try again when `scontrol ping` prints UP; nothing was submitted now",
        )
    if all(os.fspath(own / SCRIPT) in jobs for own in unanswered):
        return jobs
    # squeue is more recent than the accounting.
    return {**_query_accounting(client), **jobs}


def _query_queue(client: SlurmClient) -> dict[str, FoundJob] | None:
    """Return the user's jobs in the queue by the path of their script; None if squeue does not answer."""
    found: dict[str, FoundJob] = {}
    for cluster in client.for_each_cluster():
        output = _output_if_answered(cluster, _SQUEUE)
        if output is None:
            return None
        found |= _parse_jobs(output, cluster)
    return found


def _query_accounting(client: SlurmClient) -> dict[str, FoundJob]:
    found: dict[str, FoundJob] = {}
    for cluster in client.for_each_cluster():
        output = _output_if_answered(cluster, [*_SACCT, *sacct_clusters(cluster.environ.get("SLURM_CLUSTERS"))]) or ""
        found |= _parse_jobs(_SUBMIT_COMMAND.sub("|", output), cluster)
    return found


def _output_if_answered(client: SlurmClient, argv: Sequence[str]) -> str | None:
    try:
        answer = client.run(argv)
    except AnswerNo:
        return None
    return None if answer.returncode else answer.stdout


def _parse_jobs(lines: str, client: SlurmClient) -> dict[str, FoundJob]:
    queried = client.environ.get("SLURM_CLUSTERS")
    cluster = queried if cluster_identity.is_one(queried) else None
    rows = ([field.strip() for field in line.split("|", 2)] for line in lines.splitlines() if line.count("|") > 1)
    return {path: FoundJob(base_id(job_id), parse_state(state), cluster) for job_id, state, path in rows}


def _script_text(script: Path) -> str | None:
    try:
        return script.read_text(encoding="utf-8")
    except OSError:
        return None
