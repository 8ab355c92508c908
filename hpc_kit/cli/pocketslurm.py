"""`hpc-kit embedded`."""

from __future__ import annotations

import os

import click

from hpc_kit.cli.groups import OrderedGroup
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SpecError, explain_file_errors, page
from hpc_kit.spec import search_path
from hpc_kit.spec.load import load_cluster

EMBEDDED_CLUSTER_OPTION = click.option(
    "--cluster", default="local", show_default=True, help="Cluster file with slurm = 'embedded'."
)


_HELP = f"""The embedded Slurm: sbatch, srun, salloc, squeue, sacct, scancel, scontrol and sinfo.

{page("embedded-slurm.md")} describes it. State: $HPC_KIT_SLURM_STATE, or ~/.local/state/hpc_kit/slurm.
"""


@click.group("embedded", cls=OrderedGroup, help=_HELP)
def command() -> None:
    """Run commands of the embedded Slurm."""


@command.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@EMBEDDED_CLUSTER_OPTION
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run(cluster: str, program: tuple[str, ...]) -> None:
    """Run a command with the embedded Slurm on PATH."""
    environ = _embedded_environ(cluster)
    with explain_file_errors(SpecError, f"cannot run {program[0]}", "name a command on PATH"):
        os.execvpe(program[0], program, environ)  # noqa: S606 - the user's own command


@command.command("path")
@EMBEDDED_CLUSTER_OPTION
def path(cluster: str) -> None:
    """Print the folder of the commands, for PATH."""
    echo(_embedded_environ(cluster)["PATH"].partition(os.pathsep)[0])


def _embedded_environ(name: str) -> dict[str, str]:
    cluster = load_cluster(name, root=search_path.current_folder())
    if cluster.slurm != "embedded":
        raise SpecError(
            f"cluster {name} is not the embedded one", found=f"slurm = '{cluster.slurm}'", remedy="use --cluster local"
        )
    from hpc_kit.spec.cluster_client import embedded_environment

    return embedded_environment(cluster, os.environ)
