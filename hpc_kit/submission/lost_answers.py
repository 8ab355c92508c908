"""Submissions whose answer was lost: found again by the path of their script, before anything is submitted twice."""

from __future__ import annotations

import os
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

    from hpc_kit.runs.access import Access

LOOK_SECONDS = 15.0
"""A controller that was too busy to answer may take a job this long after it answers again."""

AWAY_SECONDS = 60.0
"""How long a controller that does not answer at all is waited for."""

LOOK_PAUSE = 2.0

_SQUEUE = ("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%o")
_SACCT = (
    *("sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-7days"),
    "--format=JobID,State,SubmitLine",
)


class FoundJob(NamedTuple):
    """A job that Slurm has made of a script."""

    job_id: str
    state: JobState
    cluster: str | None
    """Which it is of, where several are asked."""


def find_job(script: Path, access: Access) -> FoundJob | None:
    """The job that was just made of this file, waited for; None where there is none, or Slurm stays away."""
    began = time.monotonic()
    answered: float | None = None
    while True:
        jobs = _queue(access)
        now = time.monotonic()
        if jobs is not None and (found := jobs.get(os.fspath(script))):
            return found
        if jobs is not None and answered is None:
            answered = now
        if (now - answered >= LOOK_SECONDS) if answered is not None else (now - began >= AWAY_SECONDS):
            return None
        time.sleep(LOOK_PAUSE)


def resolve_unanswered(folder: Path, text: str, access: Access, *, repeat: bool) -> str | None:
    """Find out what became of the submissions of `folder` whose answer was lost, and keep the records of those taken.

    Args:
        folder: `runs/<job_name>`.
        text: The script that is about to be submitted.
        access: The Slurm.
        repeat: Whether the same script means the same submission.

    Returns:
        The job that this very script has become already, unless it has failed since; else None.

    Raises:
        SlurmUnavailable: There are such submissions, and Slurm does not answer.
    """
    lost = [own for own in sorted(folder.glob(f"{STAGING}*")) if is_unanswered(own)]
    if not lost:
        return None
    jobs = _known(lost, access)
    same: str | None = None
    for own in lost:
        taken = jobs.get(os.fspath(own / SCRIPT))
        if taken is None:
            discard_unanswered(own, access.remembered())
            continue
        again = repeat and _read(own / SCRIPT) == text and not taken.state.failed
        commit_found_job(own, taken.job_id, taken.cluster)
        same = taken.job_id if again else same
    return same


def _known(lost: Sequence[Path], access: Access) -> dict[str, FoundJob]:
    """All jobs by the path of their script: squeue, and the accounting for what it has forgotten."""
    jobs = _queue(access)
    if jobs is None:
        raise SlurmUnavailable(
            "an earlier submission's answer was lost, and Slurm does not tell yet what became of it",
            found=os.fspath(lost[0]),
            remedy="try again when `scontrol ping` says UP; nothing was submitted now",
        )
    if all(os.fspath(own / SCRIPT) in jobs for own in lost):
        return jobs
    return {**_booked(access), **jobs}


def _queue(access: Access) -> dict[str, FoundJob] | None:
    """The user's jobs by the path that Slurm keeps as their command; None where squeue does not answer."""
    found: dict[str, FoundJob] = {}
    for cluster in access.each():
        told = _told(cluster, _SQUEUE)
        if told is None:
            return None
        found |= _by_path(told, cluster)
    return found


def _booked(access: Access) -> dict[str, FoundJob]:
    found: dict[str, FoundJob] = {}
    for cluster in access.each():
        told = _told(cluster, [*_SACCT, *sacct_clusters(cluster.environ.get("SLURM_CLUSTERS"))]) or ""
        found |= _by_path(told.replace("|sbatch ", "|"), cluster)
    return found


def _told(access: Access, argv: Sequence[str]) -> str | None:
    try:
        answer = access.ask(argv)
    except AnswerNo:
        return None
    return None if answer.returncode else answer.stdout


def _by_path(lines: str, access: Access) -> dict[str, FoundJob]:
    asked = access.environ.get("SLURM_CLUSTERS")
    cluster = asked if cluster_identity.is_one(asked) else None
    found: dict[str, FoundJob] = {}
    for line in lines.splitlines():
        job_id, _, rest = line.partition("|")
        state, _, path = rest.partition("|")
        found[path.strip()] = FoundJob(base_id(job_id.strip()), parse_state(state), cluster)
    return found


def _read(script: Path) -> str | None:
    try:
        return script.read_text(encoding="utf-8")
    except OSError:
        return None
