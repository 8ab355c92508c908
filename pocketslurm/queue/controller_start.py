"""Starts the controller on demand: a command that submits work forks it if none runs. Also its lock and log."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from typing import TYPE_CHECKING

from pocketslurm import processes
from pocketslurm.installation import load_module
from pocketslurm.queue import messages

if TYPE_CHECKING:
    from pocketslurm.queue.state import StateDirectory


LOCK = "controller.lock"
LOG = "controller.log"
META = "controller"
READY = "controller_ready"
"""The identity of the controller after it has recovered lost jobs."""

_START_SECONDS = 10.0


def check_code(state: StateDirectory) -> None:
    """Check that a controller runs or can be loaded, before a job is entered.

    Raises:
        StateError: Its code cannot be loaded.
    """
    if not processes.is_alive(state.meta(META) or ""):
        load_module("queue.controller")


def ensure_running(state: StateDirectory) -> None:
    """Wake the controller, or start one if none runs.

    Raises:
        StateError: There is none, and its code cannot be loaded.
    """
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        lock = take_lock(state)
        if lock is not None:
            _fork_controller(state, lock)
            os.close(lock)
            return
        # A controller registers before it reads the queue, and unregisters in the transaction that finds it empty.
        # So a registered controller sees the new job. One without a name is just ending: its lock is free soon.
        if processes.is_alive(state.meta(META) or ""):
            messages.wake(state.directory, messages.CONTROLLER)
            return
        time.sleep(0.003)


def wait_until_ready(state: StateDirectory) -> None:
    """Wait until a controller has recovered lost jobs, if all processes of the queue were killed."""
    deadline = time.monotonic() + _START_SECONDS
    while _is_orphaned(state) and time.monotonic() < deadline:
        ensure_running(state)
        time.sleep(0.01)


def _is_orphaned(state: StateDirectory) -> bool:
    some = state.execute("SELECT 1 FROM jobs WHERE state IN ('PENDING', 'RUNNING') OR completing LIMIT 1").fetchone()
    return some is not None and not processes.is_alive(state.meta(READY) or "")


def take_lock(state: StateDirectory) -> int | None:
    """Return the lock of the controller; None while another process has it."""
    # The kernel releases the lock when its process ends in any way, so no controller can leave it behind.
    lock = os.open(state.directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _fork_controller(state: StateDirectory, lock: int) -> None:
    """Fork the controller twice, so that init adopts it. It keeps the lock until it ends."""
    main = load_module("queue.controller").main
    state.close()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            processes.detach(str(state.directory / LOG))
            processes.close_files(keep={lock})
            main(state, lock)
    finally:
        os._exit(0)


def log(text: str) -> None:
    """Write a line with the time to the controller's log, unless the text is empty."""
    if text:
        with contextlib.suppress(OSError, ValueError):
            print(time.strftime("[%Y-%m-%dT%H:%M:%S]"), text, file=sys.stderr, flush=True)
