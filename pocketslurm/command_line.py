"""The entrance of all commands: `python -m pocketslurm sbatch ...` and the scripts of the commands' folder."""

from __future__ import annotations

import os
import sqlite3
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from hpc_kit.errors import HpcKitError
from pocketslurm.installation import ABSENT, COMMANDS
from pocketslurm.loading import load

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Command(Protocol):
    def main(self, argv: list[str], environ: Mapping[str, str]) -> int:
        """Run the command; its exit status.

        Raises:
            Refused: Slurm would say no.
        """


def run(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command that `argv` begins with; its exit status."""
    if not argv or argv[0] not in COMMANDS:
        print(f"usage: python -m pocketslurm {{{'|'.join(COMMANDS)}}} ...", file=sys.stderr)
        return 2
    command, *words = argv
    if command in ABSENT:
        print(f"{command}: error: not supported by the embedded Slurm: {ABSENT[command]}", file=sys.stderr)
        return 1
    try:
        return _answer(command, words, environ)
    except sqlite3.Error as error:
        from pocketslurm.queue.state import trouble

        print(f"{command}: error: {trouble(environ, error)}", file=sys.stderr)
    except (HpcKitError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(f"{command}: error: {error}", file=sys.stderr)
    return 1


def _answer(command: str, words: list[str], environ: Mapping[str, str]) -> int:
    work = cast("_Command", load(f"commands.{command}"))
    # Behind `load`, which says it where code is missing.
    from pocketslurm.errors import Refused

    try:
        return work.main(words, environ)
    except Refused as refusal:
        sys.stderr.write(refusal.said_by(command))
        return refusal.status


def _fill_standard_streams() -> None:
    """Where it was started without (`>&-`), streams that lead nowhere: no file of its own must get such a number."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(spare)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def main() -> NoReturn:
    """Run and leave; a reader of our output that went away is no error, nor are streams that were closed before."""
    _fill_standard_streams()
    for stream in (sys.stdout, sys.stderr):  # paths and names may be any bytes
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")
    try:
        status = run(sys.argv[1:], os.environ)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 1
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
