"""Attempts of one training, and the lock of its checkpoint."""

from __future__ import annotations

import fcntl
import json
import os
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.runtime.restart.attempts import INFO_FILE, checkpoint_lock, find_own_checkpoint, job_identity


def find(path: Path) -> Path | None:
    return find_own_checkpoint(path, os.environ)


def write_info(path: Path, run: str, step: int) -> None:
    path.mkdir()
    (path / INFO_FILE).write_text(json.dumps({"step": step, "run": run}))


@pytest.mark.parametrize(("name", "value", "resumes"), [
    ("SLURM_RESTART_COUNT", "1", True),
    ("TORCHELASTIC_RESTART_COUNT", "2", True),
    ("SLURM_RESTART_COUNT", "0", False),
    ("SLURM_JOB_ID", "7", False),
])  # fmt: skip
def test_a_later_attempt_resumes_the_checkpoint_of_an_earlier_one(
    name: str, value: str, resumes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    monkeypatch.setenv(name, value)
    path = tmp_path / "checkpoint"
    assert find(path) is None  # nothing was written yet
    write_info(path, job_identity(os.environ), step=5)
    assert find(path) == (path if resumes else None)


@pytest.fixture
def requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")


@pytest.mark.usefixtures("requeued")
@pytest.mark.parametrize("run", ["6", "", "7 /elsewhere"])
def test_the_checkpoint_of_another_training_is_not_resumed(run: str, tmp_path: Path) -> None:
    write_info(tmp_path / "c", run, step=5)
    assert find(tmp_path / "c") is None


@pytest.mark.usefixtures("requeued")
def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    write_info(tmp_path / ".c.old", "7", step=5)
    assert find(tmp_path / "c") == tmp_path / ".c.old"


def test_a_torchrun_without_a_run_id_is_identified_by_its_parent() -> None:
    alone = {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1"}
    assert job_identity(alone) == f"pid {os.getppid()}"
    assert job_identity({**alone, "GROUP_WORLD_SIZE": "2"}) == job_identity({}) == ""
    assert job_identity({**alone, "TORCHELASTIC_RUN_ID": "x", "HPC_KIT_RUN": "/r"}) == "/r x"


def test_two_trainings_do_not_write_the_same_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "c", tmp_path / "d"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with checkpoint_lock(path), checkpoint_lock(other):
        monkeypatch.setenv("SLURM_JOB_ID", "8")
        with pytest.raises(SpecError) as caught, checkpoint_lock(path):
            pass
        assert re.fullmatch(
            rf"another training writes this checkpoint\n  found  --checkpoint {path}: 7 on \S+\n"
            rf"  do     choose another --checkpoint; or, if that training is gone: rm {tmp_path}/.c.lock",
            str(caught.value),
        )
    with checkpoint_lock(path):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "later", [{"SLURM_RESTART_COUNT": "1", "SLURM_STEP_ID": "0"}, {"TORCHELASTIC_RESTART_COUNT": "1"}], ids=str
)
def test_a_restarted_run_may_take_its_own_lock(
    later: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}.items():
        monkeypatch.setenv(name, value)
    with checkpoint_lock(tmp_path / "c"):
        for name, value in later.items():
            monkeypatch.setenv(name, value)
        with checkpoint_lock(tmp_path / "c"):
            pass
        assert (tmp_path / ".c.lock").exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", ["0", "1"])
def test_two_steps_of_a_job_do_not_write_the_same_checkpoint(
    count: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the refused one take the lock away."""
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": count}.items():
        monkeypatch.setenv(name, value)
    with checkpoint_lock(tmp_path / "c"):
        monkeypatch.setenv("SLURM_STEP_ID", "1")
        for workers in ("0", "1"):  # torchrun starts the refused ones again
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", workers)
            with pytest.raises(SpecError, match="another training writes"), checkpoint_lock(tmp_path / "c"):
                pass
        assert (tmp_path / ".c.lock").exists()


def test_a_lock_file_deleted_while_it_is_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, real = ExitStack(), fcntl.flock
    first.enter_context(checkpoint_lock(tmp_path / "c"))

    def flock(file: int, how: int) -> None:
        first.close()  # the training before ends here
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with checkpoint_lock(tmp_path / "c"):
        assert (tmp_path / ".c.lock").exists()
        with pytest.raises(SpecError, match="another training writes"), checkpoint_lock(tmp_path / "c"):
            pass


def test_a_full_disk_needs_no_lock_and_a_missing_folder_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", raise_disk_full)
    with checkpoint_lock(tmp_path / "c"):
        pass
    with pytest.raises(SpecError, match="gone/c: No such file or directory"), checkpoint_lock(tmp_path / "gone" / "c"):
        pass


def test_a_failed_training_releases_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(KeyError), checkpoint_lock(tmp_path / "c"):
        raise KeyError
    assert not list(tmp_path.iterdir())
    with checkpoint_lock(tmp_path / "c"):
        pass


def test_a_file_system_without_locks_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", raise_no_locks)
    with checkpoint_lock(tmp_path / "c"):
        pass
