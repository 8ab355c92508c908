"""A step while it runs: its tasks' ends, the signals and orders that come in, and what becomes of it then."""

from __future__ import annotations

import os
import selectors
import signal
import time
from typing import TYPE_CHECKING

from hpc_kit.embedded import processes
from hpc_kit.embedded.memory import OUT_OF_MEMORY, OomCounter
from hpc_kit.embedded.srun_clocks import Clocks
from hpc_kit.embedded.srun_end import Ending
from hpc_kit.embedded.srun_pump import Pump
from hpc_kit.embedded.srun_report import Report, task_word

if TYPE_CHECKING:
    from hpc_kit.embedded.pmi import PmiServer
    from hpc_kit.embedded.records import Step
    from hpc_kit.embedded.srun_end import Manner
    from hpc_kit.embedded.srun_files import Plumbing
    from hpc_kit.embedded.srun_orders import Inbox
    from hpc_kit.embedded.srun_talk import Talk
    from hpc_kit.embedded.srun_tasks import Task

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

    Attributes:
        report: The tasks' ends so far.
        ending: The step's end by order.
    """

    def __init__(self, step: Step, inbox: Inbox, manner: Manner, talk: Talk) -> None:
        self.step = step
        self.report = Report(reduce=manner.reduce)
        self._manner = manner
        self._talk = talk
        self._inbox = inbox
        self._clocks = Clocks()
        self._running: dict[int, Task] = {}
        self.ending = Ending(step, manner, talk, self._clocks, self._running.keys())
        self._selector = selectors.DefaultSelector()
        self._ended: list[tuple[Task, int]] = []
        self._ends: dict[int, int] = {}
        self._interrupted = -9.0
        self._oom = OomCounter()
        self._wakeup, wakeup_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def started(self, pid: int, task: Task) -> None:
        """A task runs."""
        self._running[pid] = task

    def failed(self, task: Task) -> None:
        """A task's files could not be opened."""
        self._talk.error(f"task {task.number} launch failed: Slurmd could not connect IO")
        self.report.ended(self.step.nodes[task.node], [task.number], 1 << 8)

    def wait(self, plumbing: Plumbing, pmi: PmiServer | None = None) -> None:
        """See the step through to its end, and serve its MPI programs."""
        self._pump = Pump(self._selector, plumbing, self._on_broken)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_wakeup)
        self._selector.register(self._inbox.fd, selectors.EVENT_READ, self._on_orders)
        if pmi is not None:
            pmi.serve(self._selector, self.ending.abort)
        if self._manner.time_limit is not None:
            self._clocks.set("limit", self._manner.time_limit, self.ending.time_out)
        self._reap()
        self._finish_if_over()
        while self._running or self._ended or not self._pump.drained:
            for key, _ in self._selector.select(self._clocks.how_long()):
                if key.fd in self._selector.get_map():
                    key.data()
            self._clocks.run()
        if self.report.killed and not self.ending.cancelled:
            self._talk.info(f"Force Terminated StepId={self.ending.name}")

    # Ends of tasks

    def _reap(self) -> None:
        for pid, status in processes.reap().items():
            if task := self._running.pop(pid, None):
                oom = status == signal.SIGKILL and not self.ending.killing and self._oom.rose()
                self._ended.append((task, OUT_OF_MEMORY if oom else status))
                self._due(task.node)

    def _due(self, node: int) -> None:
        """Book what has ended on a node: at once if nothing runs there any more, else when others may have joined."""
        waiting = any(task.node == node for task in self._running.values())
        self._clocks.set(f"node {node}", GROUP_SECONDS if waiting else 0.0, lambda: self._book(node))

    def _book(self, node: int) -> None:
        """Tell of the tasks of a node that have ended, those that ended alike in one line."""
        self._pump.drain()
        ended = [(task, status) for task, status in self._ended if task.node == node]
        self._ended = [(task, status) for task, status in self._ended if task.node != node]
        alike: dict[int, list[int]] = {}
        for task, status in ended:
            alike.setdefault(status, []).append(task.number)
        first = not self._ends
        for status, tasks in alike.items():
            self._ends.update(dict.fromkeys(tasks, status))
            was_bad = self.report.bad
            if line := self.report.ended(self.step.nodes[node], tasks, status):
                self._talk.error(line)
            if self.report.bad and not was_bad and self._manner.kill_bad_exit:
                self.ending.terminate()
        if first and self._manner.max_wait:
            self._clocks.set("wait", self._manner.max_wait, self._on_max_wait)
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        """After the last task: what it left behind is killed, or its streams would never end."""
        if not self._running and not self._ended:
            self._pump.close_input()
            self.ending.kill()
            self._clocks.set("drain", _DRAIN_SECONDS, self._pump.give_up)

    def _on_max_wait(self) -> None:
        if self._running:
            self._talk.info(f"First task exited {self._manner.max_wait}s ago")
            self._tell_states()
            self.ending.say_terminating()
            self.ending.abort()

    def _on_broken(self) -> None:
        """Nobody reads our output: as SIGPIPE would have it."""
        if not self.ending.cancelled:
            self.ending.abort()

    # What comes in

    def _on_orders(self) -> None:
        for order in self._inbox.read():
            kind, _, rest = order.partition(" ")
            if kind == "signal":
                self.ending.deliver(int(rest))
            elif kind == "cancel":
                self.ending.cancel(rest)
            elif kind == "kill":
                self.ending.abort()

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
            self.ending.abort()
        elif number == signal.SIGCONT:
            self._talk.info("got SIGCONT")
        elif number != signal.SIGALRM:
            self.ending.deliver(number)

    def _on_interrupt(self) -> None:
        now = time.monotonic()
        again = now - self._interrupted < 1
        self._interrupted = now
        if self._manner.quit_on_interrupt or again:
            self._talk.info(f"sending Ctrl-C to StepId={self.ending.name}")
            self.ending.deliver(signal.SIGINT)
            self._talk.info("forcing job termination")
            self.report.cancelled = True
            self.ending.abort()
        elif self._manner.pass_interrupt:
            self._talk.info(f"sending Ctrl-C to StepId={self.ending.name}")
            self.ending.deliver(signal.SIGINT)
        else:
            self._talk.info("interrupt (one more within 1 sec to abort)")
            self._tell_states()

    def _tell_states(self) -> None:
        """Which tasks run, and how the others ended."""
        states = {
            "running": [task.number for task in self._running.values()],
            "exited abnormally": [task for task, status in self._ends.items() if status],
            "exited": [task for task, status in self._ends.items() if not status],
        }
        for words, tasks in states.items():
            if tasks:
                self._talk.info(f"StepId={self.ending.name} {task_word(tasks)}: {words}")
