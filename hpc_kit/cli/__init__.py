"""The command line: one file a command; the only place that prints and the only one that ends the process.

Exit status: 0 fine; 1 the answer is no (findings, a failed job, Slurm not there); 2 wrong use. `submit` and `logs`
that follow a job to its end return the job's own status; Ctrl-C is 130.
"""

from __future__ import annotations

import errno
import sys
from typing import NoReturn

import click

from hpc_kit.cli.lazy import LazyGroup, ReaderGoneError
from hpc_kit.errors import HpcKitError

COMMANDS = {
    "init": "copy jobs, programs, templates and a Makefile into a project of your own",
    "list": "jobs, clusters and templates that can be named",
    "render": "print the sbatch script of a job",
    "check": "look for faults in a job or a script before it is queued",
    "plan": "find the layout to submit: time and memory of every legal one",
    "submit": "submit a job, or any program: submit -j 4x2 -- python train.py",
    "launch": "start a job over ssh, without a scheduler: launch JOB --hosts a,b,c",
    "status": "states of jobs, in plain words",
    "watch": "the same again and again, until all are over",
    "logs": "a job's output; its first failure where it failed",
    "cancel": "end jobs",
    "report": "runs and benches as one page of HTML, readable offline",
    "env": "who this process is, and how that is known",
    "doctor": "in a step: where each rank runs, and what differs between the nodes",
    "nodelist": "expand a Slurm host list, a host a line",
    "bench": "measure this machine, and compare: comm for collectives of gloo, mpi, nccl",
    "schema": "the JSON Schema of job and cluster files",
    "embedded": "the Slurm that comes along: run a command on it",
}
"""The commands with their lines in the help. The module of the same name is imported when a command is used."""

MODULES = {"embedded": "pocketslurm"}
"""Modules with another name than their command."""


@click.group(
    cls=LazyGroup,
    modules={name: f"hpc_kit.cli.{MODULES.get(name, name)}" for name in COMMANDS},
    lines=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="hpc_kit", message="hpc-kit %(version)s")
@click.pass_context
def root(ctx: click.Context) -> None:
    """Slurm job templates, submission and launcher bootstrap for PyTorch training."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> NoReturn:
    """Run the command line and end the process with its status."""
    try:
        status = root.main(standalone_mode=False)
    except HpcKitError as error:
        click.echo(f"hpc-kit: {error}", err=True)
        sys.exit(error.exit_status)
    except click.ClickException as error:
        click.echo(f"hpc-kit: {error.format_message()}", err=True)
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"  do     {error.ctx.command_path} --help", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt) as interrupt:
        # Interrupted while sbatch was at work, a submission says that the job is queued; click wraps what it says.
        if words := str(interrupt) or str(interrupt.__cause__ or ""):
            click.echo(f"hpc-kit: {words}", err=True)
        sys.exit(130)
    except ReaderGoneError:
        # The reader (head, less) has what it wanted; Python must not complain about it while it ends.
        sys.stdout = None
        sys.exit(0)
    except OSError as error:
        # What reads and writes files has errors of its own; this is the output, behind a `>` to a full disk.
        if error.errno == errno.ENOENT and not error.filename:
            # Nothing else is missing without a name.
            gone = HpcKitError("the current folder is gone", remedy="cd to one that exists")
            click.echo(f"hpc-kit: {gone}", err=True)
            sys.exit(2)
        what = f"cannot use {error.filename}" if error.filename else "cannot write the output"
        remedy = "see that you may read and write it" if error.filename else "free some space, or write elsewhere"
        click.echo(f"hpc-kit: {HpcKitError(what, found=error.strerror, remedy=remedy)}", err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
