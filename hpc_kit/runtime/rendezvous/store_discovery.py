"""Rank 0 announces the port of its store, and other ranks verify that it belongs to their launch.

Rank 0 listens on a second port and sends every caller the port of the store, with a proof that rank 0 has the token of
this meeting. The token itself is not sent: a process that repeats the proof elsewhere names the same port. Callers only
read, so a foreign program on that port is not disturbed, and one that sends nothing costs a moment. Connections stay
open until all ranks have met, and carry rank 0's answer as their last line. So the callers wait for a notification and
do not poll the store.
"""

from __future__ import annotations

import errno
import hmac
import os
import resource
import selectors
import socket
import time
from _thread import start_new_thread
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2s
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_CONNECT = 2.0
"""Seconds for one connection. A firewall that drops packets never answers."""
_LONGEST = 200
_BREATH = 0.01
_OTHER_FILES = 200
"""Number of files that rank 0 may have open in addition to one store connection per rank."""


class StoreAnswer(NamedTuple):
    """Rank 0's answer and the open connection."""

    port: int
    """Port of the store."""
    notification: socket.socket
    """Ends when all ranks have met, or earlier if rank 0 may not keep so many files open."""


@contextmanager
def announce(listener: socket.socket, token: str, port: int, ranks: int) -> Iterator[Callable[[str], None]]:
    """Answer all callers inside the `with` block.

    Yields a function that sends a line to all callers and closes their connections. At the end they are closed in any
    case.
    """
    raise_file_limit(2 * ranks + _OTHER_FILES)  # two connections for each rank
    greeting = f"{_proof(token, port)} {port}\n".encode()
    last: list[bytes] = []

    def notify(line: str) -> None:
        last.append(f"{line}\n".encode())
        # A thread in accept() does not notice that its socket is closed, so shutdown() wakes it.
        listener.shutdown(socket.SHUT_RDWR)

    # threading.Thread.start() waits until the thread runs, which takes long on a busy node.
    start_new_thread(_answer_queries, (listener, greeting, _pending_connections(ranks), last))
    try:
        yield notify
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def query(address: str, ports: Sequence[int], token: str, timeout: float) -> StoreAnswer | dict[int, str]:
    """Ask several ports of a host for the store, and return the answer, or the reason for each port that is not ours.

    All ports are asked at the same time. Where a firewall drops packets, the wait is one time-out instead of one per
    port.
    """
    deadline = time.monotonic() + min(_CONNECT, timeout)
    answers: dict[int, str] = {}
    with ExitStack() as calls, selectors.DefaultSelector() as ready:
        for port in ports:
            try:
                call = calls.enter_context(_start_connecting(address, port))
            except OSError as error:
                answers[port] = error.strerror or str(error)
            else:
                ready.register(call, selectors.EVENT_WRITE, (port, call))
        received: dict[int, bytes] = dict.fromkeys(ports, b"")
        while ready.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in ready.select(left):
                port, call = key.data
                found = _read_answer(ready, key, received, token)
                if isinstance(found, int):
                    return StoreAnswer(found, call.dup())
                answers |= {port: found} if found else {}
    return answers | dict.fromkeys((port for port in ports if port not in answers), "no answer")


def _proof(token: str, port: int) -> str:
    """Return a text that only a process with the token can make."""
    return f"hpc_kit/{blake2s(str(port).encode(), key=blake2s(token.encode()).digest(), digest_size=16).hexdigest()}"


def _start_connecting(address: str, port: int) -> socket.socket:
    call = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    call.setblocking(False)  # noqa: FBT003 (its only way)
    if (code := call.connect_ex((address, port))) not in {0, errno.EINPROGRESS}:
        call.close()
        raise OSError(code, os.strerror(code))
    return call


def _read_answer(
    ready: selectors.BaseSelector, key: selectors.SelectorKey, received: dict[int, bytes], token: str
) -> int | str | None:
    """Read one connection. Return the store's port, a problem, or None while the answer is incomplete."""
    port, call = key.data
    if key.events == selectors.EVENT_WRITE:
        if code := call.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            ready.unregister(call)
            return os.strerror(code)
        ready.modify(call, selectors.EVENT_READ, key.data)
        return None
    try:
        data = call.recv(_LONGEST)
    except OSError as error:
        ready.unregister(call)
        return error.strerror or str(error)
    received[port] += data
    if data and b"\n" not in received[port] and len(received[port]) < _LONGEST:
        return None
    ready.unregister(call)
    words = received[port].decode(errors="replace").split()
    if len(words) == 2 and words[1].isdigit() and hmac.compare_digest(words[0], _proof(token, int(words[1]))):
        return int(words[1])
    return "another launch" if words and words[0].startswith("hpc_kit/") else "another program"


def raise_file_limit(wanted: int) -> None:
    """Raise the soft limit of open files, usually 1024, to this number or to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _pending_connections(ranks: int) -> int:
    """Return the number of connections that may stay open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return 2 * ranks
    return min(2 * ranks, max(0, files - ranks - _OTHER_FILES))


def _answer_queries(listener: socket.socket, greeting: bytes, most: int, last: list[bytes]) -> None:
    calls: deque[socket.socket] = deque()
    while True:
        try:
            caller, _ = listener.accept()
        except OSError as error:
            if error.errno in {errno.EBADF, errno.EINVAL}:  # it was closed: the meeting is over
                break
            # accept(2) also reports network errors of a connection. If files run short, the oldest connection is
            # closed.
            if calls:
                calls.popleft().close()
            time.sleep(_BREATH)
            continue
        with suppress(OSError):
            caller.sendall(greeting)
        calls.append(caller)
        if len(calls) > most:
            calls.popleft().close()
    for caller in calls:
        with suppress(OSError), caller:
            caller.sendall(b"".join(last))
