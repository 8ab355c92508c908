"""What runs on each host of a launch: it starts the host's torchrun, sends home what its ranks say, and lets none stay.

It is carried to the host as text, through the connection, and needs nothing there but Python 3.6: the launching side
reads this file and never runs it; being carried whole, it is one file. Orders come as lines of JSON on stdin, frames go
as lines of JSON to stdout. While nobody takes them, the ranks' output waits in its pipes, and the ranks with it. Where
the connection is gone, or nothing has come for SILENCE seconds, everything that it has started is ended.
"""

import ctypes
import json
import os
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
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Deque, Dict, List, Optional

ALIVE = 5.0
"""Seconds between two signs of life, in both directions."""

SILENCE = 30.0
"""Seconds without one after which the other side is taken for lost."""

_LAST_WORDS = 5.0
"""Seconds that the launching side has to take the rest where all is to end."""

_ALONE = 1.0
"""Seconds that torchrun has once its workers have ended: in its exit barrier it hears no signal."""

_TURN = 0.1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)

Values = Dict[str, Any]


class Home:
    """The launching side: what it orders, and what it is sent."""

    def __init__(self) -> None:
        self.orders: Deque[Values] = deque()  # a signal's handler adds to it at any moment
        self.heard = time.monotonic()
        self._unsent, self._sent, self._gone = bytearray(), 0.0, False
        os.set_blocking(1, False)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self.heard = time.monotonic()
            order = json.loads(line)
            if order["kind"] != "alive":
                self.orders.append(order)
        self.orders.append({"kind": "end"})

    def send(self, kind: str, **values: object) -> None:
        """Send a frame, now or as soon as it is taken."""
        self._unsent += json.dumps({"kind": kind, **values}).encode() + b"\n"
        self._sent = time.monotonic()
        self.flush(0)

    def flush(self, patience: float) -> bool:
        """Send what is still unsent; whether nothing is any more."""
        try:
            if self._unsent:
                select.select([], [1], [], patience)
            while self._unsent:
                del self._unsent[: os.write(1, self._unsent[: 1 << 16])]
        except BlockingIOError:
            pass
        except OSError:
            self._gone = True  # the end of stdin tells it, too
        if self._gone:
            self._unsent.clear()
        return not self._unsent

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
        try:
            for rank in range(first, first + ranks):
                path = self.folder / f"rank-{rank}.log"
                os.mkfifo(path, 0o600)
                # Open for writing, too: a pipe whose last writer has gone would be at its end.
                self._ready.register(os.open(path, os.O_RDWR | os.O_NONBLOCK), selectors.EVENT_READ, rank)
        except OSError:
            self.close()
            raise

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
        """Leave nothing behind."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Tree:
    """The host's torchrun and everything below it, wherever it hid."""

    def __init__(self, script: str, environ: Dict[str, str]) -> None:
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
        self._code: Optional[int] = None
        if self.process.stdin is not None:
            # By stdin: what stands on a command line is read by everybody. In braces it is read whole before it runs.
            with suppress(BrokenPipeError), self.process.stdin as stdin:
                stdin.write(b"{\n" + script.encode() + b"\n} </dev/null\n")

    def code(self) -> Optional[int]:
        """The exit code of torchrun, as a shell tells it; None while it runs."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid == self.process.pid:
                    ended = os.WIFSIGNALED(status)
                    self._code = 128 + os.WTERMSIG(status) if ended else os.WEXITSTATUS(status)
        return self._code

    def ask(self) -> None:
        """Ask torchrun to end; it asks its workers."""
        if self.code() is None:
            os.kill(self.process.pid, signal.SIGTERM)

    def works(self) -> bool:
        """Whether a worker is left: torchrun starts each in a session of its own."""
        with suppress(ProcessLookupError):  # one that has just ended: the next look tells
            return any(os.getsid(pid) != os.getsid(0) for pid in _below(os.getpid()))
        return True

    def kill(self) -> None:
        """End all that is left, until nothing is."""
        for below in iter(lambda: _below(os.getpid()), []):
            for pid in below:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            self.code()


def _below(root: int) -> List[int]:
    """The living processes below this one."""
    children: Dict[int, List[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The command's name stands in brackets, and may hold anything.
            state, parent, *_ = file.read_text(errors="replace").rpartition(")")[2].split()
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(file.parent.name))
    found = [root]
    for pid in found:  # it grows meanwhile
        found += children.get(pid, [])
    return found[1:]


class Watch:
    """One run of this host's agent."""

    def __init__(self, home: Home, order: Values) -> None:
        self.home = home
        self.run = Path(order["run"])
        self.grace = float(order["grace"])
        self.streams = Streams(home, order["first"], order["ranks"])
        environ = {**os.environ, **order["environ"], "HPC_KIT_LOGS": str(self.streams.folder)}
        try:
            self.tree = Tree(order["script"], environ)
        except OSError:
            self.streams.close()
            raise
        if self.tree.process.stdout is not None:
            self.streams.add(self.tree.process.stdout.fileno())
        self._deadline: Optional[float] = None
        self._worked, self._told = 0.0, False

    def to_the_end(self) -> None:
        """Send home what happens until torchrun has ended; nothing that it has started is left."""
        code = self.tree.code()
        while code is None:
            if self.home.flush(_TURN):
                self.streams.pass_on(_TURN)
            self._obey()
            self._tell_failure()
            self.home.stay_in_touch()
            if self._deadline is None or self.tree.works():
                self._worked = time.monotonic()
            if self._deadline is not None and time.monotonic() > min(self._deadline, self._worked + _ALONE):
                self.tree.kill()
            code = self.tree.code()
        self.tree.kill()
        self._send_rest()
        self._tell_failure()
        self.home.send("end", code=code, summary=_summary(self.run))
        self._send_rest()
        self.streams.close()

    def _send_rest(self) -> None:
        """Send what there still is; it may take as long as whoever reads it likes, until all is to end."""
        began = time.monotonic()
        while not (self.home.flush(_TURN) and not self.streams.pass_on(0)):
            self._obey()
            if self._deadline is not None and time.monotonic() > max(began, self._deadline) + _LAST_WORDS:
                break

    def _obey(self) -> None:
        while self.home.orders:
            order = self.home.orders.popleft()
            if order["kind"] == "kill":
                self._deadline = 0.0
            elif order["kind"] == "end":
                self._end()
        if time.monotonic() - self.home.heard > SILENCE:
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


