"""Attempts of one training, which Slurm requeues or torchrun restarts, and the lock of its checkpoints."""

from __future__ import annotations

import fcntl
import os
import socket
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath

from hpc_kit.errors import SpecError
from hpc_kit.run_files import RUN_VARIABLE

ATTEMPT_VARIABLE = "HPC_KIT_ATTEMPT"
"""Environment variable, set by the script: the number of this attempt of the job, from 1."""

LOCK = ".lock"
"""File in a folder of checkpoints that the training which writes them has locked."""


def is_restart(environ: Mapping[str, str]) -> bool:
    """Return whether an earlier attempt of this job was requeued, or torchrun has restarted its workers."""
    counts = (environ.get(name, "0") for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"))
    return any(count not in {"", "0"} for count in counts) or environ.get(ATTEMPT_VARIABLE, "1") not in {"", "1"}


def job_identity(environ: Mapping[str, str]) -> str:
    """Return a text that all attempts of a training share and no other training has; "" if nothing identifies it."""
    if run := environ.get(RUN_VARIABLE):
        return run  # a job that is submitted again keeps its run folder, and gets another number
    names = (environ.get(name, "") for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"))
    if known := [name for name in names if name not in {"", "none"}]:  # none: torchrun without --rdzv-id
        return " ".join(known)
    # torchrun is the parent of all workers of its host.
    is_alone = environ.get("TORCHELASTIC_RUN_ID") and environ.get("GROUP_WORLD_SIZE") == "1"
    return f"pid {os.getppid()}" if is_alone else ""


def attempt_numbers(environ: Mapping[str, str]) -> str:
    """Return the numbers that `is_later_attempt` compares: attempts, requeues, the job step, restarts by torchrun."""
    names = (ATTEMPT_VARIABLE, "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "TORCHELASTIC_RESTART_COUNT")
    return " ".join(environ.get(name) or "0" for name in names)


def is_later_attempt(ours: str, theirs: str) -> bool:
    """Return whether `ours` is a later attempt of the same training. Two steps of one attempt are two trainings."""
    try:
        attempt, requeue, step, restart = (int(number) for number in ours.split())
        old_attempt, old_requeue, old_step, old_restart = (int(number) for number in theirs.split())
    except ValueError:
        return False
    if (attempt, requeue) != (old_attempt, old_requeue):
        return (attempt, requeue) > (old_attempt, old_requeue)
    return step == old_step and restart > old_restart


def write_error(path: Path, problem: str) -> SpecError:
    """Return the error of a checkpoint that cannot be written."""
    return SpecError(
        "the checkpoint cannot be written",
        found=f"{path}: {problem}",
        remedy="choose a folder of your own, on a disk with free space",
    )


class FolderLock:
    """Locks a folder of checkpoints against other trainings. On a file system without locks, nothing is locked.

    The kernel releases the lock when the process ends.

    Raises:
        SpecError: Another training has the lock, or no file can be created in the folder.
    """

    def __init__(self, folder: Path) -> None:
        try:
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise write_error(folder, error.strerror or str(error)) from None
        with suppress(OSError):  # it belongs to another user, or the file system has no modes
            # All who may write to the folder must be able to lock it, whatever the umask of the first one.
            os.fchmod(descriptor, folder.stat().st_mode & 0o666)
        self._close = weakref.finalize(self, os.close, descriptor)
        self._close.atexit = False  # a thread may still write then; the kernel closes the file after it
        try:
            if _take_lock(descriptor, folder):
                with suppress(OSError):  # on a full disk, the lock works without the holder's name in it
                    os.ftruncate(descriptor, 0)
                    holder = socket.gethostname(), attempt_numbers(os.environ), job_identity(os.environ)
                    os.pwrite(descriptor, "\n".join(holder).encode(), 0)
        except BaseException:
            self.release()
            raise
        # A forked worker of a DataLoader, which may outlive this process for seconds, would keep the lock.
        os.register_at_fork(after_in_child=partial(_release_in_child, weakref.ref(self)))

    def release(self) -> None:
        """Release the lock. The file stays: its removal would let two trainings lock two files of one name."""
        self._close()


def _describe_holder(identity: str) -> str:
    """Return the training with this `job_identity` in words."""
    if "/" in identity:
        return f"job {PurePath(identity).name} ({identity})"
    return f"job {identity}" if identity[:1].isdigit() else identity or "a training"


def _release_in_child(reference: weakref.ref[FolderLock]) -> None:
    if lock := reference():
        lock.release()


def _take_lock(file: int, folder: Path) -> bool:
    """Lock the file; returns False if the file system has no locks, or an earlier attempt of this training has it.

    A file server may keep the lock of an earlier attempt for a while after its host is gone.

    Raises:
        SpecError: Another training has the lock.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # The identity comes last, because a path may contain line breaks.
        lines = os.pread(file, 1 << 16, 0).decode(errors="replace").split("\n", 2)
        host, attempt, holder = lines if len(lines) == 3 else ("", "", "")
        if holder and holder == job_identity(os.environ) and is_later_attempt(attempt_numbers(os.environ), attempt):
            return False
        raise SpecError(
            "another training writes to this folder of checkpoints",
            found=f"{folder}: {_describe_holder(holder)} on {host or 'some host'}",
            remedy=f"choose another folder; or, if that training is gone: rm {folder / LOCK}",
        ) from None
    except OSError:
        return False
    return True
