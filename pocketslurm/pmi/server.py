"""The PMI server of one step, in its srun. MPI programs connect through it, as with Slurm's mpi/pmi2."""

from __future__ import annotations

import os
import selectors
import socket
from typing import TYPE_CHECKING

from pocketslurm.pmi import dialects
from pocketslurm.pmi.key_values import KeyValueSpace
from pocketslurm.pmi.protocol import Connection, ProtocolError
from pocketslurm.steps.messages import write_stderr

if TYPE_CHECKING:
    from collections.abc import Callable

    from pocketslurm.pmi.protocol import PmiReply, PmiRequest
    from pocketslurm.queue.records import Step
    from pocketslurm.steps.task_process import TaskSpec

_CHUNK = 1 << 16


class PmiServer:
    """A connection to each task of a step, and what they tell one another.

    Args:
        step: The step.
        distribution: How its tasks go to its nodes.
    """

    def __init__(self, step: Step, distribution: str) -> None:
        self._board = KeyValueSpace(step, distribution)
        self._wires: dict[int, Connection] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._unsent: dict[int, bytes] = {}
        self._theirs: socket.socket | None = None

    def connect(self, task: TaskSpec) -> TaskSpec:
        """Return the task with its end of a new connection and the variables for it; `started` closes that end."""
        ours, theirs = socket.socketpair()
        os.set_blocking(ours.fileno(), False)
        self._sockets[task.number], self._wires[task.number], self._theirs = ours, Connection(), theirs
        found = {
            "PMI_FD": str(theirs.fileno()),
            "PMI_JOBID": self._board.name,
            "PMI_RANK": str(task.number),
            "PMI_SIZE": str(self._board.size),
        }
        return task._replace(environ={**task.environ, **found}, kept=theirs.fileno())

    def started(self) -> None:
        """Close the ends of the connections that belong to tasks."""
        if self._theirs is not None:
            self._theirs.close()
            self._theirs = None

    def serve(self, selector: selectors.BaseSelector, abort: Callable[[], None]) -> None:
        """Answer from now on, in a loop whose keys carry what is to be called; `abort` ends the step."""
        self._selector, self._end_step = selector, abort
        for task, ours in self._sockets.items():
            selector.register(ours, selectors.EVENT_READ, lambda task=task: self._on_task(task))

    def _on_task(self, task: int) -> None:
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
            for request in self._wires[task].feed(data):
                self._answer(task, request)
        except ProtocolError as garbage:
            _complain(str(garbage))
            self._leave(task)

    def _answer(self, task: int, request: PmiRequest) -> None:
        wire = self._wires[task]
        try:
            if wire.version is None:
                self._send(task, dialects.handshake(wire, request))
                return
            for each, reply in dialects.answer(self._board, wire, task, request):
                self._send(each, reply)
        except dialects.Unanswered as unanswered:
            _complain(str(unanswered))
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
            self._unsent[task] = self._unsent.get(task, b"") + self._wires[task].write(reply)
            self._flush(task)

    def _flush(self, task: int) -> None:
        ours = self._sockets[task]
        try:
            sent = ours.send(self._unsent[task], socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._leave(task)
            return
        self._unsent[task] = self._unsent[task][sent:]
        # One that reads nothing is not read from either: what it is owed stays finite.
        events = selectors.EVENT_WRITE if self._unsent[task] else selectors.EVENT_READ
        self._selector.modify(ours, events, lambda: self._on_task(task))

    def _leave(self, task: int) -> None:
        if ours := self._sockets.pop(task, None):
            self._selector.unregister(ours)
            ours.close()


def _complain(text: str) -> None:
    write_stderr(f"slurmstepd: error: mpi/pmi2: {text}\n")
