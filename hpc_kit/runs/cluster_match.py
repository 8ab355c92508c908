"""Relates runs to clusters. Each cluster counts its jobs from 1, so the same id may name another job elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from hpc_kit.errors import SpecError, UnknownJob
from hpc_kit.run_files import RECORD
from hpc_kit.runs.record import RunRecord, read_record
from hpc_kit.slurm import cluster_identity

if TYPE_CHECKING:
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.client import SlurmClient
    from hpc_kit.slurm.job_status import JobStatus

MAX_CLOCK_DIFFERENCE = 600.0
"""Allowed difference between the clocks of two hosts, in seconds."""


def choose_submit_cluster(option: str | None, environ: Mapping[str, str], client: SlurmClient) -> str | None:
    """Return Slurm's own name of the cluster that sbatch will submit to; None: unknown.

    Raises:
        SpecError: squeue and scancel would query another cluster, where the id belongs to another job.
    """
    if client.embedded:
        return None
    target = cluster_identity.submit_cluster(environ, option)
    queried = cluster_identity.queried_cluster(client.environ)
    if target and queried and not cluster_identity.includes(queried, target):
        variables = {name: client.environ.get(name) for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")}
        settings = {"--clusters": option, **variables}
        raise SpecError(
            f"sbatch would give the job to cluster {target}, and squeue and scancel ask {queried}",
            found=", ".join(f"{name}={value}" if value else f"{name} not set" for name, value in settings.items()),
            remedy=f"use one cluster for all commands: export SLURM_CLUSTERS={target}",
        )
    return target


class ClusterMatch(Enum):
    """Result of a comparison of clusters."""

    SAME = auto()
    OTHER = auto()
    UNKNOWN = auto()


def match_cluster(record: RunRecord, client: SlurmClient) -> ClusterMatch:
    """Compare the cluster of a run with the one that the client queries."""
    if record.slurm != ("embedded" if client.embedded else "system"):
        return ClusterMatch.UNKNOWN
    if client.embedded:
        owner, queried = record.environment.slurm_state, client.environ.get("HPC_KIT_SLURM_STATE")
        is_known, is_same = owner is not None and queried is not None, owner == queried
    else:
        owner, queried = record.slurm_cluster, cluster_identity.queried_cluster(client.environ)
        is_known = queried is not None and cluster_identity.is_one(owner)
        is_same = is_known and cluster_identity.includes(str(queried), str(owner))
    return (ClusterMatch.SAME if is_same else ClusterMatch.OTHER) if is_known else ClusterMatch.UNKNOWN


def may_belong_to(run: Run, cluster: str | None, client: SlurmClient) -> bool:
    """Return whether a run may belong to the queried Slurm.

    The identities of the clusters decide if both are known. Otherwise two cluster files of a real Slurm mean the one on
    PATH, unless the run names another configuration or another cluster of it. Without `cluster`, every run belongs to
    it.
    """
    record = run.record
    if cluster is None or record is None or not run.backend.uses_slurm:
        return True
    match = match_cluster(record, client)
    if match is not ClusterMatch.UNKNOWN or record.cluster in {"", cluster}:
        return match is not ClusterMatch.OTHER
    if client.embedded or record.slurm != "system":
        return False
    return (
        record.environment.slurm_conf == client.environ.get("SLURM_CONF")
        and record.resolved.job.resources.clusters is None
    )


def is_same_job(run: Run, status: JobStatus) -> bool:
    """Return whether a status describes this run, and not another user's or an earlier job with the same id.

    The accounting keeps the jobs of a queue whose ids started again from 1.
    """
    record = run.record
    if record is None:
        return True
    if _are_different_users(record.user, status.user):
        return False
    if record.submit_time is None or status.submit is None:
        return True
    # Slurm prints local times without a zone. When summer time ends, an hour occurs twice; fold=1 is the second.
    return status.submit.replace(fold=1).timestamp() > record.submit_time - MAX_CLOCK_DIFFERENCE


def _are_different_users(one: str | None, other: str | None) -> bool:
    # slurmdbd lowers names. A user without an entry on a host is shown as a number.
    names = {name.casefold() for name in (one, other) if name and name != "nobody" and not name.isdigit()}
    return len(names) > 1


def client_for(run: Run | None, client: SlurmClient) -> SlurmClient:
    """Return a client that queries only the run's own cluster, if several are queried."""
    return client.for_cluster(run.record.slurm_cluster) if run is not None and run.record is not None else client


