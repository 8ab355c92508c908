"""One component of a running step: whose tasks they are, how they ended, and how they are ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketslurm.steps.task_exits import Report, task_word
from pocketslurm.steps.task_files import Place
from pocketslurm.steps.termination import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pocketslurm.queue.messages import SrunInbox
    from pocketslurm.queue.records import Step
    from pocketslurm.steps.messages import Talk
    from pocketslurm.steps.task_process import Task
    from pocketslurm.steps.termination import Manner
    from pocketslurm.steps.timers import Clocks


class Part:
    """A step's part in one component, the whole of most steps; what is told of its tasks counts them from 0.

    Args:
        created: Its step, and where that takes orders.
        before: The parts before it.
        processes: All that lives of the part.

    Attributes:
        index: Its own number, and `first` that of its first task in the whole.
        running: Its tasks that run, by pid.
        ends: The wait statuses of the others, by the task's number in the whole.
        report: What is told of them; `ending` is its end by order.
    """

    def __init__(
        self,
        created: tuple[Step, SrunInbox],
        before: Sequence[Part],
        manner: Manner,
        talk: Talk,
        clocks: Clocks,
        processes: Callable[[Part], list[int]],
    ) -> None:
        step, self.inbox = created
        self.step = step
        self.index = len(before)
        self.first = sum(len(tasks) for part in before for tasks in part.step.tasks)
        self._first_node = sum(len(part.step.nodes) for part in before)
        self.running: dict[int, Task] = {}
        self.ends: dict[int, int] = {}
        self.report = Report(reduce=manner.reduce)
        self.ending = Ending(step, manner, talk, clocks, self.running.keys(), lambda: processes(self))
        self._numbers = range(self.first, self.first + sum(map(len, step.tasks)))
        self._talk = talk

    def has(self, task: Task) -> bool:
        """Whether a task is one of its own."""
        return task.number in self._numbers

    def place(self, task: Task) -> Place:
        """Where a task is; in names of files nodes are counted in their component, and tasks one more for each part."""
        node_id = task.node - self._first_node
        return Place(task.number, self.step.nodes[node_id], node_id, task.number + self.index)

    def ended(self, node: str, tasks: Iterable[int], status: int) -> None:
        """Book and tell of some tasks of one node that ended alike."""
        tasks = list(tasks)
        self.ends.update(dict.fromkeys(tasks, status))
        if line := self.report.ended(node, self._own(tasks), status):
            self._talk.error(line)

    def tell_states(self) -> None:
        """Which tasks run, and how the others ended."""
        states = {
            "running": [task.number for task in self.running.values()],
            "exited abnormally": [task for task, status in self.ends.items() if status],
            "exited": [task for task, status in self.ends.items() if not status],
        }
        for words, tasks in states.items():
            if tasks:
                self._talk.info(f"StepId={self.ending.name} {task_word(self._own(tasks))}: {words}")

    def _own(self, tasks: Iterable[int]) -> list[int]:
        return [task - self.first for task in tasks]
