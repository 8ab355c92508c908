"""A step while it runs: its tasks' ends, the signals and orders that come in, and what becomes of it then."""

from __future__ import annotations

import os
import selectors
import signal
import time
from typing import TYPE_CHECKING

from pocketslurm import processes
from pocketslurm.resources import OUT_OF_MEMORY, OomCounter
from pocketslurm.steps.running_part import Part
from pocketslurm.steps.step_creation import joined
from pocketslurm.steps.stream_mover import Pump
from pocketslurm.steps.task_exits import worst
from pocketslurm.steps.timers import Clocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pocketslurm.pmi.server import PmiServer
    from pocketslurm.queue.messages import SrunInbox
    from pocketslurm.queue.records import Step
    from pocketslurm.steps.messages import Talk
    from pocketslurm.steps.task_files import Plumbing
    from pocketslurm.steps.task_process import Task
    from pocketslurm.steps.termination import Manner

GROUP_SECONDS = 0.1
"""slurmstepd waits so long for other tasks of its node that end alike."""

SIGNALS = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGCONT, signal.SIGTERM, signal.SIGHUP,
    signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
"""What srun minds; the others do to it what they do to any process."""

_DRAIN_SECONDS = 2.0


class Run:
    """One step from its first task's start to the last one's end.

    Args:
        created: The step, part by part, each with the place where it takes orders.
        manner: How it is run.
        talk: srun's voice.
        book: Called with each part that is over before the others.

    Attributes:
        parts: Its parts, one for each component.
    """

    def __init__(
        self, created: Sequence[tuple[Step, SrunInbox]], manner: Manner, talk: Talk, book: Callable[[Part], None]
    ) -> None:
        self.step = joined([step for step, _ in created])
        self._manner = manner
        self._talk = talk
        self._book_part = book
        self._clocks = Clocks()
        self.parts: list[Part] = []
        for each in created:
            self.parts.append(Part(each, list(self.parts), manner, talk, self._clocks, self._processes))
        self._selector = selectors.DefaultSelector()
        self._ended: list[tuple[Task, int]] = []
        self._interrupted = -9.0
        self._oom = OomCounter()
        self._wakeup, wakeup_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def started(self, pid: int, task: Task) -> None:
        """A task runs."""
        self.part(task).running[pid] = task

    def failed(self, task: Task) -> None:
        """A task's files could not be opened."""
        part = self.part(task)
        self._talk.error(f"task {task.number - part.first} launch failed: Slurmd could not connect IO")
        part.report.ended(self.step.nodes[task.node], [task.number - part.first], 1 << 8)

    def abort(self) -> None:
        """End all of it by force."""
        for part in self.parts:
            part.ending.abort()

    @property
    def status(self) -> int:
        """The wait status that stands for the whole."""
        return worst(part.report for part in self.parts)

    def part(self, task: Task) -> Part:
        """The part that a task is of."""
        return next(part for part in self.parts if part.has(task))

    @property
    def _running(self) -> list[Task]:
        return [task for part in self.parts for task in part.running.values()]

    def _processes(self, part: Part) -> list[int]:
        """All that lives of a part: srun adopts the orphans of its tasks, and the last part has them all."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return []
        if any(other.running for other in self.parts if other is not part):
            return [process.pid for process in processes.descendants(part.running, inclusive=True)]
        return [process.pid for process in processes.descendants([os.getpid()])]

    def wait(self, plumbing: Plumbing, pmi: PmiServer | None = None, *, launched: bool = True) -> None:
        """See the step through to its end, and serve its MPI programs; they end where not all could be launched."""
        self._pump = Pump(self._selector, plumbing, self._on_broken)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_wakeup)
        for part in self.parts:
            self._selector.register(part.inbox.fd, selectors.EVENT_READ, lambda part=part: self._on_orders(part))
        if pmi is not None:
            pmi.serve(self._selector, self.abort)
            if not launched:  # the others would wait for it for ever
                self.abort()
        if self._manner.time_limit is not None:
            self._clocks.set("limit", self._manner.time_limit, self._time_out)
        self._reap()
        self._finish_if_over()
        while self._running or self._ended or not self._pump.drained:
            for key, _ in self._selector.select(self._clocks.how_long()):
                if key.fd in self._selector.get_map():
                    key.data()
            self._clocks.run()
        for part in self.parts:
            if part.report.killed and not part.ending.cancelled:
                self._talk.info(f"Force Terminated StepId={part.ending.name}")

    def _time_out(self) -> None:
        for part in self.parts:
            part.ending.time_out()

    # Ends of tasks

    def _reap(self) -> None:
        for pid, status in processes.reap().items():
            for part in self.parts:
                if task := part.running.pop(pid, None):
                    oom = status == signal.SIGKILL and not part.ending.killing and self._oom.rose()
                    self._ended.append((task, OUT_OF_MEMORY if oom else status))
                    self._due(task.node)

    def _due(self, node: int) -> None:
        """Book what has ended on a node: at once if nothing runs there any more, else when others may have joined."""
        waiting = any(task.node == node for task in self._running)
        self._clocks.set(f"node {node}", GROUP_SECONDS if waiting else 0.0, lambda: self._book(node))

    def _book(self, node: int) -> None:
        """Tell of the tasks of a node that have ended, those that ended alike in one line."""
        self._pump.drain()
        ended = [(task, status) for task, status in self._ended if task.node == node]
        self._ended = [(task, status) for task, status in self._ended if task.node != node]
        alike: dict[int, list[int]] = {}
        for task, status in ended:
            alike.setdefault(status, []).append(task.number)
        first = not any(part.ends for part in self.parts)
        for status, tasks in alike.items():
            was_bad = any(part.report.bad for part in self.parts)
            self.part(ended[0][0]).ended(self.step.nodes[node], tasks, status)
            if status and not was_bad and self._manner.kill_bad_exit:
                self._terminate()
        if ended and self._running and self._is_over(part := self.part(ended[0][0])):
            self._book_part(part)
        if first and self._manner.max_wait:
            self._clocks.set("wait", self._manner.max_wait, self._on_max_wait)
        self._finish_if_over()

    def _is_over(self, part: Part) -> bool:
        """Whether all tasks of a part have ended and are told of."""
        return not part.running and not any(part.has(task) for task, _ in self._ended)

    def _terminate(self) -> None:
        """--kill-on-bad-exit: what runs is asked to end."""
        for part in self.parts:
            part.ending.say_terminating()
        for part in self.parts:
            if part.running or len(self.parts) == 1:
                part.ending.terminate()

    def _finish_if_over(self) -> None:
        """After the last task: what it left behind is killed, or its streams would never end."""
        if not self._running and not self._ended:
            self._pump.close_input()
            self.parts[-1].ending.kill()
            self._clocks.set("drain", _DRAIN_SECONDS, self._pump.give_up)

    def _on_max_wait(self) -> None:
        if self._running:
            self._talk.info(f"First task exited {self._manner.max_wait}s ago")
            for part in self.parts:
                part.tell_states()
            for part in self.parts:
                part.ending.say_terminating()
                part.ending.abort()

    def _on_broken(self) -> None:
        """Nobody reads our output: as SIGPIPE would have it."""
        for part in self.parts:
            if not part.ending.cancelled:
                part.ending.abort()

    # What comes in

    def _on_orders(self, part: Part) -> None:
        for order in part.inbox.read():
            kind, _, rest = order.partition(" ")
            if kind == "signal":
                part.ending.deliver(int(rest))
            elif kind == "cancel":
                part.ending.cancel(rest)
            elif kind == "kill":
                part.ending.abort()

    def _on_wakeup(self) -> None:
        for number in os.read(self._wakeup, 4096):
            if number == signal.SIGCHLD:
                self._reap()
            else:
                self._on_signal(number)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGINT:
            self._on_interrupt()
        elif number in {signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}:
            if number == signal.SIGQUIT:
                self._talk.info("Quit")
            self._talk.info("forcing job termination")
            self.abort()
        elif number == signal.SIGCONT:
            self._talk.info("got SIGCONT")
        elif number != signal.SIGALRM:
            for part in self.parts:
                part.ending.deliver(number)

    def _on_interrupt(self) -> None:
        now = time.monotonic()
        again = now - self._interrupted < 1
        self._interrupted = now
        if self._manner.quit_on_interrupt or again:
            self._pass_interrupt_on()
            self._talk.info("forcing job termination")
            for part in self.parts:
                part.report.cancelled = True
            self.abort()
        elif self._manner.pass_interrupt:
            self._pass_interrupt_on()
        else:
            self._talk.info("interrupt (one more within 1 sec to abort)")
            for part in self.parts:
                part.tell_states()

    def _pass_interrupt_on(self) -> None:
        for part in self.parts:
            self._talk.info(f"sending Ctrl-C to StepId={part.ending.name}")
            part.ending.deliver(signal.SIGINT)
