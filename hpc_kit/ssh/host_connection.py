"""Connects to the hosts of a launch: one thread per host starts the agent, sends orders and receives messages."""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.errors import LaunchError
from hpc_kit.runtime.rendezvous.network import is_loopback
from hpc_kit.ssh import agent
from hpc_kit.ssh.hosts import LaunchHost
from hpc_kit.ssh.ssh_command import CONNECTION_FAILED, TRY_COMMAND, SshConnection

if TYPE_CHECKING:
    from queue import Queue, SimpleQueue

_START_PROGRAM = (
    "import sys; "
    "sys.version_info < (3, 6) and sys.exit('Python %d.%d is older than 3.6' % sys.version_info[:2]); "
    "s = sys.stdin.buffer; exec(s.read(int(s.readline())))"
)
"""The command line on the host contains only this. The agent, and with it every value, comes through stdin."""


class HostMessage(NamedTuple):
    """A message about one host."""

    node: int
    kind: str
    """`hello`, `failed`, `end`, `alive` or `refused` from the agent; `refused` or `lost` from the connection."""

    values: dict[str, Any]


class RankOutput(NamedTuple):
    """A piece of output of one rank, or of torchrun (rank None)."""

    host: str
    rank: int | None
    text: str


class HostConnection:
    """The connection to one host, and the agent on it. While the queue of outputs is full, the host is not read.

    `timeout` is the time for each step of the connection, in seconds.
    """

    def __init__(
        self,
        node: int,
        host: LaunchHost,
        python: str,
        messages: SimpleQueue[HostMessage],
        outputs: Queue[RankOutput],
        *,
        socket: Path,
        timeout: float,
    ) -> None:
        self.node, self.host, self.name, self.python = node, host, host.name, python
        self._messages, self._outputs, self._timeout = messages, outputs, timeout
        self._ssh = SshConnection(host, socket)
        self._process: subprocess.Popen[bytes] | None = None
        self._send_lock = threading.Lock()
        self._said_hello, self._closed = False, False
        self._thread = threading.Thread(target=self._serve, name=f"host {host.name}", daemon=True)

    def start(self) -> None:
        """Connect and start the agent, in a thread. The queue of messages receives the result."""
        self._thread.start()

    def send(self, kind: str, **values: object) -> None:
        """Send an order. If the host is lost, the queue of messages receives that separately."""
        if self._process is not None and self._process.stdin is not None:
            with self._send_lock, suppress(OSError, ValueError):  # ValueError: the pipe was closed.
                _write_all(self._process.stdin.fileno(), json.dumps({"kind": kind, **values}).encode() + b"\n")

    def close(self) -> None:
        """Cut the connection. An agent that still runs then ends all processes on its host."""
        self._closed = True
        self._ssh.close()

    def _serve(self) -> None:
        try:
            reason = self._connect_and_listen()
        except LaunchError as error:
            self._put("refused", error=error)
        except Exception as error:  # noqa: BLE001 - the launch would wait forever for a host without any message
            self._put("lost", reason=str(error) or type(error).__name__)
        else:
            self._put("lost", reason=reason)

    def _connect_and_listen(self) -> str:
        """Run the agent to its end. Return why the connection ended."""
        self._ssh.open(self._timeout)
        if self._closed:  # Another host failed meanwhile.
            self._ssh.close()
            return "the connection was closed"
        process = self._process = self._ssh.start(f"exec {shlex.quote(self.python)} -c {shlex.quote(_START_PROGRAM)}")
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("ssh has no pipes")
        program = Path(agent.__file__).read_bytes()
        with self._send_lock, suppress(OSError):  # ssh has ended: its exit status and messages are read below.
            _write_all(process.stdin.fileno(), f"{len(program)}\n".encode() + program)
        try:
            if not self._listen(process.stdout.fileno()):
                return f"nothing was received for {agent.SILENCE:g} s"
            with suppress(subprocess.TimeoutExpired):
                process.wait(agent.SILENCE)
            return self._explain_end(process.returncode)
        finally:
            with self._send_lock, suppress(OSError):
                process.stdin.close()
            process.stdout.close()

    def _listen(self, descriptor: int) -> bool:
        """Put messages into the queues. Return False if the host stopped sending, True at the end of its output."""
        limit = self._timeout + agent.SILENCE
        deadline, line = time.monotonic() + limit, b""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            data = os.read(descriptor, 1 << 16)
            if not data:
                return True
            *complete, line = (line + data).split(b"\n")
            for message in complete:
                self._receive(message)
            if self._said_hello:  # Only then: a shell profile may print without end.
                deadline = time.monotonic() + agent.SILENCE
        if self._said_hello:
            return False
        raise LaunchError(
            f"{self.name} does not answer",
            found=f"ssh has connected, but the agent did not start within {limit:g} s",
            remedy=TRY_COMMAND.format(ssh=self.host.ssh_argument),
        )

    def _explain_end(self, status: int | None) -> str:
        lines = self._ssh.errors().splitlines()
        # If the connection failed, all lines are ssh's own. Otherwise, the last line counts: a traceback's exception.
        reason = "\n".join(lines if status == CONNECTION_FAILED else lines[-1:]) or "the connection was closed"
        if status in {126, 127}:
            raise LaunchError(
                f"there is no {self.python} on {self.name}",
                found=reason,
                remedy="use the same path of Python on all hosts, or --set cluster.python=/path/to/python",
            )
        return reason

    def _receive(self, line: bytes) -> None:
        try:
            values = json.loads(line)
            kind = values.pop("kind")
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # The shell profile of the host has printed this line.
        self._said_hello |= kind == "hello"
        if kind == "output":
            self._outputs.put(RankOutput(self.name, values["rank"], values["text"]))
        else:
            self._put(kind, **values)

    def _put(self, kind: str, **values: object) -> None:
        self._messages.put(HostMessage(self.node, kind, values))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def host_warnings(
    connections: Sequence[HostConnection], greetings: Mapping[int, HostMessage], ranks: Sequence[int], backend: str
) -> Iterator[str]:
    """Warn about machines with several names, and about machines with more ranks than cores.

    Raises:
        LaunchError: A machine with GPUs has several names. The ranks of each name would use the same GPUs.
    """
    machines: dict[str, list[int]] = {}
    for node, _ in enumerate(connections):
        machines.setdefault(str(greetings[node].values["machine"]), []).append(node)
    for nodes in machines.values():
        machine = greetings[nodes[0]].values
        names, count = [connections[node].name for node in nodes], sum(ranks[node] for node in nodes)
        if len(nodes) > 1 and machine["gpus"] and backend != "gloo":
            raise LaunchError(
                f"{' and '.join(names)} are the same host, and their ranks would use the same GPUs",
                found=machine["host"],
                remedy=f"name it once, with all its ranks: {LaunchHost(names[0], count).hosts_argument}; "
                "or use CPUs: --set launch.backend=gloo",
            )
        load = f"{count} ranks on {machine['cores']} cores"
        if len(nodes) > 1:
            yield f"{' and '.join(names)} are the same host ({machine['host']}): {load}"
        elif count > machine["cores"]:
            yield f"{names[0]}: {load} (for a port, write ssh://HOST:PORT)"


