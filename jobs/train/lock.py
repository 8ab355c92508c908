"""One writer for a checkpoint."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from about import unwritable
from hpc_kit.errors import SpecError
from restart import identity


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """A lock beside the checkpoint, which a kill ends, too. Where the file system has no locks, nothing is held.

    Raises:
        SpecError: another training has it, or no file can be made there.
    """
    place, mine = path.with_name(f".{path.name}.lock"), identity(os.environ)
    try:
        file = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise unwritable(path, error.strerror or str(error)) from None
    try:
        take(file, path, place, mine)
        with suppress(OSError):  # on a full disk nobody reads whose it is
            os.ftruncate(file, 0)
            os.pwrite(file, f"{mine}\n{socket.gethostname()}".encode(), 0)
        try:
            yield
        finally:
            place.unlink(missing_ok=True)
    finally:
        os.close(file)


def take(file: int, path: Path, place: Path, mine: str) -> None:
    """Lock the file, if no other training has.

    Raises:
        SpecError: one has. A lock of one's own, from a host that is gone, may stay with a file server for a while.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        theirs, _, host = os.read(file, 1 << 16).decode(errors="replace").partition("\n")
        if mine and theirs == mine:
            return
        found = f"--checkpoint {path}: {theirs or 'a training'} on {host or 'some host'}"
        remedy = f"another --checkpoint; or, where that training is gone: rm {place}"
        raise SpecError("another training writes this checkpoint", found=found, remedy=remedy) from None
    except OSError:
        pass  # no locks here
