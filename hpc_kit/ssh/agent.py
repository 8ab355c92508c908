"""Program that runs on each host of a launch: starts the ranks of the host, sends their output, and ends all of them.

The launcher sends this file as text through the ssh connection. A host needs Python 3.6 only. The program is one file
because it is sent as a whole; the launcher itself uses only its constants. Orders arrive on stdin and messages leave on
stdout, each as one line of JSON. If the launcher does not read, the output of the ranks stays in their pipes, and the
ranks wait. If the connection closes, or nothing arrives for SILENCE seconds, the agent ends all its processes.
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
"""Seconds without any sign of life after which the launcher, or the host, counts as lost."""

_DRAIN_SECONDS = 5.0
"""After the end was requested, the launcher has this time to read the rest of the output."""

_EXIT_BARRIER_SECONDS = 1.0
"""torchrun has this time after its workers ended. It ignores signals while it waits in its exit barrier."""

_POLL_SECONDS = 0.1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)

Values = Dict[str, Any]


class Controller:
    """The launcher, seen from the host: receives its orders and sends it messages."""

    def __init__(self) -> None:
        self.orders: Deque[Values] = deque()  # A signal handler may append at any moment.
        self.last_received = time.monotonic()
        self._unsent, self._last_sent, self._disconnected = bytearray(), 0.0, False
        os.set_blocking(1, False)
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        for line in sys.stdin.buffer:
            self.last_received = time.monotonic()
            order = json.loads(line)
            if order["kind"] != "alive":
                self.orders.append(order)
        self.orders.append({"kind": "end"})

    def send(self, kind: str, **values: object) -> None:
        """Send a message, now or as soon as the launcher reads."""
        self._unsent += json.dumps({"kind": kind, **values}).encode() + b"\n"
        self._last_sent = time.monotonic()
        self.flush(0)

    def flush(self, timeout: float) -> bool:
        """Send unsent data. Return True if none is left."""
        try:
            if self._unsent:
                select.select([], [1], [], timeout)
            while self._unsent:
                del self._unsent[: os.write(1, self._unsent[: 1 << 16])]
        except BlockingIOError:
            pass
        except OSError:
            self._disconnected = True  # stdin ends, too, and requests the end.
        if self._disconnected:
            self._unsent.clear()
        return not self._unsent

    def send_sign_of_life(self) -> None:
        """Send a sign of life if nothing was sent for a while."""
        if time.monotonic() - self._last_sent > ALIVE:
            self.send("alive")


class RankPipes:
    """Pipes in place of the log files of the ranks. The launcher writes the files."""

    def __init__(self, controller: Controller, first: int, ranks: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hpc_kit-"))
        self._controller = controller
        self._selector = selectors.DefaultSelector()
        try:
            for rank in range(first, first + ranks):
                path = self.folder / f"rank-{rank}.log"
                os.mkfifo(path, 0o600)
                # Open for writing, too: a pipe without any writer would report its end.
                self._selector.register(os.open(path, os.O_RDWR | os.O_NONBLOCK), selectors.EVENT_READ, rank)
        except OSError:
            self.close()
            raise

    def add(self, descriptor: int) -> None:
        """Read the output of torchrun itself, too."""
        os.set_blocking(descriptor, False)
        self._selector.register(descriptor, selectors.EVENT_READ, None)

    def send_output(self, timeout: float) -> bool:
        """Send the output that is in the pipes. Return True if there was any."""
        has_output = False
        for key, _ in self._selector.select(timeout):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if data:
                self._controller.send("output", rank=key.data, text=data.decode("utf-8", "surrogateescape"))
                has_output = True
            else:
                self._selector.unregister(key.fileobj)
        return has_output

    def close(self) -> None:
        """Remove the pipes."""
        shutil.rmtree(self.folder, ignore_errors=True)


class ProcessTree:
    """torchrun and all processes below it."""

    def __init__(self, script: str, environ: Dict[str, str]) -> None:
        # As a subreaper, this process becomes the parent of processes whose own parent ended. None can escape.
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.process = subprocess.Popen(
            ["bash", "-s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            # If this process is killed, the kernel sends SIGTERM to torchrun, which ends its workers.
            preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),  # noqa: PLW1509 - one thread more
        )
        self._exit_code: Optional[int] = None
        if self.process.stdin is not None:
            # Through stdin, because all users of a machine can read command lines. bash reads a group in braces
            # completely before it runs the first line.
            with suppress(BrokenPipeError), self.process.stdin as stdin:
                stdin.write(b"{\n" + script.encode() + b"\n} </dev/null\n")

    def exit_code(self) -> Optional[int]:
        """Return the exit code of torchrun, 128 plus the number for a signal; None while it runs."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid == self.process.pid:
                    signaled = os.WIFSIGNALED(status)
                    self._exit_code = 128 + os.WTERMSIG(status) if signaled else os.WEXITSTATUS(status)
        return self._exit_code

    def terminate(self) -> None:
        """Ask torchrun to end. It asks its workers."""
        if self.exit_code() is None:
            os.kill(self.process.pid, signal.SIGTERM)

    def has_workers(self) -> bool:
        """Return True while a worker runs. torchrun starts each worker in its own session."""
        with suppress(ProcessLookupError):  # A process ended meanwhile: the next call finds the answer.
            return any(os.getsid(pid) != os.getsid(0) for pid in _descendants(os.getpid()))
        return True

    def kill(self) -> None:
        """Kill all processes, and repeat until none is left."""
        for descendants in iter(lambda: _descendants(os.getpid()), []):
            for pid in descendants:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            self.exit_code()


