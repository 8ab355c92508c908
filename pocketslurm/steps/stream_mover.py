"""Moving a step's streams while it runs: the tasks' output to where it goes, srun's input to the tasks."""

from __future__ import annotations

import os
import selectors
from typing import TYPE_CHECKING

from pocketslurm.steps.streams import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable

    from pocketslurm.steps.streams import Inlet, Outlet
    from pocketslurm.steps.task_files import Plumbing


class Pump:
    """The streams of one step in a selector, whose keys carry what is to be called.

    Args:
        selector: The loop's.
        plumbing: The streams.
        on_broken: Called when nobody reads srun's own output any more.
    """

    def __init__(self, selector: selectors.BaseSelector, plumbing: Plumbing, on_broken: Callable[[], None]) -> None:
        self._selector = selector
        self._on_broken = on_broken
        self._outlets = {outlet.fd for outlet in plumbing.outlets}
        self._inlets = list(plumbing.inlets)
        self._source = plumbing.source if plumbing.inlets else None
        for outlet in plumbing.outlets:
            selector.register(outlet.fd, selectors.EVENT_READ, lambda outlet=outlet: self._on_output(outlet))
        self._watch_source()

    @property
    def drained(self) -> bool:
        """All output has come through."""
        return not self._outlets

    def drain(self) -> None:
        """Take what is there of every output, as at a task's end."""
        for key in list(self._selector.get_map().values()):
            if key.fd in self._outlets:
                key.data()

    def give_up(self) -> None:
        """Wait for no more output: somebody who got away holds on to a stream."""
        for fd in list(self._outlets):
            self._close_outlet(fd)

    def _on_output(self, outlet: Outlet) -> None:
        try:
            more = outlet.pump()
        except OSError:
            more = False
            self._on_broken()
        if not more:
            self._close_outlet(outlet.fd)

    def _close_outlet(self, fd: int) -> None:
        self._outlets.discard(fd)
        self._selector.unregister(fd)
        os.close(fd)

    def _watch_source(self) -> None:
        """Read srun's input; a plain file, which no selector takes, is read as fast as the tasks do."""
        if self._source is None:
            return
        try:
            self._selector.register(self._source, selectors.EVENT_READ, self._on_input)
        except OSError:
            self._on_input()

    def _on_input(self) -> None:
        source = self._source
        if source is None:
            return
        try:
            data = os.read(source, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._forget_source()
        self._source = source if data else None
        for inlet in list(self._inlets):
            inlet.feed(data)
            self._watch_inlet(inlet)
        if not self._inlets:
            self._source = None

    def _forget_source(self) -> None:
        if self._source is not None and self._source in self._selector.get_map():
            self._selector.unregister(self._source)

    def _watch_inlet(self, inlet: Inlet) -> None:
        if inlet.fd not in self._selector.get_map():
            self._selector.register(inlet.fd, selectors.EVENT_WRITE, lambda: self._on_inlet(inlet))

    def _on_inlet(self, inlet: Inlet) -> None:
        more = inlet.pump()
        if more and inlet.waiting:
            return
        self._selector.unregister(inlet.fd)
        if not more:
            os.close(inlet.fd)
            self._inlets.remove(inlet)
        # The next piece is read when every task has had this one.
        if not any(each.waiting for each in self._inlets):
            self._watch_source()

    def close_input(self) -> None:
        """No task is there to read any more."""
        self._forget_source()
        self._source = None
