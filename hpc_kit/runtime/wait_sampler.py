"""Measures the share of its time for which a rank waits for other ranks, and collects the notes of the ranks of a node.

All ranks of a synchronous training need the same time for a step. So the slowest rank is the one that waits least.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

_PAUSES = (0.1, 0.3)
"""Shortest and longest seconds between two samples. Regular samples would hit each step in the same place."""

_WINDOW = 60.0
"""Seconds after which a sample has lost about two thirds of its weight."""

_LEAST_WATCHED = 40.0
"""Weighted seconds of samples before there is a share. Samples of 66 seconds weigh as much."""

_OLD_SECONDS = 60.0
_LONGEST_NOTE = 4096

_WAITING = ("/distributed/", "/autograd/", "/nn/parallel/")
"""Folders of torch with the functions in which the main thread waits for other ranks."""


class WaitSampler:
    """Estimates the share of the latest minute for which this rank waited for other ranks, from samples."""

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311 - not the program's own generator, which may be seeded
        self._watched = self._waited = 0.0
        self._pause = 0.0
        self._last: float | None = None

    def draw_pause(self) -> float:
        """Return the seconds until the next sample."""
        self._pause = self._random.uniform(*_PAUSES)
        return self._pause

    def interrupt(self) -> None:
        """Ignore the time until the next sample."""
        self._last = None

    def sample(self) -> None:
        """Take a sample of this moment."""
        now, last = time.monotonic(), self._last
        self._last = now
        waits = is_waiting() if last is not None else None
        if waits is None or last is None:
            return
        # A sample comes late if the main thread keeps Python's lock. During this time the rank does not wait.
        elapsed = now - last
        decay = math.exp(-elapsed / _WINDOW)
        self._watched = self._watched * decay + elapsed
        self._waited = self._waited * decay + (min(elapsed, self._pause) if waits else 0.0)

    @property
    def share(self) -> float | None:
        """Share of the time, from 0 to 1; None if there are too few samples."""
        return self._waited / self._watched if self._watched >= _LEAST_WATCHED else None


def is_waiting() -> bool | None:
    """Return whether this rank waits for other ranks at this moment; None if that cannot be determined.

    On a CPU, the main thread is blocked inside a function of torch that communicates. With CUDA, only NCCL knows,
    because the main thread runs ahead of the GPU.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or torch.cuda.is_initialized():
        return None
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - documented in spite of its name
    if not is_communicating(frame, torch.__path__[0]):
        return False
    # On a CPU, a backward pass computes and communicates in the same function. The main thread has the number of the
    # process. Its `native_id` would be that of the parent's thread in a forked process (Python 3.11).
    try:
        with open(f"/proc/self/task/{os.getpid()}/stat", "rb") as file:  # noqa: PTH123 - half the time of pathlib
            return file.read().rpartition(b")")[2].split()[0] == b"S"
    except (OSError, IndexError):
        return None


def is_communicating(frame: FrameType | None, torch_folder: str) -> bool:
    """Return whether the innermost functions of a stack belong to torch, and one of them communicates."""
    while frame is not None and frame.f_code.co_filename.startswith(torch_folder):
        if frame.f_code.co_filename[len(torch_folder) :].startswith(_WAITING):
            return True
        frame = frame.f_back
    return False


class NodeNotes:
    """The notes of the ranks of one node. They come to its first rank over a socket, which costs no file."""

    def __init__(self, run: Path, node_rank: int, *, is_first: bool) -> None:
        name = hashlib.sha256(os.fsencode(f"{run.absolute()} {node_rank}")).hexdigest()[:32]
        # An address that begins with a zero byte is in Linux' memory only, and ends with the process.
        self._address, self._is_first = f"\0hpc-kit-{name}", is_first
        self._socket: socket.socket | None = None
        self._received: dict[int, tuple[float, dict[str, Any]]] = {}

    def add(self, rank: int, note: dict[str, Any]) -> None:
        """Keep the note of this rank, or send it to the first rank of the node."""
        if self._is_first:
            self._received[rank] = (time.monotonic(), note)
            return
        with suppress(OSError), self._open() as sender:  # the first rank has not started, or has ended
            sender.sendto(json.dumps([rank, note]).encode(), self._address)

    def collect(self) -> dict[int, dict[str, Any]]:
        """Return the notes of the latest minute, by rank. Only the first rank calls this."""
        # The end of the messages is an OSError. Only Linux has SO_PASSCRED and addresses without a file.
        with suppress(OSError, AttributeError):
            if self._socket is None:
                receiver = self._open()
                receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                receiver.bind(self._address)
                self._socket = receiver
            while True:
                self._receive(self._socket)
        since = time.monotonic() - _OLD_SECONDS
        return {rank: note for rank, (moment, note) in sorted(self._received.items()) if moment >= since}

    def _receive(self, receiver: socket.socket) -> None:
        credentials = struct.Struct("3i")
        data, ancillary, *_ = receiver.recvmsg(_LONGEST_NOTE, socket.CMSG_SPACE(credentials.size))
        # Any user of the node can send to the address.
        if ancillary and credentials.unpack(ancillary[0][2])[1] == os.getuid():
            with suppress(ValueError, TypeError):
                rank, note = json.loads(data)
                self._received[int(rank)] = (time.monotonic(), dict(note))

    @staticmethod
    def _open() -> socket.socket:
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        opened.settimeout(0)
        return opened

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
