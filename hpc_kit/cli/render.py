"""`hpc-kit render`."""

from __future__ import annotations

import sys
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
from hpc_kit.cli.options import FILE
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import RecordError, SpecError
from hpc_kit.script.context import log_folders_to_make
from hpc_kit.script.render import render_resolved
from hpc_kit.script.shell_files import write_shell_files
from hpc_kit.shared_folders import make_folder
from hpc_kit.spec import search_path


@click.command("render", cls=JobCommand)
@job_arguments
@click.option(
    "--standalone", is_flag=True, help="Render a script that needs neither hpc_kit nor shell files on the nodes."
)
@click.option("--simple", is_flag=True, help="Render the plain srun line: no forwarded signals, no first failure.")
@click.option("--shell", is_flag=True, help="Render a shell script for ssh instead, without a scheduler.")
@HOSTS
@HOSTFILE
@click.option("--save", type=FILE, metavar="FILE", help="Also write the job to a job file.")
def command(
    job: str | None,
    standalone: bool,
    simple: bool,
    shell: bool,
    hosts: str | None,
    hostfile: Path | None,
    save: Path | None,
    **_: object,
) -> None:
    """Print the sbatch script of a job: exactly what `submit` passes to sbatch.

    The log folders and shell files of the script are written as well.

    JOB is the name or path of a job file. Without JOB, write a program after --:
    hpc-kit render -j 4x2 --time 2:00:00 -- python train.py --steps 100

    Every option of sbatch works as well. -o FILE is therefore the log of the job (sbatch's --output). To write the
    script to a file: hpc-kit render JOB > FILE
    """
    root, request = search_path.current_folder(), parse_request(job)
    has_hosts = hosts is not None or hostfile is not None
    if has_hosts and not shell:
        raise SpecError("--hosts without --shell", found="sbatch gets its nodes of Slurm", remedy="render --shell")
    if simple and shell:
        raise SpecError("--simple with --shell", found="no srun starts a shell script", remedy="leave one of them out")
    if shell:
        from hpc_kit.ssh.hosts import read_hosts

        all_hosts = read_hosts(hosts, hostfile) if has_hosts else ()
        resolved, text = render_shell(request, all_hosts, root, standalone=standalone)
    else:
        resolved = resolve_request(request, root)
        text = render_resolved(resolved, standalone=standalone, simple=simple, root=root)
    if save is not None:
        from hpc_kit.spec.toml_documents import save_job

        save_job(resolved.requested_job, save)
    notes = list(resolved.notes)
    try:
        write_shell_files(text, resolved, root)
    except RecordError as error:
        # In the project of another user, or on a read-only file system, the script can still be printed.
        notes.append(f"{error.what}: {error.found}. The script needs this folder; --standalone renders one without it")
    for note in notes:
        echo(f"hpc-kit: {note}", err=True)
    # Slurm creates no folders. A job whose log folder is missing fails without any output.
    for folder in log_folders_to_make(resolved):
        with suppress(RecordError):
            make_folder(root / folder)
    # A file or a pipe gets the bytes that `submit` passes to sbatch; a terminal gets them without escape sequences.
    if sys.stdout.isatty():
        echo(text, nl=False)
    else:
        click.echo(text.encode(), nl=False)
