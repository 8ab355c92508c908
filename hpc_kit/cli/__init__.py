"""The command line, one module per command. No other room prints or ends the process.

Exit status: 0 success; 1 negative result (findings, a failed job, no Slurm); 2 wrong use; 130 Ctrl-C. If `submit` or
`logs` follows a job, its exit status is that of the job.
"""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from hpc_kit.cli.groups import LazyGroup, ReaderGoneError, epilog, first_example
from hpc_kit.cli.terminal import discard_output, echo
from hpc_kit.errors import HpcKitError
from hpc_kit.runs.backend_registry import register_backend

if TYPE_CHECKING:
    from hpc_kit.runs.backend import Backend

COMMANDS = {
    "init": "copy jobs, programs, templates and a Makefile into a project of your own",
    "list": "list jobs, clusters and templates",
    "render": "print the sbatch script of a job",
    "check": "find faults in a job or a script before submission",
    "import": "convert a hand-written sbatch script to a job file: import FILE.sbatch -o jobs/NAME.toml",
    "plan": "find the best layout: time and memory of every possible one",
    "submit": "submit a job, or any program: submit -j 4x2 -- python train.py",
    "launch": "start a job over ssh, without a scheduler: launch JOB --hosts a,b,c",
    "status": "show the states of jobs",
    "watch": "show the states of jobs until all have ended",
    "history": "show the attempts of jobs with [restart] or [preflight]",
    "resubmit": "submit a job again: the same script, from its last checkpoint",
    "logs": "print the output of a job, or the first failure of a failed job",
    "stacks": "print what the ranks of a running job are doing: their Python stacks",
    "why": "explain why a job failed: the cause, the culprit and the fix; why --log FILE... for any logs",
    "cancel": "cancel jobs",
    "clean": "delete old runs: clean --older-than 30d",
    "report": "write runs and benchmarks to one HTML page that needs no network",
    "env": "show rank and world size of this process, and the variables they come from",
    "doctor": "show what this machine has and lacks; doctor JOB finds slow and broken nodes",
    "cluster": "write a cluster file from Slurm's answers (cluster discover); exclude bad nodes (cluster exclude)",
    "nodelist": "expand a Slurm host list, one host per line",
    "bench": "measure this machine: collectives, memory, pipelines, start-up",
    "schema": "print the JSON Schema of job and cluster files",
    "docs": "print a page of the documentation",
    "completion": "complete commands and job names in bash, zsh or fish: completion install",
    "embedded": "run a command with the embedded Slurm",
}
"""The commands with their lines in the help. The module of the same name is imported when a command is used."""

MODULES = {"embedded": "pocketslurm", "import": "import_script"}
"""Modules with another name than their command."""


def _ssh_backend() -> Backend:
    from hpc_kit.ssh.backend import SSH

    return SSH


# Only this room imports both: runs/ knows no launcher, and ssh/ is above runs/.
register_backend("ssh", _ssh_backend)


@click.group(
    cls=LazyGroup,
    modules={name: f"hpc_kit.cli.{MODULES.get(name, name)}" for name in COMMANDS},
    lines=COMMANDS,
    invoke_without_command=True,
    epilog=epilog(""),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="hpc_kit", message="hpc-kit %(version)s")
@click.pass_context
def root(ctx: click.Context) -> None:
    """Slurm job templates, submission and launcher bootstrap for PyTorch training."""
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


def main() -> NoReturn:
    """Run the command line and end the process with its status."""
    try:
        status = root.main(standalone_mode=False)
    except HpcKitError as error:
        echo(f"hpc-kit: {error}", err=True)
        sys.exit(error.exit_status)
    except click.ClickException as error:
        _print_wrong_use(error)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt) as interrupt:
        # A submission that was interrupted during sbatch reports the queued job. click wraps this exception.
        if words := str(interrupt) or str(interrupt.__cause__ or ""):
            echo(f"hpc-kit: {words}", err=True)
        sys.exit(130)
    except RecursionError:
        # TOML and JSON are read by recursion. Only a damaged or hostile file has hundreds of levels.
        deep = HpcKitError("a file is nested too deeply", remedy="remove brackets: no file of hpc-kit needs 100 levels")
        echo(f"hpc-kit: {deep}", err=True)
        sys.exit(2)
    except ReaderGoneError as no_reader:
        # The reader (head, less) has closed the pipe. Without stdout, Python does not print an error at exit.
        sys.stdout = None
        sys.exit(no_reader.status)
    except OSError as error:
        # Code that reads and writes files raises HpcKitError. This error is about standard output, such as a full disk.
        discard_output()
        if error.errno == errno.ENOENT and not error.filename:
            # Only a removed current folder raises ENOENT without a file name.
            gone = HpcKitError("the current folder is gone", remedy="cd to one that exists")
            echo(f"hpc-kit: {gone}", err=True)
            sys.exit(2)
        what = f"cannot use {error.filename}" if error.filename else "cannot write the output"
        remedy = "check its permissions" if error.filename else "free some space, or write to another folder"
        echo(f"hpc-kit: {HpcKitError(what, found=error.strerror, remedy=remedy)}", err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _print_wrong_use(error: click.ClickException) -> None:
    message = error.format_message()
    if message.startswith("Usage: "):  # `hpc-kit cluster` alone: the message is the help of the group
        echo(message, err=True)
        return
    echo(f"hpc-kit: {message}", err=True)
    if isinstance(error, click.UsageError):
        # A missing value of an option has no context.
        named = sys.argv[1:2] if sys.argv[1:2] and sys.argv[1] in COMMANDS else []
        command = error.ctx.command_path if error.ctx else " ".join(["hpc-kit", *named])
        example = first_example(command) if isinstance(error, click.MissingParameter) else None
        echo(f"  do     {example or f'{command} --help'}", err=True)
