"""What runs on each host of a launch: it starts the host's torchrun, sends home what its ranks say, and lets none stay.

It is carried to the host as text, through the connection, and needs nothing there but Python: the launching side reads
this file and never runs it; being carried whole, it is one file. Orders come as lines of JSON on stdin, frames go as
lines of JSON to stdout. Where the connection is gone, or nothing has come for SILENCE seconds, everything that it has
started is ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ALIVE = 5.0
"""Seconds between two signs of life, in both directions."""

SILENCE = 30.0
"""Seconds without one after which the other side is taken for lost."""

_TURN = 0.1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)


class Home:
    """The launching side: what it orders, and what it is sent."""

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._sent = 0.0
        os.set_blocking(1, False)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self.orders.put(json.loads(line))
        self.orders.put({"kind": "end"})

    def send(self, kind: str, **values: object) -> None:
        """Send a frame; where nobody takes it, all is to end."""
        data = memoryview(json.dumps({"kind": kind, **values}).encode() + b"\n")
        try:
            while data and select.select([], [1], [], SILENCE)[1]:
                data = data[os.write(1, data) :]
        except OSError:
            data = memoryview(b"")  # the end of stdin tells it, too
        if data:
            self.orders.put({"kind": "kill"})
        self._sent = time.monotonic()

    def stay_in_touch(self) -> None:
        """Send a sign of life where nothing else has gone for a while."""
        if time.monotonic() - self._sent > ALIVE:
            self.send("alive")


class Streams:
    """The output of the ranks and of their agent. A rank's log is a pipe here: the launching side writes the file."""

    def __init__(self, home: Home, first: int, ranks: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hpc_kit-"))
        self._home = home
        self._ready = selectors.DefaultSelector()
        for rank in range(first, first + ranks):
            path = self.folder / f"rank-{rank}.log"
            os.mkfifo(path, 0o600)
            # Open for writing, too: a pipe whose last writer has gone would be at its end.
            self._ready.register(os.open(path, os.O_RDWR | os.O_NONBLOCK), selectors.EVENT_READ, rank)

    def add(self, descriptor: int) -> None:
        """Read the agent's own output, too."""
        os.set_blocking(descriptor, False)
        self._ready.register(descriptor, selectors.EVENT_READ, None)

    def pass_on(self, patience: float) -> bool:
        """Send what there is; whether there was any."""
        found = False
        for key, _ in self._ready.select(patience):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if data:
                self._home.send("text", rank=key.data, text=data.decode("utf-8", "surrogateescape"))
                found = True
            else:
                self._ready.unregister(key.fileobj)
        return found

    def close(self) -> None:
        """Send the rest, and leave nothing behind."""
        while self.pass_on(0):
            pass
        shutil.rmtree(self.folder, ignore_errors=True)


class Tree:
    """The host's torchrun and everything below it, wherever it hid."""

    def __init__(self, script: str, environ: dict[str, str]) -> None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # nothing below gets away by losing its parent
        self.process = subprocess.Popen(
            ["bash", "-s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            # Should this process be killed, torchrun is told to end its workers.
            preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),  # noqa: PLW1509 - one thread more
        )
        self._code: int | None = None
        if self.process.stdin is not None:
            # Through stdin: what stands on a command line is read by everybody on this host.
            with suppress(BrokenPipeError), self.process.stdin as stdin:
                stdin.write(script.encode())

    def code(self) -> int | None:
        """The exit code of torchrun, as a shell tells it; None while it runs."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid == self.process.pid:
                    code = os.waitstatus_to_exitcode(status)
                    self._code = code if code >= 0 else 128 - code
        return self._code

    def ask(self) -> None:
        """Ask torchrun to end; it asks its workers."""
        if self.code() is None:
            os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End all that is left, until nothing is."""
        while below := _below(os.getpid()):
            for pid in below:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            self.code()


def _below(root: int) -> list[int]:
    """The living processes below this one."""
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The command's name stands in brackets, and may hold anything.
            state, parent, *_ = file.read_text(errors="replace").rpartition(")")[2].split()
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(file.parent.name))
    found, waiting = [], [root]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


class Watch:
    """One run of this host's agent."""

    def __init__(self, home: Home, order: dict[str, Any]) -> None:
        self.home = home
        self.run = Path(order["run"])
        self.grace = float(order["grace"])
        self.streams = Streams(home, order["first"], order["ranks"])
        environ = {**os.environ, **order["environ"], "HPC_KIT_LOGS": str(self.streams.folder)}
        self.tree = Tree(order["script"], environ)
        if self.tree.process.stdout is not None:
            self.streams.add(self.tree.process.stdout.fileno())
        self._heard = time.monotonic()
        self._deadline: float | None = None
        self._told = False

    def to_the_end(self) -> int:
        """Send home what happens until torchrun has ended; nothing that it has started is left."""
        while (code := self.tree.code()) is None:
            self.streams.pass_on(_TURN)
            self._obey()
            self._tell_failure()
            self.home.stay_in_touch()
            if self._deadline is not None and time.monotonic() > self._deadline:
                self.tree.kill()
        self.tree.kill()
        self.streams.close()
        self._tell_failure()
        return code

    def _obey(self) -> None:
        with suppress(queue.Empty):
            while True:
                order = self.home.orders.get_nowait()
                self._heard = time.monotonic()
                if order["kind"] == "kill":
                    self._deadline = 0.0
                elif order["kind"] == "end":
                    self._end()
        if time.monotonic() - self._heard > SILENCE:
            self._end()

    def _end(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self.grace
            self.tree.ask()

    def _tell_failure(self) -> None:
        """Say once which rank failed first, as it has left it in the run's folder."""
        if not self._told:
            with suppress(OSError, ValueError):
                rank, host, code, moment = (self.run / "first-failure").read_text().split()
                self._told = True
                self.home.send("failed", rank=int(rank), host=host, code=int(code), time=float(moment))


def _prepared(order: dict[str, Any]) -> str | None:
    """Go to the project's folder and make the run's; why that cannot be, or None."""
    try:
        os.chdir(order["folder"])
        Path(order["run"]).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _summary(run: Path) -> str | None:
    with suppress(OSError):
        return (run / "summary.json").read_text()
    return None


def main() -> None:
    """Say hello, wait for the order to start, obey it."""
    home = Home()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: home.orders.put({"kind": "end"}))
    # CLIENT_ADDRESS PORT SERVER_ADDRESS PORT: the address by which this host was reached.
    reached = (os.environ.get("SSH_CONNECTION", "").split() or [""] * 4)[2]
    home.send("hello", host=socket.gethostname(), address=reached)
    order: dict[str, Any] = {"kind": "alive"}
    while order["kind"] == "alive":
        home.stay_in_touch()
        with suppress(queue.Empty):
            order = home.orders.get(timeout=ALIVE)
    if order["kind"] != "start":
        return
    problem = _prepared(order)
    if problem is not None:
        home.send("refused", why=problem)
        return
    code = Watch(home, order).to_the_end()
    home.send("end", code=code, summary=_summary(Path(order["run"])))


if __name__ == "__main__":
    main()
    # Not by the interpreter's own end, which would wait for the thread that listens.
    os._exit(0)
