"""Runs one step: waits for its tasks, handles signals, orders and timers, and records how the step ended."""

from __future__ import annotations

import os
import selectors
import signal
import time
from typing import TYPE_CHECKING

from pocketslurm import processes, resources
from pocketslurm.exit_status import step_state
from pocketslurm.queue.state import now
from pocketslurm.resources import OUT_OF_MEMORY, OomCounter
from pocketslurm.steps.messages import TaskExits, format_tasks, highest_exit_code
from pocketslurm.steps.step_creation import merge_step_parts
from pocketslurm.steps.task_io import StreamMover, TaskPosition
from pocketslurm.steps.termination import StepTermination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pocketslurm.pmi.server import PmiServer
    from pocketslurm.queue.messages import SrunInbox
    from pocketslurm.queue.records import Step
    from pocketslurm.queue.state import StateDirectory
    from pocketslurm.steps.messages import SrunMessages
    from pocketslurm.steps.task_io import StepStreams
    from pocketslurm.steps.task_process import TaskSpec
    from pocketslurm.steps.termination import StepPolicy


GROUP_SECONDS = 0.1
"""Ends of tasks of one node within this time are reported together, as by slurmstepd."""

SIGNALS = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGCONT, signal.SIGTERM, signal.SIGHUP,
    signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
"""Signals that srun handles. All other signals have their default action."""

_DRAIN_SECONDS = 2.0
"""After the last task has ended, its output is read for this long."""


