"""The moments that a running step waits for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Clocks:
    """Named moments, each with what is to be done then."""

    def __init__(self) -> None:
        self._due: dict[str, tuple[float, Callable[[], None]]] = {}

    def set(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        """Do something in so many seconds; of two moments of one name the earlier stays."""
        moment = time.monotonic() + seconds
        if name not in self._due or moment < self._due[name][0]:
            self._due[name] = (moment, action)

    def how_long(self) -> float | None:
        """Seconds until the next moment, None if there is none."""
        if not self._due:
            return None
        return max(0.0, min(moment for moment, _ in self._due.values()) - time.monotonic())

    def run(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for name in [name for name, (moment, _) in self._due.items() if moment <= now]:
            _, action = self._due.pop(name)
            action()
