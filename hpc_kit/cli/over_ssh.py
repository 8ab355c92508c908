"""What `launch` and `render --shell` share: the hosts on the command line, and a job laid over them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from hpc_kit.cli.job_arguments import Request, render_command
from hpc_kit.cli.job_arguments import loaded as loaded_job
from hpc_kit.errors import SpecError
from hpc_kit.spec.default_cluster import ClusterChoice, ssh_cluster
from hpc_kit.spec.resolve import Resolved, resolve

if TYPE_CHECKING:
    from hpc_kit.ssh.hosts import Host

HOSTS = click.option(
    "--hosts",
    metavar="A,B,...",
    help="Hosts that ssh reaches; a:4 takes 4 ranks, n[1-4] are four, ssh://a:2222 has a port.",
)
HOSTFILE = click.option(
    "--hostfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The same as mpirun's: a slots=4, a host a line.",
)


def shell_script(request: Request, hosts: Sequence[Host], root: Path, *, standalone: bool) -> tuple[Resolved, str]:
    """The job of a request, and the plain shell script that starts it.

    Args:
        request: The job.
        hosts: Where; none: the script takes as many as the job has nodes, or, with one node, runs where it is.
        root: The user's project.
        standalone: Need no hpc_kit on the hosts.
    """
    from hpc_kit.ssh.rank_placement import count_ranks, render_shell_script

    written = ",".join(host.hosts_argument for host in hosts)
    resolved = job_on(hosts, request, root, "--shell", *(("--hosts", written) if hosts else ()))
    names, ranks = [host.ssh_argument for host in hosts], count_ranks(resolved, hosts)
    return resolved, render_shell_script(resolved, hosts=names, ranks=ranks, root=root, standalone=standalone)


def job_on(hosts: Sequence[Host], request: Request, root: Path, *again: str) -> Resolved:
    """The job of a request, laid over hosts that ssh reaches; a node each, whatever its file says of nodes.

    Args:
        hosts: Them; none: as many as the job has nodes.
        request: The job.
        root: The user's project.
        again: Words that make the same script, before those of the job.

    Raises:
        SpecError: The request, or a file that it names, says something that cannot be.
    """
    from hpc_kit.ssh.rank_placement import check_cluster, place_job

    choice = ClusterChoice(request.cluster, {}) if request.cluster else ssh_cluster(root, os.environ)
    if hosts and request.shape is not None and not request.shape.startswith(f"{len(hosts)}x"):
        raise SpecError(
            f"-j {request.shape} does not fit {len(hosts)} hosts",
            found=", ".join(host.name for host in hosts),
            remedy=f"-j {len(hosts)}xRANKS, or another number of hosts",
        )
    loaded = loaded_job(request, root, choice)
    if loaded.cluster.slurm == "embedded":
        raise SpecError(
            f"the nodes of cluster {loaded.cluster.name} are this machine: ssh reaches none of them",
            found="slurm = 'embedded'",
            remedy="--cluster hosts",
        )
    loaded = structs.replace(loaded, job=place_job(loaded.job, hosts))
    resolved = resolve(loaded, root=root, render_command=render_command(request, choice, *again))
    check_cluster(resolved)
    return resolved