class RunningStep:
    """A step from the start of its first task to the end of its last one.

    Args:
        created: The parts of the step, each with its pipe for orders.
        policy: The policy for bad exits, time limits and signals.
        messages: Prints messages of srun.

    Attributes:
        parts: The parts of the step, one for each component.
    """

    def __init__(
        self,
        created: Sequence[tuple[Step, SrunInbox]],
        policy: StepPolicy,
        messages: SrunMessages,
    ) -> None:
        self.step = merge_step_parts([step for step, _ in created])
        self._policy = policy
        self._messages = messages
        self._timers = Timers()
        self.parts: list[RunningPart] = []
        for each in created:
            self.parts.append(RunningPart(each, list(self.parts), policy, messages, self._timers, self._processes))
        self._selector = selectors.DefaultSelector()
        self._ended: list[tuple[TaskSpec, int]] = []
        self._interrupted_at = float("-inf")
        self._oom = OomCounter()
        self._wakeup, wakeup_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
        # The handlers do nothing. Python writes the number of each signal to the pipe, which the event loop reads.
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def record_start(self, pid: int, task: TaskSpec) -> None:
        """Record a started task."""
        self.part(task).running[pid] = task

    def record_launch_failure(self, task: TaskSpec) -> None:
        """Record a task whose files could not be opened."""
        part = self.part(task)
        self._messages.error(f"task {task.number - part.first} launch failed: Slurmd could not connect IO")
        part.exits.record(self.step.nodes[task.node], [task.number - part.first], 1 << 8)

    def abort(self) -> None:
        """End all parts with SIGKILL."""
        for part in self.parts:
            part.termination.abort()

    @property
    def status(self) -> int:
        """Return the wait status of the step."""
        return highest_exit_code(part.exits for part in self.parts)

    def part(self, task: TaskSpec) -> RunningPart:
        """Return the part of a task."""
        return next(part for part in self.parts if part.contains(task))

    @property
    def _running(self) -> list[TaskSpec]:
        return [task for part in self.parts for task in part.running.values()]

    def _processes(self, part: RunningPart) -> list[int]:
        """Return the pids of a part. Orphans, which srun has adopted, belong to the last part that runs."""
        # Without children, there is no need to read the process table, which is slow.
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return []
        if any(other.running for other in self.parts if other is not part):
            return [process.pid for process in processes.descendants(part.running, inclusive=True)]
        return [process.pid for process in processes.descendants([os.getpid()])]

    def wait(self, streams: StepStreams, pmi: PmiServer | None = None, *, launched: bool = True) -> None:
        """Run the event loop until the step has ended, and serve its MPI programs.

        `launched`: all tasks have started.
        """
        self._mover = StreamMover(self._selector, streams, self._on_broken)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_wakeup)
        for part in self.parts:
            self._selector.register(part.inbox.fd, selectors.EVENT_READ, lambda part=part: self._on_orders(part))
        if pmi is not None:
            pmi.serve(self._selector, self.abort)
            if not launched:  # MPI programs would wait forever for the missing task
                self.abort()
        # Tasks may already have ended.
        self._reap()
        self._finish_if_over()
        while self._running or self._ended or not self._mover.is_drained:
            for key, _ in self._selector.select(self._timers.seconds_to_next()):
                # An earlier callback of this round may have closed the file.
                if key.fd in self._selector.get_map():
                    key.data()
            self._timers.run()
        for part in self.parts:
            if part.exits.killed and not part.termination.cancelled:
                self._messages.info(f"Force Terminated StepId={part.termination.name}")

    # Ends of tasks

    def _reap(self) -> None:
        for pid, status in processes.reap().items():
            for part in self.parts:
                if task := part.running.pop(pid, None):
                    oom = status == signal.SIGKILL and not part.termination.killing and self._oom.rose()
                    self._ended.append((task, OUT_OF_MEMORY if oom else status))
                    self._schedule_report(task.node)

    def _schedule_report(self, node: int) -> None:
        """Report the ended tasks of a node: now if no task runs there any more, else after `GROUP_SECONDS`."""
        waiting = any(task.node == node for task in self._running)
        self._timers.set(f"node {node}", GROUP_SECONDS if waiting else 0.0, lambda: self._report_ends(node))

    def _report_ends(self, node: int) -> None:
        """Report the ended tasks of a node, with one line for all that ended in the same way."""
        # The output of a task must appear before the line about its end.
        self._mover.drain()
        ended = [(task, status) for task, status in self._ended if task.node == node]
        self._ended = [(task, status) for task, status in self._ended if task.node != node]
        by_status: dict[int, list[int]] = {}
        for task, status in ended:
            by_status.setdefault(status, []).append(task.number)
        first = not any(part.ends for part in self.parts)
        for status, tasks in by_status.items():
            was_bad = any(part.exits.bad for part in self.parts)
            self.part(ended[0][0]).record_exits(self.step.nodes[node], tasks, status)
            if status and not was_bad and self._policy.kill_bad_exit:
                self._terminate()
        if first and self._policy.max_wait:
            self._timers.set("wait", self._policy.max_wait, self._on_max_wait)
        self._finish_if_over()

    def _terminate(self) -> None:
        """Send SIGTERM to the step because of --kill-on-bad-exit."""
        for part in self.parts:
            part.termination.print_terminating()
        for part in self.parts:
            if part.running or len(self.parts) == 1:
                part.termination.terminate()

    def _finish_if_over(self) -> None:
        """After the last task, kill the processes that the tasks left behind, which keep their streams open."""
        if not self._running and not self._ended:
            self._mover.close_input()
            self.parts[-1].termination.kill()
            self._timers.set("drain", _DRAIN_SECONDS, self._mover.give_up)

    def _on_max_wait(self) -> None:
        if self._running:
            self._messages.info(f"First task exited {self._policy.max_wait}s ago")
            for part in self.parts:
                part.print_states()
            for part in self.parts:
                part.termination.print_terminating()
                part.termination.abort()

    def _on_broken(self) -> None:
        """End the step because srun's output is closed, as SIGPIPE would."""
        for part in self.parts:
            if not part.termination.cancelled:
                part.termination.abort()

    # Orders and signals

    def _on_orders(self, part: RunningPart) -> None:
        for order in part.inbox.read():
            kind, _, rest = order.partition(" ")
            if kind == "signal":
                part.termination.deliver(int(rest))
            elif kind == "cancel":
                part.termination.cancel(rest)
            elif kind == "kill":
                part.termination.abort()

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
                self._messages.info("Quit")
            self._messages.info("forcing job termination")
            self.abort()
        elif number == signal.SIGCONT:
            self._messages.info("got SIGCONT")
        elif number != signal.SIGALRM:
            for part in self.parts:
                part.termination.deliver(number)

    def _on_interrupt(self) -> None:
        now = time.monotonic()
        again = now - self._interrupted_at < 1
        self._interrupted_at = now
        if self._policy.quit_on_interrupt or again:
            self._pass_interrupt_on()
            self._messages.info("forcing job termination")
            for part in self.parts:
                part.exits.cancelled = True
            self.abort()
        elif self._policy.pass_interrupt:
            self._pass_interrupt_on()
        else:
            self._messages.info("interrupt (one more within 1 sec to abort)")
            for part in self.parts:
                part.print_states()

    def _pass_interrupt_on(self) -> None:
        for part in self.parts:
            self._messages.info(f"sending Ctrl-C to StepId={part.termination.name}")
            part.termination.deliver(signal.SIGINT)


