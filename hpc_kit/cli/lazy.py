"""Groups of commands that import the module of a command when it is called. This keeps `--help` fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hpc_kit.errors import HpcKitError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReaderGoneError(Exception):
    """The reader of standard output has closed the pipe. click itself would exit with status 1."""


class LazyGroup(click.Group):
    """A group of commands.

    Args:
        modules: The module of each command that is imported on use. The module defines `command`.
        lines: The line of each command in the help, in the order of the help.
    """

    def __init__(
        self, *args: Any, lines: Mapping[str, str], modules: Mapping[str, str] | None = None, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self.lines, self.modules = lines, modules or {}

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
        return list(self.lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in self.modules:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module(self.modules[cmd_name]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lines.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest similar names if it does not exist."""
        name = args[0]
        if name not in self.lines and not name.startswith("-"):
            from difflib import get_close_matches

            # For `python -m hpc_kit` click knows another program name.
            group = f"hpc-kit {ctx.info_name}" if ctx.parent else "hpc-kit"
            near = get_close_matches(name, self.lines, n=2)
            remedy = " or ".join(f"{group} {word}" for word in near) or f"{group} --help"
            raise HpcKitError(f"no command '{name}'", remedy=remedy)
        return super().resolve_command(ctx, args)
