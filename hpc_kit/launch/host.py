"""One host of a launch: its connection, what it is told, and what comes from it, in a thread of its own."""

from __future__ import annotations

import json
import shlex
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.errors import LaunchError
from hpc_kit.launch import agent
from hpc_kit.launch.connect import connect

if TYPE_CHECKING:
    from queue import SimpleQueue

    from fabric import Connection
    from paramiko import Channel

_BOOT = "import sys; s = sys.stdin.buffer; exec(s.read(int(s.readline())))"
"""All that stands on the host's command line; the program, and with it every value, comes through stdin."""


class Frame(NamedTuple):
    """Something that a host says."""

    node: int
    kind: str
    """hello, text, failed, end, alive from the agent there; refused, lost from this side."""

    values: dict[str, Any]


class HostLink:
    """A host while it is connected.

    Args:
        node: Its number among the hosts.
        name: Its name as the user wrote it.
        python: The interpreter there.
        frames: Where what it says is put.
        patience: Seconds for each step of the connection.
    """

    def __init__(self, node: int, name: str, python: str, frames: SimpleQueue[Frame], patience: float) -> None:
        self.node, self.name, self.python = node, name, python
        self._frames, self._patience = frames, patience
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._attend, name=f"host {name}", daemon=True)

    def start(self) -> None:
        """Connect, and start the agent there; whatever comes of it is put among the frames."""
        self._thread.start()

    def send(self, kind: str, **values: object) -> None:
        """Order something; of a host that is lost, its own frame tells."""
        if self._channel is not None:
            with suppress(OSError):
                self._channel.sendall(json.dumps({"kind": kind, **values}).encode() + b"\n")

    def close(self) -> None:
        """Cut the connection; an agent that still runs ends all on its host."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def _attend(self) -> None:
        try:
            self._connection = connect(self.name, self._patience)
            if self._closed:  # meanwhile, for another host's sake
                self._connection.close()
                return
            self._channel = self._started(self._connection)
            why = self._listen(self._channel)
        except LaunchError as error:
            self._put("refused", error=error)
        except (OSError, EOFError) as error:
            self._put("lost", why=str(error) or type(error).__name__)
        else:
            self._put("lost", why=why)

    def _started(self, connection: Connection) -> Channel:
        channel = connection.create_session()
        channel.settimeout(agent.SILENCE)
        channel.exec_command(f"exec {shlex.quote(self.python)} -c {shlex.quote(_BOOT)}")
        program = Path(agent.__file__).read_bytes()
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
        if channel.exit_status_ready() and channel.recv_exit_status() in {126, 127}:
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
            # A profile of the host's shell may greet whoever comes.
            self._put("text", rank=None, text=line.decode("utf-8", "surrogateescape") + "\n")
        else:
            self._put(kind, **values)

    def _put(self, kind: str, **values: object) -> None:
        self._frames.put(Frame(self.node, kind, values))
