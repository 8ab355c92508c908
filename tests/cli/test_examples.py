"""The help of every command ends with examples, and click accepts each of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest

from hpc_kit.cli import root
from hpc_kit.cli.groups import EXAMPLES


def commands(context: click.Context, path: str = "") -> Iterator[tuple[str, click.Command]]:
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}".strip(), command
        if isinstance(command, click.Group):
            yield from commands(click.Context(command, info_name=name, parent=context), name)


CONTEXT = click.Context(root, info_name="hpc-kit")
COMMANDS = dict(commands(CONTEXT))


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_ends_with_examples(path: str) -> None:
    command = COMMANDS[path]
    text = command.get_help(click.Context(command, info_name=path, parent=CONTEXT, terminal_width=200))
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index("Examples:") + 1
    assert tuple(lines[start : start + len(EXAMPLES[path])]) == EXAMPLES[path]


LINES = [(path, line) for path in COMMANDS for line in EXAMPLES.get(path, ()) if not line.startswith("export ")]


@pytest.mark.parametrize(("path", "line"), LINES)
def test_an_example_is_accepted(path: str, line: str) -> None:
    words = shlex.split(line)
    words = words[words.index("hpc-kit") + 1 :]
    context = CONTEXT
    group: click.Group = root
    while True:
        name, command, rest = group.resolve_command(context, words)
        assert name is not None
        assert command is not None
        context = command.make_context(name, list(rest), parent=context)
        if not isinstance(command, click.Group):
            return
        group, words = command, [*context._protected_args, *context.args]
