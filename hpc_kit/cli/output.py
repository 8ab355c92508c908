"""Printed output that all commands share: labelled lines, tables, paths, and the commands to type next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import Literal, NoReturn

import click

from hpc_kit.cli.options import runs_option
from hpc_kit.cli.terminal import echo
from hpc_kit.slurm.units import format_count
from hpc_kit.spec.default_cluster import VARIABLE

INTERRUPTED = 130
"""Exit status after Ctrl-C."""

_LISTED_IDS = 5
"""Ids in a row that a command lists; more become a `seq`."""

_UNLIMITED_WIDTH = 100_000
"""Columns of a console in which rich wraps and cuts nothing."""


def print_line(label: str, text: str, *, right: str = "") -> None:
    """Print a label and a text, with an optional time or path at the right."""
    body = f"{label:<7} {text}"
    echo(f"{body:<{max(0, min(76, _columns() - len(right) - 2))}}  {right}" if right else body)


def _columns() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def print_next_steps(*job_ids: str, going: bool, rank: int | None = None, failed: bool = False) -> None:
    """Print the next commands to type for some jobs, with the `--cluster` and `--runs` options of this command."""
    cluster = click.get_current_context().params.get("cluster") or os.environ.get(VARIABLE)
    runs = runs_option()
    options = (f" --cluster {quote(cluster)}" if cluster else "") + (f" --runs {quote(runs)}" if runs else "")
    log_option = " -f" if going else " --all" if rank is None else f" --rank {rank}"
    last = "cancel" if going else "why" if failed else ""
    ids = _join_ids(job_ids)
    for command, option in (("status", ""), ("logs", log_option), *([(last, "")] if last else ())):
        # `logs` is about one job.
        jobs = job_ids[0] if command == "logs" else ids
        print_line(command, f"{program_name()} {command} {jobs}{option}{options}")


def _join_ids(ids: Sequence[str]) -> str:
    """Return ids as words of a shell: `12 13`, or `$(seq 12 31)` for many in a row."""
    numbers = [int(each) for each in ids if each.isdecimal()]
    if len(ids) > _LISTED_IDS and numbers == list(range(numbers[0], numbers[0] + len(ids))):
        return f"$(seq {ids[0]} {ids[-1]})"
    return " ".join(ids)


def exit_interrupted(ids: Sequence[str], *, unsubmitted: int = 0) -> NoReturn:
    """Exit after Ctrl-C: list the jobs that keep running, and the next commands."""
    echo()
    for job_id in ids:
        print_line("", f"job {job_id} goes on")
    if unsubmitted:
        print_line("", f"not submitted: {format_count(unsubmitted, 'job')}")
    print_next_steps(*ids, going=True)
    raise click.exceptions.Exit(INTERRUPTED) from None


def program_name() -> str:
    """Return the command that starts hpc-kit: its name if PATH finds it, else its path."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m hpc_kit"
    on_path = shutil.which("hpc-kit")
    if on_path and Path(on_path).resolve() == program.resolve():
        return "hpc-kit"
    return shlex.quote(short_path(program))


def short_path(path: Path) -> str:
    """Return a path relative to the current folder if it is inside."""
    try:
        here = Path.cwd()
    except OSError:  # the current folder was removed
        return str(path)
    absolute = here / path
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)


def print_wrapped(text: str, *, indent: int = 2, err: bool = False) -> None:
    """Print a text in lines that fit the terminal. The lines after the first are indented."""
    first = text[: len(text) - len(text.lstrip())]
    for line in textwrap.wrap(
        text.lstrip(),
        max(60, _columns()),
        initial_indent=first,
        subsequent_indent=first + " " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    ):
        echo(line, err=err)


def format_table(
    rows: Iterable[Sequence[str]], *columns: Literal["left", "right"], first_width: int = 0, indent: int = 0
) -> list[str]:
    """Return the lines of a table without borders. Cells are never cut, whatever the width of the terminal.

    Columns have a distance of two blanks, or of one where the table would not fit the terminal.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    kept, lines = list(rows), list[str]()
    for distance in (2, 1):
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, distance, 0, 0))
        for number, justify in enumerate(columns):
            table.add_column(justify=justify, no_wrap=True, min_width=None if number else first_width)
        for row in kept:
            table.add_row(*map(Text, row))  # Text: a node list such as n[1-3] is not markup
        console = Console(width=_UNLIMITED_WIDTH, color_system=None)
        with console.capture() as capture:
            console.print(table)
        lines = [line.rstrip() for line in capture.get().splitlines()]
        # A sentence in the last column may be longer than the line.
        if columns[-1] == "left" or all(len(line) <= _columns() - indent for line in lines):
            break
    return lines