def with_unused_job_id(folder: Path, environ: Mapping[str, str], client: SlurmClient) -> Mapping[str, str]:
    """Return the environment of sbatch with a first job id that no run of another embedded queue in `folder` has.

    Every embedded queue counts from 1, and a job writes into the run folder of its id, whichever queue created it.
    """
    if not client.embedded:
        return environ
    from hpc_kit.slurm.embedded import FIRST_ID_VARIABLE

    ids = sorted((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), reverse=True)
    for job_id in ids:
        run = folder / str(job_id)
        record = read_record(run)
        is_foreign = run.exists() and run.stat().st_uid != os.getuid()  # with a private record, and a queue of its own
        if record is None and not is_foreign:
            continue
        if is_foreign or (record is not None and match_cluster(record, client) is ClusterMatch.OTHER):
            return {**environ, FIRST_ID_VARIABLE: str(job_id + 1)}
        # The queue itself is past this id already.
        break
    return environ


def cluster_option(record: RunRecord) -> str:
    """Return the value of --cluster that means a run's cluster. The name of its file may differ from its own name."""
    words = record.command_line
    # A program that calls `hpc_kit.submit` may have an option --cluster of its own.
    is_own = bool(words) and Path(words[0]).name in {"hpc-kit", "__main__.py"}
    for word, after in zip(words, [*words[1:], ""], strict=True) if is_own else ():
        if word == "--":
            break
        if word.startswith("--cluster=") or (word == "--cluster" and after):
            return word.partition("=")[2] or after
    # The cluster file is the last source; in env/ its name without the suffix is enough.
    source = Path(record.resolved.sources[-1]) if record.resolved.sources else Path()
    return source.stem if source.parent.name == "env" else record.cluster


def describe_cluster(record: RunRecord, client: SlurmClient) -> str:
    """Return a name of the run's cluster that distinguishes it from the queried cluster."""
    if match_cluster(record, client) is ClusterMatch.OTHER:
        if client.embedded:
            if _is_on_another_host(record):
                return f"{record.cluster} on {record.host}"
            # Two embedded queues of one machine have the same name, and differ in their state directory.
            return f"{record.cluster} with HPC_KIT_SLURM_STATE={record.environment.slurm_state}"
        return record.slurm_cluster or record.cluster
    return record.cluster


def command_with_cluster(record: RunRecord, client: SlurmClient, command: str) -> str:
    """Return a command such as `hpc-kit cancel 12` with the option or the host that means the run's cluster."""
    option = f"{command} --cluster {quote(cluster_option(record))}"
    if match_cluster(record, client) is ClusterMatch.OTHER:
        if not client.embedded:
            name = record.slurm_cluster
            return f"{command}, on a login node of {name} or with SLURM_CLUSTERS={name}"
        if _is_on_another_host(record):
            return f"{option}, on {record.host}"
        return f"HPC_KIT_SLURM_STATE={quote(str(record.environment.slurm_state))} {option}"
    return option


def _is_on_another_host(record: RunRecord) -> bool:
    return record.host not in {"", os.uname().nodename}


def unknown_here(run: Run, record: RunRecord, cluster: str | None, client: SlurmClient, command: str) -> UnknownJob:
    """Return the error for a run that belongs to another cluster than the queried one."""
    if not client.embedded and match_cluster(record, client) is ClusterMatch.OTHER:
        cluster = cluster_identity.queried_cluster(client.environ)
    submitted = record.submitted[:19].replace("T", " ")
    return UnknownJob(
        f"job {run.job_id} belongs to cluster {describe_cluster(record, client)}, not to {cluster}",
        found=f"{run.array_folder / RECORD}: {run.name}, submitted {submitted}",
        remedy=f"{command_with_cluster(record, client, command)}; see who owns the id here: squeue --job={run.job_id}",
    )
