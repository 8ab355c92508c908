"""Runs the commands in forks of the test's process: no interpreter has to start, and coverage measures them.

Tests with whole scripts run the real commands, which are isolated interpreters behind a shell script.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import traceback
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest

from pocketslurm import __main__ as entrance
from pocketslurm import processes
from pocketslurm.queue.state import StateDirectory
from pocketslurm.settings import DATABASE

PIPE = subprocess.PIPE

_opened: weakref.WeakSet[StateDirectory] = weakref.WeakSet()


def close_databases_before_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record each state that this process opens, because a fork must not inherit a connection to a database."""
    known = StateDirectory.__init__

    def remembered(self: StateDirectory, *args: Any) -> None:
        known(self, *args)
        _opened.add(self)

    monkeypatch.setattr(StateDirectory, "__init__", remembered)


def start(
    argv: Sequence[str], environ: Mapping[str, str], folder: Path, *, stdin: int | IO[str] = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """Start a command in its own session, so that signals of a test reach nothing else."""

    def become() -> NoReturn:
        # Also closes the pipe on which `Popen` waits for the exec call, because this child never makes one.
        processes.close_files()
        _run(argv, environ)

    for state in list(_opened):
        state.close()
    if _has_open_database():
        gc.collect()  # the traceback of an expected error holds cursors, which keep their connection open
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test runner has threads
        return subprocess.Popen(
            argv,
            preexec_fn=become,  # noqa: PLW1509
            cwd=folder,
            stdin=stdin,
            stdout=PIPE,
            stderr=PIPE,
            text=True,
            start_new_session=True,
        )


def _has_open_database() -> bool:
    """Return whether this process has the file of a queue open.

    SQLite counts locks by the number of the file. A fork inherits the counts, and the number may be that of a new file.
    """
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if DATABASE in os.readlink(link):
                return True
    return False


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """In the child: set up the state of a new interpreter, then run the command."""
    status = 1
    try:
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = ["", *argv]
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8", errors="surrogateescape", buffering=1, closefd=False)  # noqa: SIM115
            for number, mode in enumerate(("r", "w", "w"))
        )
        _reset_signals()
        entrance.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(status)


def _reset_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in {None, signal.SIG_DFL, signal.SIG_IGN}:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
