"""The command line: one file a command; the only place that prints and the only one that ends the process.

Exit status: 0 fine; 1 the answer is no (findings, a failed job, Slurm not there); 2 wrong use. `submit` and `logs`
that follow a job to its end return the job's own status.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

import click

from hpc_kit.errors import HpcKitError

COMMANDS = {
    "list": "jobs, clusters and templates that can be named",
    "render": "print the sbatch script of a job",
    "check": "look for faults in a job or a script before it is queued",
    "submit": "submit a job, or any program: submit -j 4x2 -- python train.py",
    "status": "states of jobs, in plain words",
    "logs": "a job's output; its first failure where it failed",
    "cancel": "end jobs",
    "env": "who this process is, and how that is known",
    "nodelist": "expand a Slurm host list, a host a line",
    "schema": "the JSON Schema of job and cluster files",
    "embedded": "the Slurm that comes along: run a command on it",
}
"""Every command with its line in the help; the module of the same name is imported when it is used."""


class Commands(click.Group):
    """Finds a command's module only when it is called, so that the help comes at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order of a job's life."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"hpc_kit.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """The table of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with near matches for a name that does not exist."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, n=2)
            raise HpcKitError(
                f"no command '{name}'", remedy=" or ".join(f"hpc-kit {word}" for word in near) or "hpc-kit --help"
            )
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="hpc_kit", message="hpc-kit %(version)s")
def root() -> None:
    """Slurm job templates, submission and launcher bootstrap for PyTorch training."""


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
        # Interrupted while sbatch was at work, a submission says that the job is queued, and how to end it.
        if str(interrupt):
            click.echo(f"hpc-kit: {interrupt}", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has what it wanted; Python must not complain about it while it ends.
        sys.stdout = None
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)
