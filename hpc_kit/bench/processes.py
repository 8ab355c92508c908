"""Processes of a benchmark. Each leads its own session and is ended together with its children."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, NoReturn

GRACE = 35.0
"""Seconds between SIGTERM and SIGKILL; torchrun gives its own workers 30."""

LAST_LINES = 12
"""Maximum number of output lines that an error quotes."""

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_together(
    grace: float = GRACE,
) -> Iterator[Callable[[Sequence[str], Mapping[str, str], IO[str] | int], subprocess.Popen[str]]]:
    """Yield a function that starts a command, with its variables and its output. At the end, all processes are ended.

    Their children are ended, too. They get no Ctrl-C from the terminal.

    Args:
        grace: Seconds between SIGTERM and SIGKILL.
    """
    running: list[subprocess.Popen[str]] = []

    def start(argv: Sequence[str], environ: Mapping[str, str], output: IO[str] | int) -> subprocess.Popen[str]:
        # A handler's exception leaves this function: by then, the process is known.
        with _delayed_signals():
            running.append(
                subprocess.Popen(
                    argv,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environ),
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,
                )
            )
        return running[-1]

    try:
        yield start
    finally:
        end(*running, grace=grace)


@contextmanager
def _delayed_signals() -> Iterator[None]:
    """Delay signals that Python handles to the end of the block."""
    received: list[int] = []
    before: dict[signal.Signals, Callable[[int, FrameType | None], object]] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *_SIGNALS):
                if callable(handler := signal.getsignal(number)):
                    before[number] = handler
                    signal.signal(number, lambda number, _: received.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received_number in received:
            signal.raise_signal(received_number)


def end(*running: subprocess.Popen[str], grace: float = GRACE) -> None:
    """End processes and their children with SIGTERM, then SIGKILL after the grace period."""
    alive = [process for process in running if process.poll() is None]
    try:
        for process in alive:
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + grace
        for process in alive:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        # Also kills processes left in their sessions, even if a second Ctrl-C interrupts the wait.
        for process in alive:
            _signal_group(process, signal.SIGKILL)
            process.wait()


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    # The leader of a session is the leader of its process group, too, so both have its process id.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


class ExitOrder:
    """Records the order in which processes end. Later failures are often consequences of the first one."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self._order: list[int] = []
        # Daemon threads, so that an interrupted process does not wait for them.
        self._threads = [
            threading.Thread(target=self._wait, args=(index,), daemon=True) for index in range(len(processes))
        ]
        for thread in self._threads:
            thread.start()

    def _wait(self, index: int) -> None:
        self._processes[index].wait()
        self._order.append(index)

    def first_failure(self) -> int | None:
        """Wait for all processes; return the index of the first that failed, or None."""
        for thread in self._threads:
            thread.join()
        failed = [index for index in self._order if self._processes[index].returncode]
        # Out of memory, the kernel kills one rank first, but its exit may be seen after those of its peers.
        return min(failed, key=lambda index: self._processes[index].returncode != -signal.SIGKILL, default=None)


def last_lines(log: IO[str]) -> list[str]:
    """Return the last lines of an output file that are not empty."""
    log.seek(0)
    return [line for line in log.read().splitlines() if line.strip()][-LAST_LINES:]


def describe_failure(name: str, code: int) -> tuple[str, str]:
    """Return a sentence on a failed process, such as "rank 1", and the remedy.

    A negative exit code is the number of the signal that ended it.
    """
    if code >= 0:
        return f"{name} failed with exit code {code}", "the last lines of its output are above"
    number = signal.Signals(-code)
    if number is signal.SIGKILL:
        return f"{name} was ended by SIGKILL", "most often the kernel, out of memory: use fewer ranks or smaller sizes"
    return f"{name} was ended by {number.name}", "the last lines of its output are above"


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt inside the block, so that processes are ended.

    An ignored SIGHUP stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
