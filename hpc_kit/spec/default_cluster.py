"""Which cluster file holds where the user names none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

VARIABLE = "HPC_KIT_CLUSTER"
"""Environment variable: name or path of the cluster file, for people who work on one cluster only."""


class ClusterChoice(Struct, frozen=True):
    """A cluster file, and what was found out about the machine besides, as `--set` would say it."""

    name: str
    settings: dict[str, object]


def default_cluster(root: Path, environ: Mapping[str, str], *, require_answer: bool = True) -> ClusterChoice:
    """$HPC_KIT_CLUSTER; else the project's env/default.toml; else `slurm` where there is one, or `local`.

    Inside a job of the embedded Slurm, whose commands are then on PATH, it is that job's own cluster.

    Args:
        root: The user's project.
        environ: The environment to look in.
        require_answer: Refuse to guess where a Slurm without an answer leaves it open; else that is a `slurm`, too.

    Raises:
        SlurmUnavailable: It cannot be known, and has to be.
    """
    if named := _named(root, environ):
        return ClusterChoice(named, {})
    name = _here(root, environ, sure=require_answer)
    return ClusterChoice(name, {} if name != "slurm" or _may_have_gpus(environ) else {"cluster.node.gpus": 0})


def default_cluster_name(root: Path, environ: Mapping[str, str], *, require_answer: bool = False) -> str:
    """The name of `default_cluster`, without a question for what its nodes have."""
    return _named(root, environ) or _here(root, environ, sure=require_answer)


def ssh_cluster(root: Path, environ: Mapping[str, str]) -> ClusterChoice:
    """As `default_cluster`, for a launch over ssh: without a name it is `hosts`, whatever Slurm there is here."""
    return ClusterChoice(_named(root, environ) or "hosts", {})


def _here(root: Path, environ: Mapping[str, str], *, sure: bool) -> str:
    from hpc_kit.errors import SlurmUnavailable
    from hpc_kit.slurm import client

    if client.is_embedded(environ):
        return _surrounding(root, environ) or "local"
    try:
        return "slurm" if client.find_slurm(environ) else "local"
    except SlurmUnavailable:
        if sure:
            raise
        return "slurm"  # there is an sbatch


def _surrounding(root: Path, environ: Mapping[str, str]) -> str | None:
    """The cluster of the embedded Slurm's job that this process runs in, by the job's record."""
    import json

    from hpc_kit.run_files import RECORD
    from hpc_kit.slurm.job_ids import base_id
    from hpc_kit.spec import search_path

    run = Path(environ.get("HPC_KIT_RUN", ""))
    try:
        known = json.loads((run.with_name(base_id(run.name)) / RECORD).read_bytes())
        name = str(known["cluster"]) if known["slurm"] == "embedded" else ""
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if name in search_path.file_names("env", root) else None


def _named(root: Path, environ: Mapping[str, str]) -> str | None:
    return environ.get(VARIABLE) or ("default" if (root / "env" / "default.toml").is_file() else None)


def _may_have_gpus(environ: Mapping[str, str]) -> bool:
    """False only where Slurm says that no node has any: a job's GPU options would be refused there."""
    from hpc_kit.errors import SlurmUnavailable
    from hpc_kit.slurm.client import PROBE_SECONDS, run_command

    try:
        answer = run_command(["sinfo", "--noheader", "--format=%G"], timeout=PROBE_SECONDS, environ=environ)
    except SlurmUnavailable:
        return True
    return answer.returncode != 0 or not answer.stdout.strip() or "gpu" in answer.stdout
