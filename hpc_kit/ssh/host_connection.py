"""One host of a launch: its connection, what it is told, and what comes from it, in a thread of its own."""

from __future__ import annotations

import json
import shlex
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.errors import LaunchError
from hpc_kit.ssh import agent
from hpc_kit.ssh.ssh_command import connect, disconnect

if TYPE_CHECKING:
    from queue import Queue, SimpleQueue

    from fabric import Connection
    from paramiko import Channel

_BOOT = (
    "import sys; "
    "sys.version_info < (3, 6) and sys.exit('Python %d.%d is older than 3.6' % sys.version_info[:2]); "
    "s = sys.stdin.buffer; exec(s.read(int(s.readline())))"
)
"""All that stands on the host's command line; the program, and with it every value, comes through stdin."""

_STEPS = 6
"""More than a connection has: each is timed by itself, but for an ssh-agent or a name server that says nothing."""


class Frame(NamedTuple):
    """Something that a host says."""

    node: int
    kind: str
    """hello, failed, end, alive from the agent there; refused, lost from this side."""

    values: dict[str, Any]


class Text(NamedTuple):
    """Something that a rank says, or its agent (None)."""

    host: str
    rank: int | None
    text: str


class HostLink:
    """A host while it is connected.

    Args:
        node: Its number among the hosts.
        name: Its name as the user wrote it.
        python: The interpreter there.
        frames: Where what it says is put.
        texts: Where what its ranks say is put; nothing is read from it while this is full.
        patience: Seconds for each step of the connection.
    """

    def __init__(
        self,
        node: int,
        name: str,
        python: str,
        frames: SimpleQueue[Frame],
        texts: Queue[Text],
        patience: float,
    ) -> None:
        self.node, self.name, self.python = node, name, python
        self.step, self.due = "connecting", float("inf")
        """What is tried until it greets, and when that has taken too long."""
        self._frames, self._texts, self._patience = frames, texts, patience
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._sending = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._attend, name=f"host {name}", daemon=True)

    def start(self) -> None:
        """Connect, and start the agent there; whatever comes of it is put among the frames."""
        self.due = time.monotonic() + _STEPS * self._patience
        self._thread.start()

    def send(self, kind: str, **values: object) -> None:
        """Order something; of a host that is lost, its own frame tells."""
        if self._channel is not None:
            with self._sending, suppress(Exception):
                self._channel.sendall(json.dumps({"kind": kind, **values}).encode() + b"\n")

    def close(self) -> None:
        """Cut the connection; an agent that still runs ends all on its host."""
        self._closed = True
        if self._connection is not None:
            disconnect(self._connection)

    def _attend(self) -> None:
        try:
            why = self._attended()
        except LaunchError as error:
            self._put("refused", error=error)
        except Exception as error:  # noqa: BLE001 - whatever it is: a host of which nothing is heard would be waited for
            self._put("lost", why=str(error) or type(error).__name__)
        else:
            self._put("lost", why=why)

    def _attended(self) -> str:
        """Connect, and listen to the end; why it ended."""
        self._connection = connect(self.name, self._patience)
        if self._closed:  # meanwhile, for another host's sake
            disconnect(self._connection)
            return "the connection was closed"
        self.step, self.due = "starting Python", time.monotonic() + self._patience + agent.SILENCE
        self._channel = self._started(self._connection)
        return self._listen(self._channel)

    def _started(self, connection: Connection) -> Channel:
        channel = connection.create_session()
        channel.settimeout(agent.SILENCE)
        channel.exec_command(f"exec {shlex.quote(self.python)} -c {shlex.quote(_BOOT)}")
        program = Path(agent.__file__).read_bytes()
        with suppress(OSError):  # ended already, where there is no such Python: what it says is heard below
            channel.sendall(f"{len(program)}\n".encode() + program)
        return channel

    def _listen(self, channel: Channel) -> str:
        """Put what comes among the frames until nothing does any more; why."""
        heard = b""
        try:
            while data := channel.recv(1 << 16):
                *lines, heard = (heard + data).split(b"\n")
                for line in lines:
                    self._hear(line)
        except TimeoutError:
            return f"nothing came for {agent.SILENCE:g} s"
        said = b""
        with suppress(TimeoutError):
            while data := channel.recv_stderr(1 << 16):
                said += data
        last = said.decode(errors="replace").strip().splitlines()[-1:] or ["the connection was closed"]
        channel.status_event.wait(agent.SILENCE)  # it may come a moment after all that is said
        if channel.exit_status in {126, 127}:
            raise LaunchError(
                f"there is no {self.python} on {self.name}",
                found=last[0],
                remedy="the same Python at the same path on all hosts; or --set cluster.python=/path/to/python",
            )
        return last[0]

    def _hear(self, line: bytes) -> None:
        try:
            values = json.loads(line)
            kind = values.pop("kind")
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # a profile of the host's shell greets whoever comes
        if kind == "text":
            self._texts.put(Text(self.name, values["rank"], values["text"]))
        else:
            self._put(kind, **values)

    def _put(self, kind: str, **values: object) -> None:
        self._frames.put(Frame(self.node, kind, values))
