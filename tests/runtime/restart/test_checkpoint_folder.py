"""A folder contains complete checkpoints only, whenever a save is interrupted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.runtime.restart import checkpoint_folder
from hpc_kit.runtime.restart.checkpoint_folder import (
    INFO_FILE,
    CheckpointInfo,
    Damage,
    checkpoint_path,
    compute_checksum,
    draft_of,
    list_checkpoints,
    point_latest_to,
    prepare_folder,
    publish,
    read_info,
    remove_leftovers,
    remove_old,
    verify_checksums,
)


def write(folder: Path, step: int, number: int = 0, text: str = "content") -> Path:
    """Write a checkpoint of one file."""
    path = checkpoint_path(folder, step)
    draft = draft_of(path)
    draft.mkdir(parents=True)
    (draft / "__0_0.distcp").write_text(text)
    checksums = {"__0_0.distcp": compute_checksum(draft / "__0_0.distcp")}
    publish(draft, path, CheckpointInfo(step=step, number=number or step, checksums=checksums))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage_of(path: Path) -> str:
    found = read_info(path)
    assert isinstance(found, Damage)
    return found.text


def test_the_newest_checkpoint_is_the_one_that_was_written_last(tmp_path: Path) -> None:
    """A training may go on from an older checkpoint; its steps then have smaller numbers."""
    for number, step in enumerate((5, 10, 15, 6), 1):
        write(tmp_path, step, number)
    saved, damages = list_checkpoints(tmp_path)
    assert ([path.name for path, _ in saved], damages) == (["step-6", "step-15", "step-10", "step-5"], {})
    remove_old(tmp_path, 2)
    assert names(tmp_path) == ["step-15", "step-6"]


def test_a_single_checkpoint_lists_itself(tmp_path: Path) -> None:
    path = write(tmp_path, 5)
    assert [each.path for each in list_checkpoints(path)[0]] == [path]
    with pytest.raises(SpecError, match="a single checkpoint"):
        prepare_folder(path)


def test_the_link_points_to_the_last_checkpoint(tmp_path: Path) -> None:
    for step in (5, 10):
        point_latest_to(write(tmp_path, step))
        assert json.loads((tmp_path / "latest" / INFO_FILE).read_text())["step"] == step
    assert names(tmp_path) == ["latest", "step-10", "step-5"]


def test_files_that_are_cut_short_or_missing_are_found(tmp_path: Path) -> None:
    path = write(tmp_path, 5)
    os.truncate(path / "__0_0.distcp", 3)
    assert damage_of(path) == "__0_0.distcp has 3 bytes of 7"
    (path / "__0_0.distcp").unlink()
    assert "FileNotFoundError" in damage_of(path)
    for text in ("{", "[]", "7", json.dumps({"files": {}}), json.dumps({"step": "x", "files": {}})):
        (path / INFO_FILE).write_text(text)
        assert damage_of(path)


def test_a_changed_bit_is_found_by_the_rank_that_reads_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 5)
    info = read_info(path)
    assert not isinstance(info, Damage)
    assert verify_checksums(path, info, 0, 1) is None
    (path / "__0_0.distcp").write_text("cOntent")
    assert verify_checksums(path, info, 1, 2) is None
    damage = verify_checksums(path, info, 0, 2)
    assert damage
    assert damage.is_permanent
    assert "__0_0.distcp has checksum" in damage.text


def test_a_disk_that_does_not_answer_is_no_permanent_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, 5)
    info = read_info(path)
    assert not isinstance(info, Damage)

    def fail(_: Path) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint_folder, "compute_checksum", fail)
    assert verify_checksums(path, info, 0, 1) == Damage("__0_0.distcp: Input/output error", is_permanent=False)


def test_a_kill_while_a_checkpoint_is_replaced_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """Passes every `except OSError`, as a SIGKILL does."""

    write(tmp_path, 5, text="old")
    rename = Path.rename

    def die_before(self: Path, target: Path) -> Path:
        if self.name.endswith(".part"):
            raise Killed
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", die_before)
        with pytest.raises(Killed):
            write(tmp_path, 5, text="new")
    assert list_checkpoints(tmp_path)[0] == []
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["step-5"]
    assert (tmp_path / "step-5" / "__0_0.distcp").read_text() == "old"


def test_a_rename_that_fails_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 5, text="old")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name.endswith(".part"):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 5, text="new")
    assert (tmp_path / "step-5" / "__0_0.distcp").read_text() == "old"


def test_what_killed_saves_and_removals_leave_is_removed(tmp_path: Path) -> None:
    write(tmp_path, 5)
    for name in (".step-9.part", ".step-5.old"):
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["step-5"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="the checkpoint cannot be written"):
        prepare_folder(tmp_path / "file" / "c")
    with pytest.raises(SpecError, match="File name too long"):
        prepare_folder(tmp_path / ("x" * 300))
    prepare_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
