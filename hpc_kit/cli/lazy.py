"""Groups of commands whose modules are imported when they are called, so that the help comes at once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hpc_kit.errors import HpcKitError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReaderGoneError(Exception):
    """Nobody reads the output any more; click itself would end with 1."""


class LazyGroup(click.Group):
    """A group that knows its commands by name.

    Args:
        modules: The module of each command; the command is its `command`.
        lines: Each command's line in the help, in the order of the help.
    """

    def __init__(
        self, *args: Any, lines: Mapping[str, str], modules: Mapping[str, str] | None = None, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self.lines, self.modules = lines, modules or {}

    def invoke(self, ctx: click.Context) -> object:
        """As click does.

        Raises:
            ReaderGoneError: As its name says.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order of the help."""
        return list(self.lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in self.modules:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module(self.modules[cmd_name]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """The table of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lines.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with near matches for a name that does not exist."""
        name = args[0]
        if name not in self.lines and not name.startswith("-"):
            from difflib import get_close_matches

            # The root is called hpc-kit, whatever started it.
            group = f"hpc-kit {ctx.info_name}" if ctx.parent else "hpc-kit"
            near = get_close_matches(name, self.lines, n=2)
            remedy = " or ".join(f"{group} {word}" for word in near) or f"{group} --help"
            raise HpcKitError(f"no command '{name}'", remedy=remedy)
        return super().resolve_command(ctx, args)
