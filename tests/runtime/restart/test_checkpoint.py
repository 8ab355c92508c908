from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from hpc_kit.errors import SpecError
from hpc_kit.runtime.restart import checkpoint
from hpc_kit.runtime.restart.attempts import INFO_FILE
from hpc_kit.runtime.restart.checkpoint import (
    Checkpointer,
    compare_shapes,
    format_option,
    load_state,
    prepare_folder,
    read_info,
    verify_checksums,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one rank, in this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path_factory.mktemp('store')}/s", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


pytestmark = pytest.mark.usefixtures("world")


def save_step(step: int, path: Path, **more: Any) -> Checkpointer:
    """Save a small model after so many steps of training."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    saver = Checkpointer(path, shape={"width": 4}, **more)
    saver.restore(model=model, optimizer=optimizer)
    for _ in range(step):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
    saver.save(step)
    return saver


def refusal(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        read_info(path)
    return str(caught.value)


def test_a_saved_checkpoint_is_complete_and_describes_itself(tmp_path: Path) -> None:
    save_step(3, tmp_path / "c")
    about = read_info(tmp_path / "c")
    assert about["step"] == 3
    assert about["shape"] == {"width": 4}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_checkpoint_with_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_step(1, path)
    for name, size in read_info(path)["files"].items():
        content = (path / name).read_bytes()
        os.truncate(path / name, size // 2)
        assert refusal(path) == (
            f"this is not a complete checkpoint\n  found  --resume {path}: {name} has {size // 2} bytes of {size}\n"
            "  do     resume from an earlier one: this one was cut short, or another program wrote it"
        )
        (path / name).write_bytes(content)
    read_info(path)
    next(path.glob("*.distcp")).unlink()
    assert "FileNotFoundError" in refusal(path)


def test_a_checkpoint_with_a_changed_bit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_step(1, path)
    about = read_info(path)
    assert set(about["checksums"]) == set(about["files"])
    verify_checksums(path, about, 0, 1)
    for number, name in enumerate(sorted(about["files"])):
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[:-9] + bytes([content[-9] ^ 64]) + content[-8:])
        ranks = len(about["files"])
        for rank in range(ranks):
            with pytest.raises(SpecError, match="damaged") if rank == number else nullcontext() as caught:
                verify_checksums(path, about, rank, ranks)
            if caught:
                assert re.search(
                    rf"--resume {path}: {name} has checksum [0-9a-f]{{8}}, [0-9a-f]{{8}} was written\n",
                    str(caught.value),
                )
        (path / name).write_bytes(content)


@pytest.mark.parametrize("count", ["0", "1"])
def test_a_restart_without_a_checkpoint_prints_that_it_starts_over(
    count: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", count)
    lines: list[str] = []
    saver = Checkpointer(tmp_path / "c", report=lines.append)
    model = torch.nn.Linear(1, 1)
    assert saver.restore(model=model, optimizer=torch.optim.AdamW(model.parameters())) == 0
    note = f"note    restarted from the beginning: {tmp_path}/c is no checkpoint of this run"
    assert lines == ([note] if count == "1" else [])


def test_a_path_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    assert (
        refusal(path) == f"there is no checkpoint\n  found  --resume {path}\n  do     name a path that every node sees"
    )
    path.mkdir()
    assert "FileNotFoundError" in refusal(path)
    for text in ("{", "[]", "7", json.dumps({"files": {}}), json.dumps({"step": 1, "shape": {}})):
        (path / INFO_FILE).write_text(text)
        assert refusal(path).startswith("this is not a complete checkpoint\n")
    assert "NotADirectoryError" in refusal(path / INFO_FILE)


def test_a_kill_while_writing_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """Passes every `except` of ours, as a SIGKILL does."""

    def killed(*_: object) -> None:
        raise Killed

    path = tmp_path / "c"
    save_step(1, path)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "publish", killed)
        with pytest.raises(Killed):
            save_step(2, path)
    assert read_info(path)["step"] == 1
    save_step(3, path)
    assert read_info(path)["step"] == 3
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_between_the_two_renames_the_old_checkpoint_is_found(tmp_path: Path) -> None:
    save_step(1, tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / ".c.old")
    assert refusal(tmp_path / "c").endswith(
        f"do     mv {tmp_path}/.c.old {tmp_path}/c: a kill during a save left it there"
    )


def test_the_old_checkpoint_stays_until_the_new_one_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    path, old = tmp_path / "c", tmp_path / ".c.old"
    save_step(1, path)
    assert read_info(path)["run"] == "7"
    path.rename(old)
    rename = Path.rename

    def rename_and_note(self: Path, target: Path) -> Path:
        assert read_info(old)["step"] == 1
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_and_note)
    save_step(2, path)
    assert read_info(path)["step"] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_out_of_memory_is_not_reported_as_a_broken_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.distributed.checkpoint.state_dict_loader, "load", full)
    with pytest.raises(torch.OutOfMemoryError):
        load_state(tmp_path, {})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("bf16", "True", "--bf16"), ("bf16", "False", "--bf16 not given"), ("data", "None", "--data not given"),
     ("global_batch", "8", "--global-batch 8")],
)  # fmt: skip
def test_an_option_is_printed_as_given(name: str, value: str, words: str) -> None:
    assert format_option(name, value) == words


def test_a_full_disk_keeps_the_old_checkpoint_with_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c"
    save_step(1, path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "publish", full)
    with pytest.raises(SpecError) as caught:
        save_step(2, path)
    assert str(caught.value) == (
        f"the checkpoint cannot be written\n  found  --checkpoint {path}: [Errno 28] No space left on device\n"
        "  do     choose a new folder of your own, on a disk with free space"
    )
    assert read_info(path)["step"] == 1
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("place", ["dcp", "checksums"])
def test_a_missing_rank_is_not_reported_as_a_disk_error(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(words: str) -> Callable[..., object]:
        def raise_words(*_: object, **__: object) -> None:
            raise RuntimeError(words)

        return raise_words

    saver, late = torch.distributed.checkpoint.state_dict_saver, fail("Timed out waiting 8000ms for recv")
    monkeypatch.setattr(*((saver, "save") if place == "dcp" else (checkpoint, "compute_own_checksums")), late)
    with pytest.raises(RuntimeError, match="Timed out waiting"):
        save_step(1, tmp_path / "c")
    monkeypatch.setattr(saver, "save", fail("PytorchStreamWriter failed writing file"))
    with pytest.raises(SpecError, match="failed writing file"):
        save_step(1, tmp_path / "c")


def test_an_unwritable_path_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_folder(tmp_path / "new" / "folder" / "c")
    assert (tmp_path / "new" / "folder").is_dir()
    with pytest.raises(SpecError, match=r"new: something else is there\n"):
        prepare_folder(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=r"file/c: (File exists|Not a directory)\n"):
        prepare_folder(tmp_path / "file" / "c")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SpecError, match=f"{tmp_path} is not writable for you"):
        prepare_folder(tmp_path / "d")


def test_a_checkpoint_of_another_model_is_refused_with_both_numbers() -> None:
    compare_shapes(Path("c"), {"layers": 2, "width": 8}, {"layers": 2, "width": 8})
    with pytest.raises(SpecError) as caught:
        compare_shapes(Path("c"), {"layers": 2, "width": 8}, {"layers": 4, "width": 16})
    assert str(caught.value) == (
        "the checkpoint belongs to another model\n"
        "  found  layers 2 in c, 4 requested, width 8 in c, 16 requested\n"
        "  do     --layers 2 --width 8"
    )


def hide_from_second_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a host to each collective that sees nothing of what rank 0 writes."""

    def gather(value: object) -> list[object]:
        return [value, ("n2", False)] if isinstance(value, tuple) else [value]

    monkeypatch.setattr(checkpoint, "gather", gather)


