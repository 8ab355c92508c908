"""Which Slurm a run is of, as far as its record tells: every Slurm counts its jobs from 1."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from hpc_kit.errors import UnknownJob
from hpc_kit.run_files import RECORD

if TYPE_CHECKING:
    from hpc_kit.submit.access import Access
    from hpc_kit.submit.record import Known
    from hpc_kit.submit.runs import Run


def is_of(run: Run, cluster: str | None, access: Access) -> bool:
    """Whether a run may be of this Slurm.

    Two cluster files of a real Slurm mean the one on PATH, unless the run names another configuration or another
    cluster of it; two of the embedded one are the same where their state directory is.

    Args:
        run: The run.
        cluster: The name of the cluster that is asked; None: whatever is asked counts as the run's own.
        access: How it is asked.
    """
    known = run.known
    if cluster is None or known is None or known.cluster in {"", cluster}:
        return True
    if known.slurm != ("embedded" if access.embedded else "system"):
        return False
    there = known.environment
    if access.embedded:
        return there.slurm_state is not None and there.slurm_state == access.environ.get("HPC_KIT_SLURM_STATE")
    return there.slurm_conf == access.environ.get("SLURM_CONF") and known.resolved.job.resources.clusters is None


def typed_name(known: Known) -> str:
    """What is typed behind --cluster to mean a run's cluster: its name may be another than that of its file."""
    words = known.command_line
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == "--":
            break
        if word.startswith("--cluster=") or (word == "--cluster" and after):
            return word.partition("=")[2] or after
    source = Path(known.resolved.sources[-1]) if known.resolved.sources else Path()
    return source.stem if source.parent.name == "env" else known.cluster


def elsewhere(run: Run, known: Known, cluster: str | None, command: str) -> UnknownJob:
    """What is said of a run of another Slurm than the one that is asked.

    Args:
        run: The run.
        known: Its record.
        cluster: The name of the cluster that is asked.
        command: What was to be done, but for the cluster: `hpc-kit cancel 12`.
    """
    return UnknownJob(
        f"job {run.job_id} is one of cluster {known.cluster}, and {cluster} was to be asked",
        found=f"{run.array_folder / RECORD}: {run.name}, submitted {known.submitted[:19].replace('T', ' ')}",
        remedy=f"{command} --cluster {quote(typed_name(known))}; who has that id here: squeue --job={run.job_id}",
    )