def explain_host_failure(host: LaunchHost, message: HostMessage) -> LaunchError:
    """Explain why a host cannot be used, or why it was lost."""
    name, ssh_argument = host.name, host.ssh_argument
    error = message.values.get("error")
    if isinstance(error, LaunchError):
        return error
    if message.kind == "refused" and not message.values["file"]:
        return LaunchError(
            f"{name} cannot start any process",
            found=message.values["reason"],
            remedy=f"ssh {ssh_argument} 'ulimit -u; df ${{TMPDIR:-/tmp}}'   (limit of processes; free disk space)",
        )
    if message.kind == "refused":
        return LaunchError(
            f"the project cannot be used on {name}",
            found=message.values["reason"],
            remedy="put the project's folder at the same path on all hosts: a shared file system, or rsync -a",
        )
    return LaunchError(
        f"{name} is lost",
        found=message.values["reason"],
        remedy=f"check that the host is running, and that `ssh {ssh_argument} true` works and prints nothing",
    )


def first_host_address(greetings: Mapping[int, HostMessage]) -> str:
    """Return the address of the first host for all hosts.

    This is the address that ssh used. A loopback address is valid only if ssh used loopback addresses for all hosts.
    Otherwise, the name of the host is used.
    """
    addresses = {node: str(message.values["address"]) for node, message in greetings.items()}
    loopback = {node for node, address in addresses.items() if is_loopback(address)}
    is_usable = addresses[0] and (0 not in loopback or len(loopback) == len(addresses))
    return addresses[0] if is_usable else str(greetings[0].values["host"])
