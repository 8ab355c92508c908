"""Data that the tasks of a step share through PMI: keys, attributes of nodes, barriers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pocketslurm.pmi.protocol import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pocketslurm.queue.records import Step

MAPPING = "PMI_process_mapping"


class KeyValueSpace:
    """The state of one step.

    Attributes:
        name: PMI's job and the name of its values: `12.0` and random digits, because MPICH derives the names of its
            shared memory from it, and each queue of this machine has a step 1.0.
        size: Tasks.
        values: What all can read; what was put comes with the next fence.
    """

    def __init__(self, step: Step, distribution: str) -> None:
        self.name = f"{step.job_id}.{step.step_id}.{os.urandom(4).hex()}"
        self.values = {MAPPING: process_mapping(step.tasks, distribution)}
        self._node = {task: node for node, tasks in enumerate(step.tasks) for task in tasks}
        self.size = len(self._node)
        self._put: dict[str, str] = {}
        self._fenced: set[int] = set()
        self._attributes: dict[tuple[int, str], str] = {}
        self._asking: list[tuple[int, str]] = []

    def put(self, key: str, value: str) -> None:
        """Store a value; other tasks see it after the next barrier."""
        self._put[key] = value

    def barrier(self, task: int) -> list[int]:
        """Enter a barrier. Return the waiting tasks when the last one has entered.

        Raises:
            ProtocolError: The task waits already.
        """
        if task in self._fenced:
            raise ProtocolError("a task that waits at a barrier asks for another one")
        self._fenced.add(task)
        if len(self._fenced) < self.size:
            return []
        # Values become visible at the barrier, so that all tasks read the same ones.
        self.values |= self._put
        self._put, gone, self._fenced = {}, self._fenced, set()
        return sorted(gone)

    def attribute(self, task: int, key: str, *, wait: bool = False) -> str | None:
        """Return an attribute of the task's node; with `wait`, `describe` answers the task later."""
        found = self._attributes.get((self._node[task], key))
        if found is None and wait:
            self._asking.append((task, key))
        return found

    def describe(self, task: int, key: str, value: str) -> list[int]:
        """Set an attribute of the task's node, once and for all. Return the tasks that wait for it."""
        self._attributes.setdefault((self._node[task], key), value)
        there = [(who, what) for who, what in self._asking if what == key and self._node[who] == self._node[task]]
        self._asking = [each for each in self._asking if each not in there]
        return [who for who, _ in there]


def process_mapping(tasks: Sequence[Sequence[int]], distribution: str) -> str:
    """Return the process mapping of PMI as Slurm writes it: (first node, number of nodes, tasks on each)."""
    node_of = {task: node for node, numbers in enumerate(tasks) for task in numbers}
    runs: list[tuple[int, int]] = []
    for task in sorted(node_of):
        node = node_of[task]
        # mpi/pmi2 never joins neighbouring tasks of a cyclic distribution to one block.
        if runs and runs[-1][0] == node and distribution != "cyclic":
            runs[-1] = (node, runs[-1][1] + 1)
        else:
            runs.append((node, 1))
    blocks: list[tuple[int, int, int]] = []
    for node, block in runs:
        first, count, size = blocks[-1] if blocks else (0, 0, 0)
        if size == block and node == first + count:
            blocks[-1] = (first, count + 1, block)
        else:
            blocks.append((node, 1, block))
    return f"(vector,{','.join(f'({first},{count},{size})' for first, count, size in blocks)})"
