"""Signals that would end this process while it submits: heard as Ctrl-C is, and obeyed when the record is written."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_ENDS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def obeyed_later() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a closed terminal, raise KeyboardInterrupt; behind it the process ends by them.

    A signal that is ignored (nohup), or has a handler of the program's own, stays as it is; a thread hears none.
    """
    heard: list[int] = []

    def hear(number: int, _: FrameType | None) -> NoReturn:
        heard.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in _ENDS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        if heard:
            os.kill(os.getpid(), heard[0])