def test_hosts_without_a_shared_runs_folder_train_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_from_second_host(monkeypatch)
    lines: list[str] = []
    with Checkpointer(tmp_path / "c", is_required=False, report=lines.append) as saver:
        assert saver.path is None
    assert lines == [f"note    no checkpoint: n2 cannot see {tmp_path}/c of rank 0"]
    assert not list(tmp_path.iterdir())


def test_a_requested_checkpoint_needs_a_shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_from_second_host(monkeypatch)
    with pytest.raises(SpecError, match="the hosts do not share the folder of the checkpoint"):
        Checkpointer(tmp_path / "c").__enter__()
    assert not list(tmp_path.iterdir())


def test_a_requeue_after_the_last_save_leaves_nothing_to_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    save_step(3, tmp_path / "c")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    lines: list[str] = []
    saver = Checkpointer(tmp_path / "c", shape={"width": 4}, report=lines.append)
    model = torch.nn.Linear(4, 4)
    assert saver.restore(model=model, optimizer=torch.optim.AdamW(model.parameters()), steps=3) == 3
    assert lines == [f"note    {tmp_path}/c is at step 3 of 3: nothing is left to train"]


def test_restore_returns_the_parameters_and_moments_that_were_saved(tmp_path: Path) -> None:
    save_step(3, tmp_path / "c")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    saver = Checkpointer(None, resume=tmp_path / "c", shape={"width": 4})
    assert saver.restore(model=model, optimizer=optimizer, steps=9) == 3
    assert optimizer.state[model.weight]["step"] == 3
    assert optimizer.state[model.weight]["exp_avg"].abs().sum() > 0
