"""A launch from the first connection to the last process: all hosts begin together, and end together."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager, suppress
from queue import Empty, Queue, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.run_files import FirstFailure
from hpc_kit.ssh import agent
from hpc_kit.ssh.host_connection import Frame, HostLink, Text
from hpc_kit.ssh.reach import error_of, laid, master, reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hpc_kit.ssh.hosts import Host

GRACE = 30.0
"""Seconds between the wish that a host's ranks end and their end; Slurm's KillWait is the same."""

_OWN_ENDS = 3.0
"""Seconds that the others have to fall by themselves: what a lost peer makes them say is part of their logs."""

_TURN = 0.2
_PIECES = 256
"""Of what the ranks say, 64 KiB at most each, that are kept before the ranks have to wait."""

_LAUNCHER = -1
_LOST = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Work(NamedTuple):
    """What the hosts are to do."""

    key: str
    """What no other launch has."""

    folder: Path
    """The project: at the same path on all hosts."""

    run: Path
    scripts: tuple[str, ...]
    """What each host runs, in shell."""

    environ: Mapping[str, str]
    """Values that stand in no script."""

    ranks: tuple[int, ...]
    """On each host."""


class Ending(NamedTuple):
    """How a launch ended."""

    status: int
    """The exit code of the rank that failed first; 128 and the signal where somebody ended it; 1 for a lost host."""

    failure: FirstFailure | None
    problem: str | None
    """Where no rank failed, what did."""

    summary: str | None
    """What the training said of itself."""


class Session:
    """The hosts of one launch.

    Args:
        hosts: Them, in the order of their ranks.
        python: The interpreter that runs the agent on each.
        patience: Seconds for each step of a connection.
    """

    def __init__(self, hosts: Sequence[Host], python: str, patience: float) -> None:
        self._frames: SimpleQueue[Frame] = SimpleQueue()
        self._texts: Queue[Text] = Queue(maxsize=_PIECES)
        self.links = [
            HostLink(node, host.name, python, self._frames, self._texts, patience) for node, host in enumerate(hosts)
        ]
        self.ending = threading.Event()
        """Set once it is to end: what nobody takes is waited for no longer."""
        self._greetings: dict[int, Frame] = {}
        self._running: set[int] = set()
        self._ended: set[int] = set()  # as they say; they run until their connection has closed behind them
        self._status = 0
        self._failure: FirstFailure | None = None
        self._problem: str | None = None
        self._summary: str | None = None
        self._end_at: float | None = None
        self._give_up_at: float | None = None

    def connect(self) -> None:
        """Connect to all hosts.

        Raises:
            LaunchError: At least one cannot be used; nothing runs on any.
        """
        self._greetings = reach(self.links, self._frames)

    def laid(self, ranks: Sequence[int], backend: str) -> list[str]:
        """What there is to say of these ranks on these hosts, once they are connected.

        Raises:
            LaunchError: Ranks would take the GPUs of others.
        """
        return list(laid(self.links, self._greetings, ranks, backend))

    def run(self, work: Work, tell: Callable[[str, int | None, str], None]) -> Ending:
        """Start all agents, and see them to their end.

        Args:
            work: What they are to do.
            tell: Is given what a host says: its name, the rank (None: no rank's), and the text. For as long as it
                takes nothing, nothing more is read from the hosts.
        """
        with _signals(self._frames), _heartbeat(self.links):
            self._start(work)
            threading.Thread(target=self._hand_on, args=(tell,), name="texts", daemon=True).start()
            while self._goes_on():
                with suppress(Empty):
                    self._take(self._frames.get(timeout=_TURN))
                self._keep_time()
        self.close()
        return Ending(self._status, self._failure, self._problem, self._summary)

    def close(self) -> None:
        """Cut all connections."""
        for link in self.links:
            link.close()

    def _start(self, work: Work) -> None:
        names, first = ",".join(link.name for link in self.links), master(self._greetings)
        for link, ranks in zip(self.links, work.ranks, strict=True):
            self._running.add(link.node)
            known = {"HPC_KIT_SSH_LAUNCH": work.key, "HPC_KIT_SSH_HOSTS": names, "HPC_KIT_RUN": str(work.run)}
            known |= {"HPC_KIT_SSH_NODE": str(link.node), "HPC_KIT_SSH_MASTER": first}
            link.send(
                "start",
                folder=str(work.folder),
                run=str(work.run),
                script=work.scripts[link.node],
                environ={**work.environ, **known},
                first=sum(work.ranks[: link.node]),
                ranks=ranks,
                grace=GRACE,
            )

    def _hand_on(self, tell: Callable[[str, int | None, str], None]) -> None:
        """Hand on what the hosts say, at the pace at which it is taken."""
        taken = True
        while True:
            text = self._texts.get()
            try:
                if taken:
                    tell(*text)
            except Exception as error:  # noqa: BLE001 - whatever it is: what nobody takes would stop the ranks for ever
                taken = False
                self._frames.put(Frame(_LAUNCHER, "untold", {"why": str(error)}))
            finally:
                self._texts.task_done()

    def _goes_on(self) -> bool:
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            return False
        return bool(self._running or self._texts.unfinished_tasks or not self._frames.empty())

    def _take(self, frame: Frame) -> None:
        values = frame.values
        match frame.kind:
            case "failed":
                self._fail(FirstFailure(values["rank"], values["host"], values["code"], values["time"]))
                self._end_at = self._end_at or time.monotonic() + _OWN_ENDS
            case "end":
                self._summary = self._summary or values["summary"]
                if values["code"]:
                    self._fail(None, values["code"], f"torchrun on {self.links[frame.node].name} failed")
                    self._end_at = time.monotonic()
                self._ended.add(frame.node)
            case "lost" if frame.node in self._ended:
                self._running.discard(frame.node)
            case "refused" | "lost":
                self._running.discard(frame.node)
                self._fail(None, _LOST, str(error_of(self.links[frame.node].name, frame)))
                self._end_at = time.monotonic()
            case "untold":
                self._fail(None, _LOST, f"what the ranks say cannot be kept: {values['why']}")
                self._end_at = time.monotonic()
            case "signal":
                self._stop(values["number"])

    def _fail(self, failure: FirstFailure | None, code: int = 0, problem: str | None = None) -> None:
        """Only the first failure counts."""
        self.ending.set()
        if not self._status:
            self._failure, self._problem = failure, problem
            self._status = failure.exit_code if failure else code

    def _stop(self, number: int) -> None:
        """Somebody wants it to end: once asks, twice kills."""
        if not self._running:  # only its last words are still taken
            self.ending.set()
            self._give_up_at = time.monotonic() + _OWN_ENDS
            return
        kind = "kill" if self._give_up_at else "end"
        self._fail(None, 128 + number, f"ended by {signal.Signals(number).name}")
        self._order(kind)

    def _order(self, kind: str) -> None:
        self._give_up_at = time.monotonic() + (GRACE if kind == "end" else 0) + agent.SILENCE
        for link in self.links:
            link.send(kind)

    def _keep_time(self) -> None:
        if self._end_at is not None and time.monotonic() >= self._end_at and self._give_up_at is None:
            self._order("end")


@contextmanager
def _heartbeat(links: Sequence[HostLink]) -> Iterator[None]:
    """Signs of life in a thread of their own: a terminal that takes nothing must not end a training."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(agent.ALIVE):
            for link in links:
                link.send("alive")

    threading.Thread(target=beat, name="signs of life", daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def _signals(frames: SimpleQueue[Frame]) -> Iterator[None]:
    """Ctrl-C and the like come as frames: nothing is cut off in its middle."""

    def put(number: int, _: object) -> None:
        frames.put(Frame(_LAUNCHER, "signal", {"number": number}))

    # What is ignored stays so: behind nohup, in the background of a script.
    asked = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, put) for number in asked}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
