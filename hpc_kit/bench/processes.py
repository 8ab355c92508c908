"""Processes that a bench starts: each leads a session of its own, and is ended with all that it has started."""

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
"""Seconds between being asked to end and being killed: torchrun gives its own workers 30."""

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def begin(argv: Sequence[str], environ: Mapping[str, str], output: IO[str] | int) -> subprocess.Popen[str]:
    """Start a command; what it says goes to `output`.

    Ctrl-C at a terminal does not reach it: whoever begins it must `end` it.
    """
    with _signals_kept() as kept:
        process = subprocess.Popen(
            argv,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        # A signal's exception here would be raised before the caller has the process that it must end.
        if kept:
            end(process)
    return process


@contextmanager
def _signals_kept() -> Iterator[list[int]]:
    """Inside, signals that Python handles are only listed; they are sent again at the end."""
    kept: list[int] = []
    before: dict[signal.Signals, Callable[[int, FrameType | None], object]] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *_SIGNALS):
                if callable(handler := signal.getsignal(number)):
                    before[number] = handler
                    signal.signal(number, lambda received, _: kept.append(received))
        yield kept
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in kept:
            signal.raise_signal(received)


def end(*running: subprocess.Popen[str], grace: float = GRACE) -> None:
    """End processes that were begun here, and their children: they are asked, and after a while killed."""
    alive = [process for process in running if process.poll() is None]
    try:
        for process in alive:
            _send(process, signal.SIGTERM)
        deadline = time.monotonic() + grace
        for process in alive:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        # Also what they have left in their sessions, and when a second Ctrl-C cuts the waiting short.
        for process in alive:
            _send(process, signal.SIGKILL)
            process.wait()


def _send(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


class Watch:
    """Notes in which order processes end; who came first tells most of why."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self._order: list[int] = []
        # Daemons: where this process is interrupted, nobody waits for them.
        self._threads = [
            threading.Thread(target=self._wait, args=(place,), daemon=True) for place in range(len(processes))
        ]
        for thread in self._threads:
            thread.start()

    def _wait(self, place: int) -> None:
        self._processes[place].wait()
        self._order.append(place)

    def first_failure(self) -> int | None:
        """Wait for all; the place of the one that failed first, None where all ended well."""
        for thread in self._threads:
            thread.join()
        failed = [place for place in self._order if self._processes[place].returncode]
        # The kernel kills for want of memory before the others lose a rank, and may be heard of after.
        return min(failed, key=lambda place: self._processes[place].returncode != -signal.SIGKILL, default=None)


def ended(name: str, code: int) -> tuple[str, str]:
    """How a process ended that failed, and what to do."""
    if code >= 0:
        return f"{name} failed with exit code {code}", "the last lines of its output are above"
    number = signal.Signals(-code)
    if number is signal.SIGKILL:
        return f"{name} was ended by SIGKILL", "most often the kernel, for want of memory: fewer ranks or smaller sizes"
    return f"{name} was ended by {number.name}", "the last lines of its output are above"


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP do what Ctrl-C does, so that what was begun is ended; an ignored SIGHUP stays so."""
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
