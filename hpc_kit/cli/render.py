"""`hpc-kit render`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from hpc_kit.cli.job_arguments import (
    HOSTFILE,
    HOSTS,
    JobCommand,
    job_arguments,
    parse_request,
    render_shell,
    resolve_request,
)
from hpc_kit.errors import SpecError
from hpc_kit.spec import search_path


@click.command("render", cls=JobCommand)
@job_arguments
@click.option(
    "--standalone", is_flag=True, help="Render a script that needs neither hpc_kit nor shell files on the nodes."
)
@click.option("--shell", is_flag=True, help="Render a shell script for ssh instead, without a scheduler.")
@HOSTS
@HOSTFILE
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Also write the job to a job file.")
def command(
    standalone: bool, shell: bool, hosts: str | None, hostfile: Path | None, save: Path | None, **_: object
) -> None:
    """Print the sbatch script of a job: exactly what `submit` passes to sbatch.

    The log folders and shell files of the script are written as well.

    JOB is the name or path of a job file. Without JOB, write a program after --:
    hpc-kit render -j 4x2 --time 2:00:00 -- python train.py --steps 100

    Every option of sbatch works as well.
    """
    from hpc_kit.script.context import needed_folders
    from hpc_kit.script.render import render_resolved
    from hpc_kit.script.shell_files import write_shell_files

    root = search_path.current_folder()
    named = hosts is not None or hostfile is not None
    if named and not shell:
        raise SpecError("--hosts without --shell", found="sbatch gets its nodes of Slurm", remedy="render --shell")
    if shell:
        from hpc_kit.ssh.hosts import read_hosts

        resolved, text = render_shell(
            parse_request(), read_hosts(hosts, hostfile) if named else (), root, standalone=standalone
        )
    else:
        resolved = resolve_request(parse_request(), root)
        text = render_resolved(resolved, standalone=standalone, root=root)
    if save is not None:
        from hpc_kit.spec.toml_documents import save_job

        save_job(resolved.requested_job, save)
    write_shell_files(text, resolved, root)
    for note in resolved.notes:
        click.echo(f"hpc-kit: {note}", err=True)
    # Slurm creates no folders. A job whose log folder is missing fails without any output.
    for folder in needed_folders(resolved):
        with suppress(OSError):
            (root / folder).mkdir(parents=True, exist_ok=True)
    click.echo(text, nl=False)
