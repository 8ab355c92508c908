"""The PMI server of one step, in its srun. MPI programs connect through it, as with Slurm's mpi/pmi2."""

from __future__ import annotations

import os
import selectors
import socket
from typing import TYPE_CHECKING

from pocketslurm.pmi import dialects
from pocketslurm.pmi.key_values import KeyValueSpace
from pocketslurm.pmi.protocol import Connection, ProtocolError
from pocketslurm.processes import write_slurmstepd_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from pocketslurm.pmi.protocol import PmiReply, PmiRequest
    from pocketslurm.queue.records import Step
    from pocketslurm.steps.task_process import TaskSpec

_CHUNK = 1 << 16


class PmiServer:
    """Connections to the tasks of a step, and the values that the tasks exchange.

    Args:
        step: The step.
        distribution: Distribution of its tasks over its nodes, such as `block`.
    """

    def __init__(self, step: Step, distribution: str) -> None:
        self._space = KeyValueSpace(step, distribution)
        self._connections: dict[int, Connection] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._unsent: dict[int, bytes] = {}
        self._task_end: socket.socket | None = None

    def connect(self, task: TaskSpec) -> TaskSpec:
        """Return the task with its end of a new connection and the variables for it; `started` closes that end."""
        own_end, task_end = socket.socketpair()
        os.set_blocking(own_end.fileno(), False)
        self._sockets[task.number], self._connections[task.number], self._task_end = own_end, Connection(), task_end
        found = {
            "PMI_FD": str(task_end.fileno()),
            "PMI_JOBID": self._space.name,
            "PMI_RANK": str(task.number),
            "PMI_SIZE": str(self._space.size),
        }
        return task._replace(environ={**task.environ, **found}, extra_fd=task_end.fileno())

    def close_task_end(self) -> None:
        """Close the ends of the connections that belong to tasks."""
        if self._task_end is not None:
            self._task_end.close()
            self._task_end = None

    def serve(self, selector: selectors.BaseSelector, abort: Callable[[], None]) -> None:
        """Register the connections with the event loop of srun; `abort` ends the step."""
        self._selector, self._end_step = selector, abort
        for task, own_end in self._sockets.items():
            selector.register(own_end, selectors.EVENT_READ, lambda task=task: self._on_task(task))

    def _on_task(self, task: int) -> None:
        # While data are unsent, the selector reports that the socket accepts more.
        if self._unsent.get(task):
            self._flush(task)
            return
        try:
            data = self._sockets[task].recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave(task)
            return
        try:
            for request in self._connections[task].feed(data):
                self._answer(task, request)
        except ProtocolError as garbage:
            write_slurmstepd_error(f"mpi/pmi2: {garbage}")
            self._leave(task)

    def _answer(self, task: int, request: PmiRequest) -> None:
        connection = self._connections[task]
        try:
            if connection.version is None:
                self._send(task, dialects.handshake(connection, request))
                return
            for each, reply in dialects.answer(self._space, connection, task, request):
                self._send(each, reply)
        except dialects.Unanswered as unanswered:
            write_slurmstepd_error(f"mpi/pmi2: {unanswered}")
            if unanswered.reply is not None:
                self._send(task, unanswered.reply)
        except dialects.Finished as finished:
            self._send(task, finished.reply)
            self._leave(task)
        except dialects.Abort:
            self._end_step()

    def _send(self, task: int, reply: PmiReply) -> None:
        """Send a reply; queue the part that the socket does not accept yet. Ignore a task that has ended."""
        if task in self._sockets:
            self._unsent[task] = self._unsent.get(task, b"") + self._connections[task].write(reply)
            self._flush(task)

    def _flush(self, task: int) -> None:
        own_end = self._sockets[task]
        try:
            sent = own_end.send(self._unsent[task], socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._leave(task)
            return
        self._unsent[task] = self._unsent[task][sent:]
        # Requests of a task that does not read its replies wait, so that the unsent data stay limited.
        events = selectors.EVENT_WRITE if self._unsent[task] else selectors.EVENT_READ
        self._selector.modify(own_end, events, lambda: self._on_task(task))

    def _leave(self, task: int) -> None:
        if own_end := self._sockets.pop(task, None):
            self._selector.unregister(own_end)
            own_end.close()
