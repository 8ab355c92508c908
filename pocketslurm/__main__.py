"""Runs one command: `python -m pocketslurm path`, `python -m pocketslurm sbatch ...`, and the scripts in `bin`."""

from __future__ import annotations

import os
import sqlite3
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, NoReturn

from hpc_kit.slurm.errors import HpcKitError
from pocketslurm.commands import COMMANDS, UNSUPPORTED
from pocketslurm.installation import load_module

if TYPE_CHECKING:
    from collections.abc import Mapping


def run(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command that `argv` begins with and return its exit status."""
    command = argv[0] if argv else ""
    if command in COMMANDS:
        return _run(command, command, argv[1:], environ)
    if command == "sshare" or (command == "sacctmgr" and {"show", "list"} & set(argv)):
        # Programs look for accounts and limits, and go on if there are none.
        return 0
    if command in UNSUPPORTED:
        print(f"{command}: error: not supported by the embedded Slurm: {UNSUPPORTED[command]}", file=sys.stderr)
        return 1
    return _run("pocketslurm", "pocketslurm", argv, environ)


def _run(module: str, command: str, words: list[str], environ: Mapping[str, str]) -> int:
    try:
        return _call(module, command, words, environ)
    except sqlite3.Error as error:
        from pocketslurm.queue.state import queue_error

        print(f"{command}: error: {queue_error(environ, error)}", file=sys.stderr)
    except (HpcKitError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(f"{command}: error: {error}", file=sys.stderr)
        if module == "pocketslurm" and isinstance(error, HpcKitError):
            return error.exit_status
    return 1


def _call(module: str, command: str, words: list[str], environ: Mapping[str, str]) -> int:
    work = load_module(f"commands.{module}")
    # Imported after `load_module`, which reports a module that is missing.
    from pocketslurm.errors import CommandError

    try:
        return int(work.main(words, environ))
    except CommandError as refusal:
        sys.stderr.write(refusal.text_for(command))
        return 2 if module == "pocketslurm" else refusal.status


def _fill_standard_streams() -> None:
    """Open standard streams that the caller closed (`>&-`) on /dev/null.

    Otherwise a file of ours would get the number of such a stream.
    """
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(spare)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def main() -> NoReturn:
    """Run the command of `sys.argv` and exit with its status. A reader of the output that went away is no error."""
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


if __name__ == "__main__":
    main()
