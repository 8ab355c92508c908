"""Attempts of one training, which Slurm requeues or torchrun restarts, and the lock of its checkpoint."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hpc_kit.errors import SpecError
from hpc_kit.run_files import RUN_VARIABLE

INFO_FILE = "about.json"
"""The last file that is written into a checkpoint; it describes the others."""


def is_restart(environ: Mapping[str, str]) -> bool:
    """Return whether Slurm has requeued this job, or torchrun has restarted its workers."""
    return any(environ.get(name, "0") != "0" for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"))


def job_identity(environ: Mapping[str, str]) -> str:
    """Return a text that all attempts of a training share and no other training has; "" if nothing identifies it."""
    names = (environ.get(name, "") for name in ("SLURM_JOB_ID", RUN_VARIABLE, "TORCHELASTIC_RUN_ID"))
    if known := [name for name in names if name not in {"", "none"}]:  # none: torchrun without --rdzv-id
        return " ".join(known)
    # torchrun is the parent of all workers of its host.
    return f"pid {os.getppid()}" if environ.get("GROUP_WORLD_SIZE") == "1" else ""


def attempt_numbers(environ: Mapping[str, str]) -> str:
    """Return the numbers that `is_later_attempt` compares: requeues, the job step, restarts by torchrun."""
    names = ("SLURM_RESTART_COUNT", "SLURM_STEP_ID", "TORCHELASTIC_RESTART_COUNT")
    return " ".join(environ.get(name) or "0" for name in names)


def is_later_attempt(ours: str, theirs: str) -> bool:
    """Return whether `ours` is a later attempt of the same training. Two steps of one attempt are two trainings."""
    try:
        (job, step, worker), (old_job, old_step, old_worker) = (map(int, text.split()) for text in (ours, theirs))
    except ValueError:
        return False
    return job > old_job or (job == old_job and step == old_step and worker > old_worker)


def previous_path(path: Path) -> Path:
    """Return the path of the old checkpoint while the new one is renamed."""
    return path.with_name(f".{path.name}.old")


def find_own_checkpoint(path: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the checkpoint at `path` if an earlier attempt of this training wrote it."""
    place = path if path.exists() else previous_path(path)
    identity = job_identity(environ)
    if not identity or not is_restart(environ):
        return None
    try:
        info = json.loads((place / INFO_FILE).read_text())
        return place if info.get("run") == identity and int(info["step"]) >= 0 else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_error(path: Path, problem: str) -> SpecError:
    """Return the error of a checkpoint that cannot be written."""
    return SpecError(
        "the checkpoint cannot be written",
        found=f"--checkpoint {path}: {problem}",
        remedy="choose a new folder of your own, on a disk with free space",
    )


@contextmanager
def checkpoint_lock(path: Path) -> Iterator[None]:
    """Lock a checkpoint against other trainings. On a file system without locks, nothing is locked.

    The lock is a file beside the checkpoint. The kernel releases it when the process is killed.

    Raises:
        SpecError: Another training holds the lock, or no file can be created there.
    """
    lock_path = path.with_name(f".{path.name}.lock")
    try:
        file, is_locked = _open_lock(path, lock_path)
    except OSError as error:
        raise write_error(path, error.strerror or str(error)) from None
    try:
        if is_locked:
            with suppress(OSError):  # on a full disk, the lock works without the holder's name in it
                os.ftruncate(file, 0)
                holder = job_identity(os.environ), socket.gethostname(), attempt_numbers(os.environ)
                os.pwrite(file, "\n".join(holder).encode(), 0)
        try:
            yield
        finally:
            if is_locked:
                lock_path.unlink(missing_ok=True)
    finally:
        os.close(file)


def _open_lock(path: Path, lock_path: Path) -> tuple[int, bool]:
    """Return the descriptor of the lock file, and whether it is locked."""
    while True:
        file = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_locked = _take_lock(file, path, lock_path)
            # The holder before may have removed the file after we opened it. The next training would then lock
            # another file of the same name, so open it again.
            if not is_locked or os.path.samestat(os.fstat(file), lock_path.stat()):
                return file, is_locked
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _take_lock(file: int, path: Path, lock_path: Path) -> bool:
    """Lock the file; returns False if the file system has no locks, or an earlier attempt of this training holds it.

    A file server may keep the lock of an earlier attempt for a while after its host is gone.

    Raises:
        SpecError: Another training holds the lock.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder, host, attempt = (*os.read(file, 1 << 16).decode(errors="replace").split("\n"), "", "", "")[:3]
        if holder and holder == job_identity(os.environ) and is_later_attempt(attempt_numbers(os.environ), attempt):
            return False
        found = f"--checkpoint {path}: {holder or 'a training'} on {host or 'some host'}"
        remedy = f"choose another --checkpoint; or, if that training is gone: rm {lock_path}"
        raise SpecError("another training writes this checkpoint", found=found, remedy=remedy) from None
    except OSError:
        return False
    return True
