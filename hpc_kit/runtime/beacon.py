"""How rank 0 tells the others where its store is, and they make sure that it is theirs.

Rank 0 listens on a second port and says to everybody who calls: the token of this meeting, and the store's port. The
caller only reads: whatever else may listen there is not disturbed, and a program that says nothing costs a moment.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
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
    thread = threading.Thread(target=_answer, args=(listener, greeting), daemon=True, name="hpc_kit-beacon")
    thread.start()
    try:
        yield
    finally:
        # A thread in accept() does not notice that its socket is closed: it is called a last time.
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def ask(address: str, port: int, token: str, patience: float) -> int | str:
    """The port of the store behind this beacon, or why it is none of ours."""
    try:
        with socket.create_connection((address, port), timeout=min(_CONNECT, patience)) as connection:
            words = connection.makefile("rb").readline(_LONGEST).decode(errors="replace").split()
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or str(error)
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
