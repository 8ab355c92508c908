"""Chooses the cluster file if the user names none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

VARIABLE = "HPC_KIT_CLUSTER"
"""Environment variable: name or path of the cluster file, for people who work on one cluster only."""


class ClusterChoice(Struct, frozen=True):
    """A cluster file, and facts about the machine as `--set` values."""

    name: str
    settings: dict[str, object]


def default_cluster(root: Path, environ: Mapping[str, str], *, require_answer: bool = True) -> ClusterChoice:
    """Return $HPC_KIT_CLUSTER, else the project's env/default.toml, else `slurm` if there is a Slurm, else `local`.

    Inside a job of the embedded Slurm the result is the cluster of that job. `require_answer`: raise SlurmUnavailable
    if sbatch exists but Slurm does not answer. Otherwise that counts as `slurm`.
    """
    if named := configured_name(root, environ):
        return ClusterChoice(named, {})
    name = _here(root, environ, require_answer=require_answer)
    return ClusterChoice(name, {} if name != "slurm" or _may_have_gpus(environ) else {"cluster.node.gpus": 0})


def default_cluster_name(root: Path, environ: Mapping[str, str], *, require_answer: bool = False) -> str:
    """Return the name from `default_cluster` without asking for GPUs of its nodes."""
    return configured_name(root, environ) or _here(root, environ, require_answer=require_answer)


def _here(root: Path, environ: Mapping[str, str], *, require_answer: bool) -> str:
    from hpc_kit.errors import SlurmUnavailable
    from hpc_kit.slurm import client

    if client.is_embedded(environ):
        return _surrounding(root, environ) or "local"
    try:
        return "slurm" if client.has_slurm(environ) else "local"
    except SlurmUnavailable:
        if require_answer:
            raise
        return "slurm"  # sbatch exists


def _surrounding(root: Path, environ: Mapping[str, str]) -> str | None:
    """Return the cluster in the record of the surrounding job of the embedded Slurm."""
    import json

    from hpc_kit.run_files import RECORD
    from hpc_kit.slurm.job_ids import base_id
    from hpc_kit.spec import search_path

    # HPC_KIT_RUN of an array task ends in _INDEX, but the record is in the folder of the job.
    run = Path(environ.get("HPC_KIT_RUN", ""))
    try:
        known = json.loads((run.with_name(base_id(run.name)) / RECORD).read_bytes())
        name = str(known["cluster"]) if known["slurm"] == "embedded" else ""
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if name in search_path.file_names("env", root) else None


def configured_name(root: Path, environ: Mapping[str, str]) -> str | None:
    """Return the cluster file that the user or the project has chosen; None without a choice."""
    return environ.get(VARIABLE) or ("default" if (root / "env" / "default.toml").is_file() else None)


def _may_have_gpus(environ: Mapping[str, str]) -> bool:
    """Return False if Slurm shows that no node has GPUs, since it would refuse GPU options."""
    from hpc_kit.errors import SlurmUnavailable
    from hpc_kit.slurm.client import PROBE_SECONDS, SlurmClient

    client = SlurmClient(environ, embedded=False)
    try:
        answer = client.run(["sinfo", "--all", "--noheader", "--format=%G"], timeout=PROBE_SECONDS)
    except SlurmUnavailable:
        return True
    return answer.returncode != 0 or not answer.stdout.strip() or "gpu" in answer.stdout
