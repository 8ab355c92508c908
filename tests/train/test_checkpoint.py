from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint import Checkpoint, compare_shapes, load, prepare, save
from hpc_kit.errors import SpecError

CPU = torch.device("cpu")


def content(step: int) -> Checkpoint:
    return Checkpoint(
        step=step, shape={"layers": 2, "width": 8}, model={"w": torch.full((64,), float(step))}, optimizer={}
    )


def refusal(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        load(path, CPU)
    return str(caught.value)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path / "c.pt", content(3))
    saved = load(tmp_path / "c.pt", CPU)
    assert (saved["step"], saved["shape"], saved["optimizer"]) == (3, {"layers": 2, "width": 8}, {})
    assert torch.equal(saved["model"]["w"], torch.full((64,), 3.0))
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]


@given(share=st.floats(0, 0.999))
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "c.pt"
    save(path, content(1))
    size = int(path.stat().st_size * share)
    os.truncate(path, size)
    words = refusal(path)
    assert words.startswith(f"this is not a whole checkpoint\n  found  --resume {path}, {size} bytes: ")
    assert words.endswith("\n  do     an earlier one: this was cut short, or another program wrote it")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    for other in (torch.ones(3), {"step": 1}, 7, "text"):
        torch.save(other, path)
        assert refusal(path).startswith("this is not a whole checkpoint\n")
    torch.save({"step": 1, "model": {}}, path)
    assert "bytes: no optimizer, shape in it\n" in refusal(path)
    path.write_text("a text\n")
    assert refusal(path).startswith("this is not a whole checkpoint\n")


class Mischief:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_a_checkpoint_runs_no_code_when_it_is_read(tmp_path: Path) -> None:
    torch.save({**content(1), "optimizer": Mischief(tmp_path / "done")}, tmp_path / "c.pt")
    assert refusal(tmp_path / "c.pt").startswith("this is not a whole checkpoint\n")
    assert not (tmp_path / "done").exists()


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "c.pt") == (
        f"there is no checkpoint\n  found  --resume {tmp_path}/c.pt\n  do     a path that every node sees"
    )
    assert "bytes: IsADirectoryError: [Errno 21] Is a directory" in refusal(tmp_path)


def test_who_is_killed_while_writing_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """Passes every `except` of ours, as a SIGKILL does."""

    def killed(descriptor: int) -> None:
        raise Killed

    path = tmp_path / "c.pt"
    save(path, content(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        with pytest.raises(Killed):
            save(path, content(2))
    assert len(list(tmp_path.iterdir())) == 2
    assert load(path, CPU)["step"] == 1
    save(path, content(3))
    assert load(path, CPU)["step"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]


def test_a_disk_that_is_full_leaves_the_old_checkpoint_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    save(path, content(1))
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(SpecError) as caught:
            save(path, content(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    words = str(caught.value)
    assert words.startswith(f"the checkpoint cannot be written\n  found  --checkpoint {path}: ")
    assert words.endswith("\n  do     name a file on a disk with room, in a folder of your own")
    assert load(path, CPU)["step"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]


def test_a_path_that_takes_no_file_is_refused_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path / "new" / "folder" / "c.pt")
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "c.pt").mkdir()
    with pytest.raises(SpecError, match=r"c\.pt: it is a folder\n"):
        prepare(tmp_path / "c.pt")
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=r"file/c\.pt: (File exists|Not a directory)\n"):
        prepare(tmp_path / "file" / "c.pt")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SpecError, match=f"{tmp_path} is not yours to write in"):
        prepare(tmp_path / "d.pt")


def test_a_checkpoint_of_another_model_is_refused_with_both_numbers() -> None:
    compare_shapes(Path("c.pt"), {"layers": 2, "width": 8}, {"layers": 2, "width": 8})
    with pytest.raises(SpecError) as caught:
        compare_shapes(Path("c.pt"), {"layers": 2, "width": 8}, {"layers": 4, "width": 16})
    assert str(caught.value) == (
        "the checkpoint is another model's\n"
        "  found  layers 2 in c.pt, 4 asked for, width 8 in c.pt, 16 asked for\n"
        "  do     --layers 2 --width 8"
    )