class RunningPart:
    """The part of a step in one component of a heterogeneous job; other steps have one part.

    Messages count the tasks of each part from 0.

    Args:
        created: The step of this part, and its pipe for orders.
        earlier_parts: The parts before this one.
        processes: Returns the pids of a part.

    Attributes:
        index: Index of the part.
        first: Number of its first task in the whole step.
        running: Running tasks by pid.
        ends: Wait statuses of ended tasks, by their number in the whole step.
        exits: The highest status, and the messages about ended tasks.
        termination: Ends the part early.
    """

    def __init__(
        self,
        created: tuple[Step, SrunInbox],
        earlier_parts: Sequence[RunningPart],
        policy: StepPolicy,
        messages: SrunMessages,
        timers: Timers,
        processes: Callable[[RunningPart], list[int]],
    ) -> None:
        step, self.inbox = created
        self.step = step
        self.index = len(earlier_parts)
        self.first = sum(len(tasks) for part in earlier_parts for tasks in part.step.tasks)
        self._first_node = sum(len(part.step.nodes) for part in earlier_parts)
        self.running: dict[int, TaskSpec] = {}
        self.ends: dict[int, int] = {}
        self.exits = TaskExits()
        self.termination = StepTermination(step, policy, messages, timers, self.running.keys(), lambda: processes(self))
        self._numbers = range(self.first, self.first + sum(map(len, step.tasks)))
        self._messages = messages

    def contains(self, task: TaskSpec) -> bool:
        """Return whether a task belongs to this part."""
        return task.number in self._numbers

    def position(self, task: TaskSpec) -> TaskPosition:
        """Return the position of a task.

        As with Slurm, file names count nodes from 0 in each component, and add the index of the part to the task.
        """
        node_id = task.node - self._first_node
        return TaskPosition(task.number, self.step.nodes[node_id], node_id, task.number + self.index)

    def record_exits(self, node: str, tasks: Iterable[int], status: int) -> None:
        """Record and report the tasks of a node that ended with the same status."""
        tasks = list(tasks)
        self.ends.update(dict.fromkeys(tasks, status))
        if line := self.exits.record(node, self._in_part(tasks), status):
            self._messages.error(line)

    def print_states(self) -> None:
        """Print which tasks run, and which have ended well or badly."""
        states = {
            "running": [task.number for task in self.running.values()],
            "exited abnormally": [task for task, status in self.ends.items() if status],
            "exited": [task for task, status in self.ends.items() if not status],
        }
        for words, tasks in states.items():
            if tasks:
                self._messages.info(f"StepId={self.termination.name} {format_tasks(self._in_part(tasks))}: {words}")

    def _in_part(self, tasks: Iterable[int]) -> list[int]:
        return [task - self.first for task in tasks]


class Timers:
    """Named timers, each with an action."""

    def __init__(self) -> None:
        self._due: dict[str, tuple[float, Callable[[], None]]] = {}

    def set(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        """Run an action after some seconds. Of two timers with one name, only the earlier one runs."""
        moment = time.monotonic() + seconds
        if name not in self._due or moment < self._due[name][0]:
            self._due[name] = (moment, action)

    def seconds_to_next(self) -> float | None:
        """Return the seconds until the next timer, or None without one."""
        if not self._due:
            return None
        return max(0.0, min(moment for moment, _ in self._due.values()) - time.monotonic())

    def run(self) -> None:
        """Run the actions that are due."""
        now = time.monotonic()
        for name in [name for name, (moment, _) in self._due.items() if moment <= now]:
            _, action = self._due.pop(name)
            action()


def record_end(state: StateDirectory, parts: Iterable[RunningPart]) -> None:
    """Record the end of a step. The first part gets the resource use of all parts."""
    used = resources.children_usage()._asdict()
    for part in parts:
        status = part.exits.status or 0
        name = "TIMEOUT" if part.termination.timed_out else step_state(status)
        state.update_step(part.step, state=name, exit_code=status, end_time=now(), **used)
        used = {}
