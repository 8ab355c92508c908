"""Delays Ctrl-C, SIGTERM and SIGHUP until a submission is recorded."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Handler = Callable[[int, FrameType | None], object] | signal.Handlers

_DEFAULT: dict[int, Handler] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


class DeferredSignals:
    """Ctrl-C, SIGTERM, and SIGHUP of a closed terminal.

    Before `defer`, and inside `interruptible`, a signal raises KeyboardInterrupt. It does so once, so that the clean-up
    is not interrupted by the next signal.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._raises = True

    def defer(self) -> None:
        """Only store signals from now on: the work must not be interrupted half-way."""
        self._raises = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Allow signals to interrupt the block: it may take long, and loses nothing if it is cut short."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def handle(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        self.received.append(number)
        if self._raises:
            # The handlers of KeyboardInterrupt must run to their end.
            self._raises = False
            raise KeyboardInterrupt


@contextmanager
def defer_signals() -> Iterator[DeferredSignals]:
    """Handle the signals that end a process. After the block, SIGTERM and SIGHUP end this process.

    A signal that is ignored (nohup), or has a handler of the program, keeps its handler. Other threads than the main
    one receive no signals.
    """
    signals = DeferredSignals()
    # Python runs signal handlers in the main thread, and only there they can be set.
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    replaced = [number for number, default in _DEFAULT.items() if signal.getsignal(number) is default]
    for number in replaced:
        signal.signal(number, signals.handle)
    try:
        yield signals
    finally:
        for number in replaced:
            signal.signal(number, _DEFAULT[number])
        if fatal := next((number for number in signals.received if number != signal.SIGINT), None):
            # With the default handler in place, the exit status shows the signal.
            os.kill(os.getpid(), fatal)
