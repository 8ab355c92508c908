"""Which Slurm this command speaks to: the one on PATH, or the embedded one put there for this process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.spec.choose import default_cluster
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.files import load_cluster
from hpc_kit.spec.resources import Size


def use(cluster: Cluster) -> None:
    """Put the cluster's Slurm on PATH.

    Raises:
        SlurmUnavailable: The cluster is a real one, and there is no sbatch here.
    """
    if cluster.slurm == "embedded":
        os.environ.update(embedded_environ(cluster))
    elif shutil.which("sbatch") is None:
        raise SlurmUnavailable(
            f"there is no Slurm here, and cluster {cluster.name} is a real one",
            found="no sbatch on PATH",
            remedy="run this on a login node of that cluster, or add --cluster local for the embedded Slurm",
        )


def cluster_here(name: str | None, root: Path) -> Cluster:
    """The cluster of that name, or the one that fits this machine; its Slurm is on PATH afterwards."""
    cluster = load_cluster(name or default_cluster(root, os.environ).name, root=root)
    use(cluster)
    return cluster


def embedded_environ(cluster: Cluster) -> dict[str, str]:
    """The environment in which the embedded Slurm's commands are found, set up as the cluster file says."""
    from hpc_kit import embedded
    from hpc_kit.embedded.settings import Partition, Settings

    wanted, node = cluster.embedded, cluster.node
    defaults = Settings()
    settings = Settings(
        nodes=wanted.nodes,
        cpus=node.cpus or defaults.cpus,
        memory=_mib(node.mem),
        gpus=node.gpus or 0,
        gpu_type=node.gpu,
        partitions=tuple(Partition(name) for name in wanted.partitions),
        max_array_size=wanted.max_array_size,
        kill_wait=wanted.kill_wait,
    )
    return embedded.environment(settings, os.environ)


def _mib(size: Size | None) -> int | None:
    from hpc_kit.slurm.units import parse_memory

    return None if size is None else parse_memory(str(size))


def line(label: str, text: str, *, right: str = "") -> None:
    """One line of a command's running account: what it is about, what happened, and at the right when or where."""
    body = f"{label:<8}{text}"
    click.echo(f"{body:<80}{right:>8}".rstrip() if right else body)
