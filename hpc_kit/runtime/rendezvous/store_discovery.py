"""How rank 0 tells the others where its store is, and they make sure that it is theirs.

Rank 0 listens on a second port and says to everybody who calls: the token of this meeting, and the store's port. The
caller only reads: whatever else may listen there is not disturbed, and a program that says nothing costs a moment.
The call stays open until all have met: its end is the bell for which the callers wait, without a question to the store,
and its last words are what rank 0 says then.
"""

from __future__ import annotations

import errno
import os
import resource
import selectors
import socket
import time
from _thread import start_new_thread
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_CONNECT = 2.0
"""Seconds for one call; a firewall that drops packets answers never."""
_LONGEST = 200
_BREATH = 0.01
_OTHER_FILES = 200
"""What rank 0 may have open beside a connection of each rank with its store."""


class StoreAnswer(NamedTuple):
    """What rank 0 has said, and the call."""

    port: int
    """Of its store."""
    bell: socket.socket
    """Ends when all have met, or earlier where rank 0 may not open as many files."""


def listen_for_queries(candidates: Sequence[int]) -> socket.socket | None:
    """Listen on the first candidate that is free; None where all are taken."""
    for port in candidates:
        listener = network.listen(port, everywhere=True)
        if listener is not None:
            return listener
    return None


@contextmanager
def announce(listener: socket.socket, token: str, port: int, ranks: int) -> Iterator[Callable[[str], None]]:
    """Answer all callers inside; what it gives rings the bell, with a line for all. At the end it rings in any case."""
    greeting = f"{token} {port}\n".encode()
    last: list[bytes] = []

    def ring(line: str) -> None:
        last.append(f"{line}\n".encode())
        # A thread in accept() does not notice that its socket is closed: it is called a last time.
        listener.shutdown(socket.SHUT_RDWR)

    # Not threading.Thread: its start waits until the thread runs, which takes long on a busy node.
    start_new_thread(_answer, (listener, greeting, _pending_connections(ranks), last))
    try:
        yield ring
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def query(address: str, ports: Sequence[int], token: str, patience: float) -> StoreAnswer | dict[int, str]:
    """What one of these beacons says of the store, or why each of them is none of ours.

    All are called at the same time: where a firewall drops what is sent, that costs one patience and not one a port.
    """
    deadline = time.monotonic() + min(_CONNECT, patience)
    answers: dict[int, str] = {}
    with ExitStack() as calls, selectors.DefaultSelector() as ready:
        for port in ports:
            try:
                call = calls.enter_context(_connect(address, port))
            except OSError as error:
                answers[port] = error.strerror or str(error)
            else:
                ready.register(call, selectors.EVENT_WRITE, port)
        heard: dict[int, bytes] = dict.fromkeys(ports, b"")
        while ready.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in ready.select(left):
                port = int(key.data)
                found = _read_answers(ready, key, heard, token)
                if isinstance(found, int):
                    return StoreAnswer(found, _query_bytes(key).dup())
                answers |= {port: found} if found else {}
    return answers | dict.fromkeys((port for port in ports if port not in answers), "no answer")


def _connect(address: str, port: int) -> socket.socket:
    call = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    call.setblocking(False)  # noqa: FBT003 (its only way)
    if (code := call.connect_ex((address, port))) not in {0, errno.EINPROGRESS}:
        call.close()
        raise OSError(code, os.strerror(code))
    return call


def _read_answers(
    ready: selectors.BaseSelector, key: selectors.SelectorKey, heard: dict[int, bytes], token: str
) -> int | str | None:
    """What one call has come to: a port, a problem, or None while it goes on."""
    call, port = _query_bytes(key), int(key.data)
    if key.events == selectors.EVENT_WRITE:
        if code := call.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            ready.unregister(call)
            return os.strerror(code)
        ready.modify(call, selectors.EVENT_READ, port)
        return None
    try:
        said = call.recv(_LONGEST)
    except OSError as error:
        ready.unregister(call)
        return error.strerror or str(error)
    heard[port] += said
    if said and b"\n" not in heard[port] and len(heard[port]) < _LONGEST:
        return None
    ready.unregister(call)
    words = heard[port].decode(errors="replace").split()
    if len(words) == 2 and words[0] == token and words[1].isdigit():
        return int(words[1])
    return "another launch" if words and words[0].startswith("hpc_kit/") else "another program"


def _query_bytes(key: selectors.SelectorKey) -> socket.socket:
    if not isinstance(key.fileobj, socket.socket):
        raise TypeError(f"no socket: {key.fileobj!r}")
    return key.fileobj


def allow_files(ranks: int) -> None:
    """Let this process open a call and a connection with the store of each rank: 1024 is the usual soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * ranks + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _pending_connections(ranks: int) -> int:
    """How many calls may stay open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return 2 * ranks
    return min(2 * ranks, max(0, files - ranks - _OTHER_FILES))


def _answer(listener: socket.socket, greeting: bytes, most: int, last: list[bytes]) -> None:
    calls: deque[socket.socket] = deque()
    while True:
        try:
            caller, _ = listener.accept()
        except OSError as error:
            if error.errno in {errno.EBADF, errno.EINVAL}:  # it was closed: the meeting is over
                break
            # accept(2) hands on what the network did to a call; where files are short, the oldest call gives way.
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
