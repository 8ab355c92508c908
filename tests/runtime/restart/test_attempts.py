"""Attempts of one training, and the lock of its checkpoints."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import re
import signal
from pathlib import Path

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.runtime.restart.attempts import FolderLock, is_restart, job_identity


@pytest.mark.parametrize(("name", "value", "is_later"), [
    ("SLURM_RESTART_COUNT", "1", True),
    ("TORCHELASTIC_RESTART_COUNT", "2", True),
    ("HPC_KIT_ATTEMPT", "2", True),
    ("HPC_KIT_ATTEMPT", "1", False),
    ("SLURM_RESTART_COUNT", "0", False),
    ("SLURM_JOB_ID", "7", False),
])  # fmt: skip
def test_a_later_attempt_is_known_by_its_variables(name: str, value: str, is_later: bool) -> None:
    assert is_restart({name: value}) is is_later


def test_a_job_that_is_submitted_again_is_the_same_training() -> None:
    first = {"HPC_KIT_RUN": "/runs/7", "SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "7"}
    assert job_identity(first) == job_identity({"HPC_KIT_RUN": "/runs/7", "SLURM_JOB_ID": "8"})
    assert job_identity({"SLURM_JOB_ID": "7"}) != job_identity({"SLURM_JOB_ID": "8"})


def test_a_torchrun_without_a_run_id_is_identified_by_its_parent() -> None:
    alone = {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1"}
    assert job_identity(alone) == f"pid {os.getppid()}"
    assert job_identity({**alone, "GROUP_WORLD_SIZE": "2"}) == job_identity({}) == ""
    assert job_identity({"GROUP_WORLD_SIZE": "1"}) == ""  # set by the runtime


def test_two_trainings_do_not_write_to_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    lock = FolderLock(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    with pytest.raises(SpecError) as caught:
        FolderLock(tmp_path)
    assert re.fullmatch(
        rf"another training writes to this folder of checkpoints\n  found  {tmp_path}: job 7 on \S+\n"
        rf"  do     choose another folder; or, if that training is gone: rm {tmp_path}/.lock",
        str(caught.value),
    )
    lock.release()
    FolderLock(tmp_path).release()


@pytest.mark.parametrize(("environ", "words"), [
    ({"HPC_KIT_RUN": "/p/runs/train/7", "SLURM_JOB_ID": "7"}, "job 7 (/p/runs/train/7) on"),
    ({"HPC_KIT_RUN": "/a\nb/runs/train/7"}, "job 7 (/a\nb/runs/train/7) on"),
    ({"SLURM_JOB_ID": "7"}, "job 7 on"),
    ({"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1"}, "pid "),
    ({}, "a training on"),
], ids=str)  # fmt: skip
def test_the_error_names_the_job_that_has_the_lock(
    environ: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    lock = FolderLock(tmp_path)
    with pytest.raises(SpecError) as caught:
        FolderLock(tmp_path)
    assert f"{tmp_path}: {words}" in str(caught.value.found)
    lock.release()


def test_the_lock_of_a_killed_training_is_free(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    is_locked = context.Event()

    def train() -> None:
        lock = FolderLock(tmp_path)
        is_locked.set()
        signal.pause()
        lock.release()

    training = context.Process(target=train)
    training.start()
    assert is_locked.wait(30)
    with pytest.raises(SpecError, match="another training writes"):
        FolderLock(tmp_path)
    training.kill()
    training.join(30)
    FolderLock(tmp_path).release()


@pytest.mark.parametrize("later", [
    {"SLURM_RESTART_COUNT": "1", "SLURM_STEP_ID": "0"},
    {"HPC_KIT_ATTEMPT": "2", "SLURM_STEP_ID": "0"},
    {"TORCHELASTIC_RESTART_COUNT": "1"},
], ids=str)  # fmt: skip
def test_a_restarted_run_may_take_its_own_lock(
    later: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}.items():
        monkeypatch.setenv(name, value)
    lock = FolderLock(tmp_path)
    for name, value in later.items():
        monkeypatch.setenv(name, value)
    FolderLock(tmp_path).release()
    lock.release()


@pytest.mark.parametrize("count", ["0", "1"])
def test_two_steps_of_a_job_do_not_write_to_the_same_folder(
    count: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": count}.items():
        monkeypatch.setenv(name, value)
    lock = FolderLock(tmp_path)
    monkeypatch.setenv("SLURM_STEP_ID", "1")
    for workers in ("0", "1"):  # torchrun starts the refused ones again
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", workers)
        with pytest.raises(SpecError, match="another training writes"):
            FolderLock(tmp_path)
    lock.release()


@pytest.mark.parametrize(("folder_mode", "lock_mode"), [(0o2775, 0o664), (0o700, 0o600)])
def test_the_members_of_a_group_that_shares_the_folder_can_lock_it(
    tmp_path: Path, folder_mode: int, lock_mode: int
) -> None:
    tmp_path.chmod(folder_mode)
    before = os.umask(0o022)
    try:
        FolderLock(tmp_path).release()
    finally:
        os.umask(before)
    assert (tmp_path / ".lock").stat().st_mode & 0o777 == lock_mode


def test_a_forked_process_that_outlives_the_training_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    context = multiprocessing.get_context("fork")
    ready, go_on = context.Event(), context.Event()

    def work() -> None:
        ready.set()
        go_on.wait(30)

    worker = context.Process(target=work)
    worker.start()
    assert ready.wait(30)
    lock.release()
    FolderLock(tmp_path).release()
    go_on.set()
    worker.join(30)


def test_a_full_disk_needs_no_lock_and_a_missing_folder_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", raise_disk_full)
    FolderLock(tmp_path).release()
    with pytest.raises(SpecError, match="gone: No such file or directory"):
        FolderLock(tmp_path / "gone")


def test_a_file_system_without_locks_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", raise_no_locks)
    FolderLock(tmp_path).release()
