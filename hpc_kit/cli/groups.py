"""Groups of commands such as `hpc-kit` and `hpc-kit bench`, and the examples at the end of the help of each command."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from hpc_kit.cli.terminal import READER_GONE
from hpc_kit.errors import HpcKitError


class ReaderGoneError(Exception):
    """The reader of standard output has closed the pipe. click itself would exit with status 1.

    Args:
        status: The exit status of the command.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class OrderedGroup(click.Group):
    """A group that lists its commands in the order of their definition, and suggests one for a mistyped name."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the group or a command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError(ctx.meta.get(READER_GONE, 0)) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the help."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command with its examples at the end of its help."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.epilog is None:
            command.epilog = epilog(f"{ctx.info_name} {cmd_name}" if ctx.parent else cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest a similar name if it does not exist."""
        # click explains an unknown option such as --hlep itself.
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

    `modules` names the module of each command, which defines `command`; `lines` are their lines in the help.
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
            # click asks again for the same name, so keep the command.
            self.add_command(import_module(self.modules[cmd_name]).command, cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lines.items()))


EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("hpc-kit submit ddp_4node", "hpc-kit submit -j 4x2 -- python train.py", "hpc-kit logs -f"),
    "init": ("hpc-kit init myproject", "hpc-kit init --job fsdp_4node --discover --import old.sbatch"),
    "list": ("hpc-kit list",),
    "render": (
        "hpc-kit render ddp_4node",
        "hpc-kit render ddp_4node --cluster perlmutter --set resources.nodes=2",
        "hpc-kit render -j 4x2 --standalone -- python train.py",
    ),
    "check": (
        "hpc-kit check ddp_4node",
        "hpc-kit check old.sbatch --cluster env/mine.toml",
        "hpc-kit check --explain KIT203",
    ),
    "import": ("hpc-kit import old.sbatch", "hpc-kit import old.sbatch -o jobs/mine.toml"),
    "plan": ("hpc-kit plan --model llama3-8b --cluster dgx-h100 --nodes 4", "hpc-kit plan hybrid_3d_4node --explain"),
    "submit": (
        "hpc-kit submit ddp_4node --wait",
        "hpc-kit submit -j 4x2 --time 2:00:00 -- python train.py --lr 0.1",
        "hpc-kit submit prepare train --chain",
    ),
    "launch": ("hpc-kit launch ddp_4node --hosts a,b,c,d",),
    "status": ("hpc-kit status", "hpc-kit status ddp_4node --json"),
    "watch": ("hpc-kit watch ddp_4node",),
    "why": ("hpc-kit why 12",),
    "history": ("hpc-kit history", "hpc-kit history ddp_4node --json"),
    "resubmit": ("hpc-kit resubmit 12", "hpc-kit resubmit 12 --set resources.time=8:00:00"),
    "stacks": ("hpc-kit stacks 12",),
    "logs": ("hpc-kit logs -f", "hpc-kit logs 12 --rank 3"),
    "cancel": ("hpc-kit cancel 12", "hpc-kit cancel ddp_4node"),
    "clean": ("hpc-kit clean --older-than 30d",),
    "report": ("hpc-kit report runs/ddp_4node/latest --out report.html",),
    "env": ("srun -n 4 hpc-kit env",),
    "doctor": ("hpc-kit doctor", "hpc-kit doctor ddp_4node", "srun hpc-kit doctor --in-job"),
    "cluster": ("hpc-kit cluster discover",),
    "cluster discover": (
        "hpc-kit cluster discover",
        "hpc-kit cluster discover --write env/mine.toml --probe --srun=--partition=gpu",
    ),
    "cluster exclude": ("hpc-kit cluster exclude n3 --reason 'slow network' --for 14d",),
    "cluster include": ("hpc-kit cluster include n3",),
    "cluster exclusions": ("hpc-kit cluster exclusions", "hpc-kit cluster exclusions --json"),
    "nodelist": ("hpc-kit nodelist 'n[01-04,7]'",),
    "bench": ("hpc-kit bench comm", "hpc-kit submit bench_comm"),
    "bench comm": ("srun -N 2 -n 8 hpc-kit bench comm",),
    "bench pipeline": ("hpc-kit bench pipeline",),
    "bench memory": ("hpc-kit bench memory",),
    "bench start": ("hpc-kit bench start",),
    "bench dp": ("hpc-kit bench dp",),
    "bench strategies": ("hpc-kit bench strategies --only ddp,zero3",),
    "bench compare": ("hpc-kit bench compare before.json after.json",),
    "bench plot": ("hpc-kit bench plot bench.json",),
    "schema": ("hpc-kit schema cluster",),
    "docs": ("hpc-kit docs when-it-fails",),
    "completion": ("hpc-kit completion install bash",),
    "embedded": ("hpc-kit embedded run sbatch old.sbatch",),
    "embedded path": ('export PATH="$(hpc-kit embedded path):$PATH"',),
    "embedded run": ("hpc-kit embedded run sbatch old.sbatch",),
}
"""Command lines by command, without `hpc-kit` before its name."""


def first_example(command_path: str) -> str | None:
    """Return the first example of a command, whose path may also begin with `python -m hpc_kit`."""
    words = command_path.split()
    names = (" ".join(words[start:]) for start in range(1, len(words)))
    return next((EXAMPLES[name][0] for name in names if name in EXAMPLES), None)


def epilog(command: str) -> str | None:
    r"""Return the examples of a command as click's epilog. `\b` keeps the line breaks."""
    lines = EXAMPLES.get(command)
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)]) if lines else None
