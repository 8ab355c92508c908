"""How rank 0 tells the others where its store is, and they make sure that it is theirs.

Rank 0 listens on a second port and says to everybody who calls: the token of this meeting, and the store's port. The
caller only reads: whatever else may listen there is not disturbed, and a program that says nothing costs a moment.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from _thread import start_new_thread
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from hpc_kit.runtime import addresses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CONNECT = 2.0
"""Seconds for one call; a firewall that drops packets answers never."""
_LONGEST = 200


def light(candidates: Sequence[int]) -> socket.socket | None:
    """Listen on the first candidate that is free; None where all are taken."""
    for port in candidates:
        listener = addresses.listen(port, everywhere=True)
        if listener is not None:
            return listener
    return None


@contextmanager
def shining(listener: socket.socket, token: str, port: int) -> Iterator[None]:
    """Answer all callers inside."""
    greeting = f"{token} {port}\n".encode()
    # Not threading.Thread: its start waits until the thread runs, which takes long on a busy node.
    start_new_thread(_answer, (listener, greeting))
    try:
        yield
    finally:
        # A thread in accept() does not notice that its socket is closed: it is called a last time.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def ask(address: str, ports: Sequence[int], token: str, patience: float) -> int | dict[int, str]:
    """The port of the store behind one of these beacons, or why each of them is none of ours.

    All are called at the same time: where a firewall drops what is sent, that costs one patience and not one a port.
    """
    deadline = time.monotonic() + min(_CONNECT, patience)
    answers: dict[int, str] = {}
    with ExitStack() as calls, selectors.DefaultSelector() as ready:
        for port in ports:
            try:
                call = calls.enter_context(_call(address, port))
            except OSError as error:
                answers[port] = error.strerror or str(error)
            else:
                ready.register(call, selectors.EVENT_WRITE, port)
        heard: dict[int, bytes] = dict.fromkeys(ports, b"")
        while ready.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in ready.select(left):
                port = int(key.data)
                found = _heard(ready, key, heard, token)
                if isinstance(found, int):
                    return found
                answers |= {port: found} if found else {}
    return answers | dict.fromkeys((port for port in ports if port not in answers), "no answer")


def _call(address: str, port: int) -> socket.socket:
    call = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    call.setblocking(False)  # noqa: FBT003 (its only way)
    if (code := call.connect_ex((address, port))) not in {0, errno.EINPROGRESS}:
        call.close()
        raise OSError(code, os.strerror(code))
    return call


def _heard(
    ready: selectors.BaseSelector, key: selectors.SelectorKey, heard: dict[int, bytes], token: str
) -> int | str | None:
    """What one call has come to: a port, a problem, or None while it goes on."""
    call, port = key.fileobj, int(key.data)
    if not isinstance(call, socket.socket):
        raise TypeError(f"no socket: {call!r}")
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


def _answer(listener: socket.socket, greeting: bytes) -> None:
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return
        with caller:
            try:
                caller.sendall(greeting)
            except OSError:
                continue
