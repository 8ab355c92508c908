"""Groups of commands: `hpc-kit`, `hpc-kit bench` and `hpc-kit embedded`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hpc_kit.errors import HpcKitError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReaderGoneError(Exception):
    """The reader of standard output has closed the pipe. click itself would exit with status 1."""


class OrderedGroup(click.Group):
    """A group that lists its commands in the order of their definition, and suggests one for a mistyped name."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the group or a command.

        Raises:
            ReaderGoneError: The output pipe is closed.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the help."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command with its examples at the end of its help."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.epilog is None:
            from hpc_kit.cli.examples import epilog

            command.epilog = epilog(f"{ctx.info_name} {cmd_name}" if ctx.parent else cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest a similar name if it does not exist."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            from difflib import get_close_matches

            # For `python -m hpc_kit` click knows another program name.
            group = f"hpc-kit {ctx.info_name}" if ctx.parent else "hpc-kit"
            word = next(iter(get_close_matches(name, known, n=1)), "--help")
            raise HpcKitError(f"no command '{name}'", remedy=f"{group} {word}")
        return super().resolve_command(ctx, args)


class LazyGroup(OrderedGroup):
    """A group that imports the module of a command when the command is called. This keeps `--help` fast.

    Args:
        modules: The module of each command, which defines `command`.
        lines: The line of each command in the help, in the order of the help.
    """

    def __init__(self, *args: Any, lines: Mapping[str, str], modules: Mapping[str, str], **named: Any) -> None:
        super().__init__(*args, **named)
        self.lines, self.modules = lines, modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the help."""
        return list(self.lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name in self.modules and cmd_name not in self.commands:
            self.add_command(import_module(self.modules[cmd_name]).command, cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lines.items()))
