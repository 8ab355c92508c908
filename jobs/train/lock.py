"""One writer for a checkpoint."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpc_kit.errors import SpecError
from restart import identity, is_later, starts
from unwritable import unwritable


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """A lock beside the checkpoint, which a kill ends, too. Where the file system has no locks, nothing is held.

    Raises:
        SpecError: another training has it, or no file can be made there.
    """
    place = path.with_name(f".{path.name}.lock")
    try:
        file, is_taken = opened(path, place)
    except OSError as error:
        raise unwritable(path, error.strerror or str(error)) from None
    try:
        if is_taken:
            with suppress(OSError):  # on a full disk nobody reads whose it is
                os.ftruncate(file, 0)
                mine = identity(os.environ), socket.gethostname(), starts(os.environ)
                os.pwrite(file, "\n".join(mine).encode(), 0)
        try:
            yield
        finally:
            if is_taken:
                place.unlink(missing_ok=True)
    finally:
        os.close(file)


def opened(path: Path, place: Path) -> tuple[int, bool]:
    """The lock's file, and whether it is locked.

    Raises:
        OSError: no file can be made there.
        SpecError: another training has it.
    """
    while True:
        file = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_taken = take(file, path, place)
            # Who had it may have taken its name away meanwhile: then the next one would lock another file.
            if not is_taken or os.path.samestat(os.fstat(file), place.stat()):
                return file, is_taken
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def take(file: int, path: Path, place: Path) -> bool:
    """Lock the file, if no other training has; False: the file system has no locks, or see below.

    Raises:
        SpecError: one has. That of an earlier start of this one, from a host that is gone, may stay with a file server
            for a while.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        theirs, host, before = (*os.read(file, 1 << 16).decode(errors="replace").split("\n"), "", "", "")[:3]
        if theirs and theirs == identity(os.environ) and is_later(starts(os.environ), before):
            return False
        found = f"--checkpoint {path}: {theirs or 'a training'} on {host or 'some host'}"
        remedy = f"another --checkpoint; or, where that training is gone: rm {place}"
        raise SpecError("another training writes this checkpoint", found=found, remedy=remedy) from None
    except OSError:
        return False
    return True
