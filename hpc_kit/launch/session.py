"""A launch from the first connection to the last process: all hosts begin together, and end together."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import LaunchError
from hpc_kit.launch.agent import ALIVE, SILENCE
from hpc_kit.launch.host import Frame, HostLink
from hpc_kit.run_files import FirstFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hpc_kit.launch.hosts import Host

GRACE = 30.0
"""Seconds between the wish that a host's ranks end and their end; Slurm's KillWait is the same."""

_OWN_ENDS = 3.0
"""Seconds that the others have to fall by themselves: what a lost peer makes them say is part of their logs."""

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
        self.links = [HostLink(node, host.name, python, self._frames, patience) for node, host in enumerate(hosts)]
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
        for link in self.links:
            link.start()
        refused: dict[int, LaunchError] = {}
        while len(self._greetings) + len(refused) < len(self.links):
            frame = self._frames.get()
            if frame.kind == "hello":
                self._greetings[frame.node] = frame
            elif frame.kind in {"refused", "lost"}:
                refused[frame.node] = self._error(frame)
        if refused:
            self.close()
            raise _together([refused[node] for node in sorted(refused)], len(self.links))

    def run(self, work: Work, tell: Callable[[str, int | None, str], None]) -> Ending:
        """Start all agents, and see them to their end.

        Args:
            work: What they are to do.
            tell: Is given what a host says: its name, the rank (None: no rank's), and the text.
        """
        with _signals(self._frames):
            self._start(work)
            while self._running:
                try:
                    frame = self._frames.get(timeout=ALIVE / 5)
                except Empty:
                    pass
                else:
                    self._take(frame, tell)
                self._keep_time()
        self.close()
        return Ending(self._status, self._failure, self._problem, self._summary)

    def close(self) -> None:
        """Cut all connections."""
        for link in self.links:
            link.close()

    def _start(self, work: Work) -> None:
        self._beat = time.monotonic()
        names, master = ",".join(link.name for link in self.links), _master(self._greetings)
        for link, ranks in zip(self.links, work.ranks, strict=True):
            self._running.add(link.node)
            known = {"HPC_KIT_SSH_LAUNCH": work.key, "HPC_KIT_SSH_HOSTS": names, "HPC_KIT_RUN": str(work.run)}
            known |= {"HPC_KIT_SSH_NODE": str(link.node), "HPC_KIT_SSH_MASTER": master}
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

    def _take(self, frame: Frame, tell: Callable[[str, int | None, str], None]) -> None:
        values = frame.values
        match frame.kind:
            case "text":
                tell(self.links[frame.node].name, values["rank"], values["text"])
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
                self._fail(None, _LOST, str(self._error(frame)))
                self._end_at = time.monotonic()
            case "signal":
                self._stop(values["number"])

    def _fail(self, failure: FirstFailure | None, code: int = 0, problem: str | None = None) -> None:
        """Only the first failure counts."""
        if not self._status:
            self._failure, self._problem = failure, problem
            self._status = failure.exit_code if failure else code

    def _stop(self, number: int) -> None:
        """Somebody wants it to end: once asks, twice kills."""
        kind = "kill" if self._give_up_at else "end"
        self._fail(None, 128 + number, f"ended by {signal.Signals(number).name}")
        self._order(kind)

    def _order(self, kind: str) -> None:
        self._give_up_at = time.monotonic() + GRACE + SILENCE
        for link in self.links:
            link.send(kind)

    def _keep_time(self) -> None:
        now = time.monotonic()
        if self._end_at is not None and now >= self._end_at and self._give_up_at is None:
            self._order("end")
        if self._give_up_at is not None and now >= self._give_up_at:
            self._running.clear()
        if now - self._beat >= ALIVE:
            self._beat = now
            for link in self.links:
                link.send("alive")

    def _error(self, frame: Frame) -> LaunchError:
        name, given = self.links[frame.node].name, frame.values.get("error")
        if isinstance(given, LaunchError):
            return given
        if frame.kind == "refused":
            return LaunchError(
                f"the project cannot be used on {name}",
                found=frame.values["why"],
                remedy="the project's folder at the same path on all hosts: a shared file system, or rsync -a",
            )
        return LaunchError(
            f"{name} is lost",
            found=frame.values["why"],
            remedy=f"see that it runs, and that `ssh {name} true` is silent",
        )


def _master(greetings: Mapping[int, Frame]) -> str:
    """Where all hosts find the first one: at the address by which it was reached, or, from elsewhere, by its name."""
    addresses = {node: str(frame.values["address"]) for node, frame in greetings.items()}
    own = {node for node, address in addresses.items() if address == "::1" or address.startswith("127.")}
    here = addresses[0] and (0 not in own or len(own) == len(addresses))
    return addresses[0] if here else str(greetings[0].values["host"])


def _together(errors: list[LaunchError], hosts: int) -> LaunchError:
    if len(errors) == 1:
        return errors[0]
    return LaunchError(
        f"{len(errors)} of {hosts} hosts cannot be used",
        found="\n".join(f"{error.what}: {error.found}" for error in errors),
        remedy="\n".join(dict.fromkeys(error.remedy or "" for error in errors)),
    )


@contextmanager
def _signals(frames: SimpleQueue[Frame]) -> Iterator[None]:
    """Ctrl-C and the like come as frames: nothing is cut off in its middle."""

    def put(number: int, _: object) -> None:
        frames.put(Frame(_LAUNCHER, "signal", {"number": number}))

    before = {number: signal.signal(number, put) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
