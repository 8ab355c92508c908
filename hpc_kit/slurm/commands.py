"""Slurm's commands: their argv."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.slurm.job_status import QUEUE_FIELDS, SACCT_FIELDS, SQUEUE_FIELDS

if TYPE_CHECKING:
    from collections.abc import Sequence

SQUEUE_FORMAT = "|".join(SQUEUE_FIELDS.values())
QUEUE_FORMAT = "|".join(QUEUE_FIELDS.values())
SACCT_FORMAT = ",".join(SACCT_FIELDS.values())

MAX_IDS = 200
"""More ids than this are not named on the command line: all jobs of this user are asked for, and sorted out here."""


def squeue_argv(ids: Sequence[str] | None = None) -> list[str]:
    """Ask squeue for these jobs, or for all of this user; finished ones too, which it knows for some minutes."""
    which = f"--jobs={','.join(ids)}" if ids is not None and len(ids) <= MAX_IDS else "--me"
    return ["squeue", "--noheader", "--array", "--states=all", which, f"--format={SQUEUE_FORMAT}"]


def queue_argv() -> list[str]:
    """Ask squeue for everybody's jobs: who goes before whom is seen only so. An array's waiting tasks are one line."""
    return ["squeue", "--noheader", "--states=all", f"--format={QUEUE_FORMAT}"]


def sacct_argv(ids: Sequence[str], *, steps: bool = False, clusters: str | None = None) -> list[str]:
    """Ask the accounting for these jobs, whenever they ran; with `steps` for their batch shells and steps as well.

    Args:
        ids: The jobs.
        steps: Batch shells and steps, too.
        clusters: What SLURM_CLUSTERS says: of Slurm's commands, sacct alone does not read it.
    """
    scope = [*sacct_clusters(clusters), *([] if steps else ["--allocations"])]
    return ["sacct", "--noheader", "--parsable2", *scope, f"--jobs={','.join(ids)}", f"--format={SACCT_FORMAT}"]


def sacct_clusters(clusters: str | None) -> list[str]:
    """The option with which sacct is asked of the clusters that the other commands ask."""
    return [f"--clusters={clusters}"] if clusters else []


def scontrol_job_argv(job_id: str | None = None) -> list[str]:
    """Ask the controller for one job, or for all that it remembers."""
    return ["scontrol", "show", "job", *([job_id] if job_id else [])]


def remedy_of(words: str) -> str:
    """What to do where Slurm does not answer.

    Args:
        words: What its command said.
    """
    if re.search("configuration source", words, re.IGNORECASE):
        return "run this on a login node of the cluster, or add --cluster local for the embedded Slurm"
    if re.search("munge|authentication", words, re.IGNORECASE):
        return "tell the administrators: munge, which vouches for users, does not run on this host"
    return "try again in a while; `scontrol ping` tells whether the controller is up"


def scancel_argv(ids: Sequence[str], signal: str | None = None) -> list[str]:
    """Cancel jobs, or send a signal to their steps."""
    return ["scancel", *([f"--signal={signal}"] if signal else []), *ids]