def _descendants(root: int) -> List[int]:
    """Return the living processes below a process."""
    children: Dict[int, List[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name of the command is in parentheses, and may itself contain parentheses and spaces.
            state, parent, *_ = file.read_text(errors="replace").rpartition(")")[2].split()
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(file.parent.name))
    tree = [root]
    for pid in tree:  # The list grows during the loop.
        tree += children.get(pid, [])
    return tree[1:]


class HostRun:
    """Runs the ranks of this host."""

    def __init__(self, controller: Controller, order: Values) -> None:
        self.controller = controller
        self.run_folder = Path(order["run"])
        self.grace = float(order["grace"])
        self.pipes = RankPipes(controller, order["first"], order["ranks"])
        environ = {**os.environ, **order["environ"], "HPC_KIT_LOGS": str(self.pipes.folder)}
        try:
            self.tree = ProcessTree(order["script"], environ)
        except OSError:
            self.pipes.close()
            raise
        if self.tree.process.stdout is not None:
            self.pipes.add(self.tree.process.stdout.fileno())
        self._deadline: Optional[float] = None
        self._last_worker_seen, self._failure_sent = 0.0, False

    def run_to_end(self) -> None:
        """Send output and events until torchrun has ended, then kill all processes that are left."""
        code = self.tree.exit_code()
        while code is None:
            if self.controller.flush(_POLL_SECONDS):
                self.pipes.send_output(_POLL_SECONDS)
            self._obey_orders()
            self._send_failure()
            self.controller.send_sign_of_life()
            if self._deadline is None or self.tree.has_workers():
                self._last_worker_seen = time.monotonic()
            barrier_deadline = self._last_worker_seen + _EXIT_BARRIER_SECONDS
            if self._deadline is not None and time.monotonic() > min(self._deadline, barrier_deadline):
                self.tree.kill()
            code = self.tree.exit_code()
        self.tree.kill()
        self._send_remaining_output()
        self._send_failure()
        self.controller.send("end", code=code, summary=_read_summary(self.run_folder))
        self._send_remaining_output()
        self.pipes.close()

    def _send_remaining_output(self) -> None:
        """Send the rest of the output. The launcher may read it slowly, unless the end was requested."""
        began = time.monotonic()
        while not (self.controller.flush(_POLL_SECONDS) and not self.pipes.send_output(0)):
            self._obey_orders()
            if self._deadline is not None and time.monotonic() > max(began, self._deadline) + _DRAIN_SECONDS:
                break

    def _obey_orders(self) -> None:
        while self.controller.orders:
            order = self.controller.orders.popleft()
            if order["kind"] == "kill":
                self._deadline = 0.0
            elif order["kind"] == "end":
                self._request_end()
        if time.monotonic() - self.controller.last_received > SILENCE:
            self._request_end()

    def _request_end(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self.grace
            self.tree.terminate()

    def _send_failure(self) -> None:
        """Send once which rank failed first, as the rank wrote it to the folder of the run."""
        if not self._failure_sent:
            with suppress(OSError, ValueError):
                text = (self.run_folder / "first-failure").read_text()
                rank, host, code, moment, *reason = text.split(None, 4)
                values = {"rank": int(rank), "host": host, "code": int(code), "time": float(moment)}
                self._failure_sent = True
                self.controller.send("failed", **values, reason=" ".join(reason).strip())


def _read_summary(run_folder: Path) -> Optional[str]:
    with suppress(OSError):
        return (run_folder / "summary.json").read_text()
    return None


def main() -> None:
    """Describe this host to the launcher, wait for the order to start, and run it."""
    controller = Controller()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: controller.orders.append({"kind": "end"}))
    # SSH_CONNECTION is CLIENT_ADDRESS PORT SERVER_ADDRESS PORT. The third word is the address that reached this host.
    address = (os.environ.get("SSH_CONNECTION", "").split() or [""] * 4)[2]
    host, boot, cores = socket.gethostname(), Path("/proc/sys/kernel/random/boot_id"), len(os.sched_getaffinity(0))
    machine = host + (boot.read_text() if boot.exists() else "")
    gpus = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()  # NVIDIA or AMD
    controller.send("hello", host=host, address=address, machine=machine, cores=cores, gpus=gpus)
    while not controller.orders:
        controller.send_sign_of_life()
        time.sleep(_POLL_SECONDS)
    order = controller.orders.popleft()
    if order["kind"] != "start":
        return
    try:
        os.chdir(order["folder"])
        Path(order["run"]).mkdir(mode=0o700, parents=True, exist_ok=True)
        host_run = HostRun(controller, order)
    except OSError as error:  # No such folder, a full disk, or too many processes.
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        controller.send("refused", reason=reason, file=bool(error.filename))
        return
    host_run.run_to_end()


if __name__ == "__main__":
    main()
    # At its normal end the interpreter takes the lock of stdin, which the receiving thread holds while it reads. The
    # interpreter would abort ("could not acquire lock for <_io.BufferedReader name='<stdin>'>").
    os._exit(0)
