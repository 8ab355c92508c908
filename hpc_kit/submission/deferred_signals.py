"""Signals that would end this process while it submits: heard where nothing is lost by it, obeyed when that is done."""

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
    """Ctrl-C, SIGTERM, and SIGHUP of a closed terminal, as they come.

    Each raises KeyboardInterrupt until `hold` is called, and behind it within `heard_at_once` alone. One that has been
    raised is not raised a second time: what cleans up behind it is left in peace.
    """

    def __init__(self) -> None:
        self.heard: list[int] = []
        """What has come."""

        self._raises = True

    def hold(self) -> None:
        """From now on, let them wait: what is under way must not be torn in two."""
        self._raises = False

    @contextmanager
    def heard_at_once(self) -> Iterator[None]:
        """Around what takes long, and loses nothing where it is cut short."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def hear(self, number: int, _: FrameType | None) -> None:
        """The handler."""
        self.heard.append(number)
        if self._raises:
            self._raises = False
            raise KeyboardInterrupt


@contextmanager
def defer_signals() -> Iterator[DeferredSignals]:
    """Hear the signals that end this process; by SIGTERM and SIGHUP it ends behind the block.

    A signal that is ignored (nohup), or has a handler of the program's own, stays as it is; a thread hears none.
    """
    ends = DeferredSignals()
    if threading.current_thread() is not threading.main_thread():
        yield ends
        return
    ours = [number for number, default in _DEFAULT.items() if signal.getsignal(number) is default]
    for number in ours:
        signal.signal(number, ends.hear)
    try:
        yield ends
    finally:
        for number in ours:
            signal.signal(number, _DEFAULT[number])
        if asked := next((number for number in ends.heard if number != signal.SIGINT), None):
            os.kill(os.getpid(), asked)
