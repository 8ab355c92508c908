"""What several commands share: the Slurm of a cluster, and the form of a line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from hpc_kit.spec import search_path
from hpc_kit.spec.default_cluster import default_cluster_name
from hpc_kit.spec.load import load_cluster

if TYPE_CHECKING:
    from hpc_kit.slurm.client import SlurmClient
    from hpc_kit.spec.cluster import Cluster

CLUSTER = click.option("--cluster", metavar="NAME", help="Cluster file in env/ [default: what fits this machine].")
RUNS_META = "hpc_kit.runs"
"""Under this name click's context keeps the folder of runs where it is not the cluster file's."""

RUNS = click.option(
    "--runs",
    metavar="FOLDER",
    expose_value=False,
    callback=lambda ctx, _, value: ctx.meta.update({RUNS_META: value} if value else {}),
    help="Where the runs are [default: as the cluster file says].",
)
JSON = click.option("--json", "as_json", is_flag=True, help="A JSON document.")


class Here(NamedTuple):
    """A cluster, its Slurm as this process reaches it, and its folder of runs."""

    cluster: Cluster
    client: SlurmClient
    runs: Path


def here(name: str | None, *, sure: bool = False) -> Here:
    """The cluster of that name, or the one that fits this machine.

    Args:
        name: Name or path of a cluster file.
        sure: Refuse to guess where Slurm does not tell whether it is there.

    Raises:
        SpecError: There is no such cluster file.
        SlurmUnavailable: Which cluster fits cannot be known, and has to be.
    """
    from hpc_kit.spec.cluster_client import open_client

    root = search_path.current_folder()
    cluster = load_cluster(name or default_cluster_name(root, os.environ, require_answer=sure), root=root)
    return Here(cluster, open_client(cluster), root / (other_runs() or cluster.runs))


def other_runs() -> str | None:
    """The folder of runs that the user has named in place of the cluster file's."""
    context = click.get_current_context(silent=True)
    return context.meta.get(RUNS_META) if context is not None else None


def line(label: str, text: str, *, right: str = "") -> None:
    """One line of a command's running account: what it is about, what happened, and at the right when or where."""
    body = f"{label:<7} {text}"
    click.echo(f"{body:<76}  {right}" if right else body)
