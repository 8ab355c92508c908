"""Which Slurm a run is of, as far as its record tells: every Slurm counts its jobs from 1."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from hpc_kit.errors import SpecError, UnknownJob
from hpc_kit.run_files import RECORD
from hpc_kit.runs import record
from hpc_kit.slurm import cluster_identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.runs.access import Access
    from hpc_kit.runs.record import RunRecord
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.job_status import JobStatus

_CLOCKS = dt.timedelta(minutes=10)
"""So much the clocks of two hosts may differ."""


def recipient(option: str | None, environ: Mapping[str, str], access: Access) -> str | None:
    """Slurm's own name for the cluster that sbatch gives a job to; None where it is not known.

    Args:
        option: What the job says as --clusters.
        environ: The environment of sbatch.
        access: How the job is asked for afterwards.

    Raises:
        SpecError: Its other commands would ask another cluster, where that id is somebody else's.
    """
    if access.embedded:
        return None
    taken, asked = cluster_identity.chosen(environ, option), cluster_identity.asked(access.environ)
    if taken and asked and not cluster_identity.reaches(asked, taken):
        variables = {name: access.environ.get(name) for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")}
        told = {"--clusters": option, **variables}
        raise SpecError(
            f"sbatch would give the job to cluster {taken}, and squeue and scancel ask {asked}",
            found=", ".join(f"{name}={value}" if value else f"{name} not set" for name, value in told.items()),
            remedy=f"the same for all commands: export SLURM_CLUSTERS={taken}",
        )
    return taken


def same_cluster(known: RunRecord, access: Access) -> bool | None:
    """Whether a run's cluster, by Slurm's own name, is one of those that are asked; None: not known."""
    asked = None if access.embedded or known.slurm != "system" else cluster_identity.asked(access.environ)
    if asked is None or known.slurm_cluster is None or not cluster_identity.is_one(known.slurm_cluster):
        return None
    return cluster_identity.reaches(asked, known.slurm_cluster)


def client_for(run: Run | None, access: Access) -> Access:
    """How to ask of a run: of several clusters its own alone."""
    return access.at(run.record.slurm_cluster) if run is not None and run.record is not None else access


def is_same_job(run: Run, status: JobStatus) -> bool:
    """Whether Slurm speaks of this run, and not of another job that had its id: another user's, or an earlier one.

    An accounting keeps a queue's jobs also after its ids began anew.
    """
    known = run.record
    if known is None:
        return True
    if _is_another(known.user, status.user):
        return False
    try:
        submitted = dt.datetime.fromisoformat(known.submitted).astimezone().replace(tzinfo=None)
    except ValueError:
        return True
    return status.submit is None or status.submit > submitted - _CLOCKS


def _is_another(known: str | None, told: str | None) -> bool:
    """Whether two names are two users': slurmdbd lowers names, and a user without an entry on a host is a number."""
    names = {name.casefold() for name in (known, told) if name and name != "nobody" and not name.isdigit()}
    return len(names) > 1


def _same_queue(known: RunRecord, access: Access) -> bool | None:
    """Whether a run's embedded Slurm is the embedded one that is asked; None: its record does not tell."""
    own = known.environment.slurm_state
    if not access.embedded or known.slurm != "embedded" or own is None:
        return None
    return own == access.environ.get("HPC_KIT_SLURM_STATE")


def with_own_ids(folder: Path, environ: Mapping[str, str], access: Access) -> Mapping[str, str]:
    """The environment for sbatch with which a job gets an id that no run of another queue has in this folder.

    Every embedded queue counts from 1, and a job writes into the folder of its id whoever's files are there. So the
    ids of other queues that are above this one's own are passed over.

    Args:
        folder: `runs/<job_name>`.
        environ: The environment as it would be.
        access: The Slurm.
    """
    if not access.embedded:
        return environ
    from hpc_kit.slurm.embedded import FIRST_ID_VARIABLE

    ids = sorted((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), reverse=True)
    for job_id in ids:
        known = record.read_record(folder / str(job_id))
        if known is not None and _same_queue(known, access) is not False:
            break
        if known is not None:
            return {**environ, FIRST_ID_VARIABLE: str(job_id + 1)}
    return environ


def may_belong_to(run: Run, cluster: str | None, access: Access) -> bool:
    """Whether a run may be of this Slurm.

    Slurm's own name for its cluster decides, where both are known, and for the embedded one its state directory. Else
    two cluster files of a real Slurm mean the one on PATH, unless the run names another configuration or another
    cluster of it.

    Args:
        run: The run.
        cluster: The name of the cluster that is asked; None: whatever is asked counts as the run's own.
        access: How it is asked.
    """
    known = run.record
    if cluster is None or known is None or run.is_launch:
        return True
    same = _same_queue(known, access) if access.embedded else same_cluster(known, access)
    if same is not None or known.cluster in {"", cluster}:
        return same is not False
    if known.slurm != ("embedded" if access.embedded else "system"):
        return False
    if access.embedded:
        return False
    return (
        known.environment.slurm_conf == access.environ.get("SLURM_CONF")
        and known.resolved.job.resources.clusters is None
    )


def cluster_option(known: RunRecord) -> str:
    """What is typed behind --cluster to mean a run's cluster: its name may be another than that of its file."""
    words = known.command_line
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == "--":
            break
        if word.startswith("--cluster=") or (word == "--cluster" and after):
            return word.partition("=")[2] or after
    source = Path(known.resolved.sources[-1]) if known.resolved.sources else Path()
    return source.stem if source.parent.name == "env" else known.cluster


def command_with_cluster(known: RunRecord, access: Access, command: str) -> str:
    """What is typed to mean a run's cluster, `hpc-kit cancel 12` and the like, or where."""
    if same_cluster(known, access) is False:
        return f"{command}, on a login node of {known.slurm_cluster} or with SLURM_CLUSTERS={known.slurm_cluster}"
    if _same_queue(known, access) is False and known.host not in {"", os.uname().nodename}:
        return f"{command} --cluster {quote(cluster_option(known))}, on {known.host}"
    return f"{command} --cluster {quote(cluster_option(known))}"


def describe_cluster(known: RunRecord, access: Access) -> str:
    """The name of a run's cluster that tells it from the one that is asked."""
    if _same_queue(known, access) is False and known.host not in {"", os.uname().nodename}:
        return f"{known.cluster} on {known.host}"
    return known.slurm_cluster or known.cluster if same_cluster(known, access) is False else known.cluster


def unknown_here(run: Run, known: RunRecord, cluster: str | None, access: Access, command: str) -> UnknownJob:
    """What is said of a run of another Slurm than the one that is asked.

    Args:
        run: The run.
        known: Its record.
        cluster: The name of the cluster that is asked.
        access: How it is asked.
        command: What was to be done, but for the cluster: `hpc-kit cancel 12`.
    """
    if same_cluster(known, access) is False:
        cluster = cluster_identity.asked(access.environ)
    return UnknownJob(
        f"job {run.job_id} is one of cluster {describe_cluster(known, access)}, and {cluster} was to be asked",
        found=f"{run.array_folder / RECORD}: {run.name}, submitted {known.submitted[:19].replace('T', ' ')}",
        remedy=f"{command_with_cluster(known, access, command)}; who has that id here: squeue --job={run.job_id}",
    )