def _summary(run: Path) -> Optional[str]:
    with suppress(OSError):
        return (run / "summary.json").read_text()
    return None


def main() -> None:
    """Say hello, wait for the order to start, obey it."""
    home = Home()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: home.orders.append({"kind": "end"}))
    # CLIENT_ADDRESS PORT SERVER_ADDRESS PORT: the address by which this host was reached.
    reached = (os.environ.get("SSH_CONNECTION", "").split() or [""] * 4)[2]
    host, boot, cores = socket.gethostname(), Path("/proc/sys/kernel/random/boot_id"), len(os.sched_getaffinity(0))
    machine = host + (boot.read_text() if boot.exists() else "")
    # NVIDIA's devices, or AMD's.
    gpus = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()
    home.send("hello", host=host, address=reached, machine=machine, cores=cores, gpus=gpus)
    while not home.orders:
        home.stay_in_touch()
        time.sleep(_TURN)
    order = home.orders.popleft()
    if order["kind"] != "start":
        return
    try:
        os.chdir(order["folder"])
        Path(order["run"]).mkdir(mode=0o700, parents=True, exist_ok=True)
        watch = Watch(home, order)
    except OSError as error:  # there is no such folder, its disk is full, or no process can be started
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        home.send("refused", why=why, file=bool(error.filename))
        return
    watch.to_the_end()


if __name__ == "__main__":
    main()
    # Not by the interpreter's own end, which would wait for the thread that listens.
    os._exit(0)
