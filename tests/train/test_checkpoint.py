from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

import checkpoint
from about import compare_checksums, compare_shapes, whole
from checkpoint import prepare, save
from hpc_kit.errors import SpecError
from hpc_kit.runtime import Group
from lock import locked
from options import Options
from restart import ABOUT


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A world of one, in this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path_factory.mktemp('store')}/s", rank=0, world_size=1)
    yield Group(
        rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0, nnodes=1,
        launcher="single", name="a test", backend="gloo", device=torch.device("cpu"),
    )  # fmt: skip
    dist.destroy_process_group()


def write(path: Path, world: Group, step: int) -> None:
    save(path, world, Options(steps=step, layers=2, width=8, heads=2), {"w": torch.full((64,), float(step))}, step)


def refusal(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        whole(path)
    return str(caught.value)


def test_what_was_saved_is_whole_and_says_what_it_is(tmp_path: Path, world: Group) -> None:
    write(tmp_path / "c", world, 3)
    about = whole(tmp_path / "c")
    assert about["step"] == 3
    assert about["shape"] == {"layers": 2, "width": 8, "heads": 2, "sequence": 64}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_checkpoint_cut_short_in_any_of_its_files_is_refused(tmp_path: Path, world: Group) -> None:
    path = tmp_path / "c"
    write(path, world, 1)
    for name, size in whole(path)["files"].items():
        content = (path / name).read_bytes()
        os.truncate(path / name, size // 2)
        assert refusal(path) == (
            f"this is not a whole checkpoint\n  found  --resume {path}: {name} has {size // 2} bytes of {size}\n"
            "  do     an earlier one: this was cut short, or another program wrote it"
        )
        (path / name).write_bytes(content)
    whole(path)
    next(path.glob("*.distcp")).unlink()
    assert "FileNotFoundError" in refusal(path)


def test_a_checkpoint_with_a_changed_bit_in_any_of_its_files_is_refused(tmp_path: Path, world: Group) -> None:
    path = tmp_path / "c"
    write(path, world, 1)
    about = whole(path)
    assert set(about["checksums"]) == set(about["files"])
    compare_checksums(path, about, 0, 1)
    for number, name in enumerate(sorted(about["files"])):
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[:-9] + bytes([content[-9] ^ 64]) + content[-8:])
        ranks = len(about["files"])
        for rank in range(ranks):
            with pytest.raises(SpecError, match="damaged") if rank == number else nullcontext() as caught:
                compare_checksums(path, about, rank, ranks)
            if caught:
                assert re.search(
                    rf"--resume {path}: {name} has checksum [0-9a-f]{{8}}, [0-9a-f]{{8}} was written\n",
                    str(caught.value),
                )
        (path / name).write_bytes(content)


def test_two_trainings_do_not_write_the_same_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "c", tmp_path / "d"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with locked(path), locked(other):
        monkeypatch.setenv("SLURM_JOB_ID", "8")
        with pytest.raises(SpecError) as caught, locked(path):
            pass
        assert re.fullmatch(
            rf"another training writes this checkpoint\n  found  --checkpoint {path}: 7 on \S+\n"
            rf"  do     another --checkpoint; or, where that training is gone: rm {tmp_path}/.c.lock",
            str(caught.value),
        )
    with locked(path):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "later", [{"SLURM_RESTART_COUNT": "1", "SLURM_STEP_ID": "0"}, {"TORCHELASTIC_RESTART_COUNT": "1"}], ids=str
)
def test_a_run_that_is_started_again_may_meet_its_own_lock(
    later: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}.items():
        monkeypatch.setenv(name, value)
    with locked(tmp_path / "c"):
        for name, value in later.items():
            monkeypatch.setenv(name, value)
        with locked(tmp_path / "c"):
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
    with locked(tmp_path / "c"):
        monkeypatch.setenv("SLURM_STEP_ID", "1")
        for workers in ("0", "1"):  # torchrun starts the refused ones again
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", workers)
            with pytest.raises(SpecError, match="another training writes"), locked(tmp_path / "c"):
                pass
        assert (tmp_path / ".c.lock").exists()


def test_a_lock_that_loses_its_name_while_one_takes_it_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, real = ExitStack(), fcntl.flock
    first.enter_context(locked(tmp_path / "c"))

    def flock(file: int, how: int) -> None:
        first.close()  # the training before ends here
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path / "c"):
        assert (tmp_path / ".c.lock").exists()
        with pytest.raises(SpecError, match="another training writes"), locked(tmp_path / "c"):
            pass


def test_a_disk_without_room_for_the_lock_is_no_fault_and_a_folder_that_is_gone_one_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with locked(tmp_path / "c"):
        pass
    with pytest.raises(SpecError, match="gone/c: No such file or directory"), locked(tmp_path / "gone" / "c"):
        pass


def test_a_training_that_fails_keeps_nobody_from_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path / "c"):
        raise KeyError
    assert not list(tmp_path.iterdir())
    with locked(tmp_path / "c"):
        pass


def test_a_file_system_without_locks_takes_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(tmp_path / "c"):
        pass


@pytest.mark.parametrize("count", ["0", "1"])
def test_a_restart_that_finds_no_checkpoint_says_that_it_begins_anew(
    count: str, tmp_path: Path, world: Group, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", count)
    assert checkpoint.begin(Options(checkpoint=tmp_path / "c"), world) == 0
    note = f"note    started again, from the beginning: {tmp_path}/c is no checkpoint of this run\n"
    assert capsys.readouterr().out == (note if count == "1" else "")


def test_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    assert refusal(path) == f"there is no checkpoint\n  found  --resume {path}\n  do     a path that every node sees"
    path.mkdir()
    assert "FileNotFoundError" in refusal(path)
    for text in ("{", "[]", "7", json.dumps({"files": {}}), json.dumps({"step": 1, "shape": {}})):
        (path / ABOUT).write_text(text)
        assert refusal(path).startswith("this is not a whole checkpoint\n")
    assert "NotADirectoryError" in refusal(path / ABOUT)


def test_who_is_killed_while_writing_leaves_the_old_checkpoint(
    tmp_path: Path, world: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Passes every `except` of ours, as a SIGKILL does."""

    def killed(*_: object) -> None:
        raise Killed

    path = tmp_path / "c"
    write(path, world, 1)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "put", killed)
        with pytest.raises(Killed):
            write(path, world, 2)
    assert whole(path)["step"] == 1
    write(path, world, 3)
    assert whole(path)["step"] == 3
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_between_the_two_renames_the_old_checkpoint_is_named(tmp_path: Path, world: Group) -> None:
    write(tmp_path / "c", world, 1)
    (tmp_path / "c").rename(tmp_path / ".c.old")
    assert refusal(tmp_path / "c").endswith(
        f"do     mv {tmp_path}/.c.old {tmp_path}/c: a kill while writing left it there"
    )


def test_the_old_checkpoint_stays_until_the_new_one_has_its_name(
    tmp_path: Path, world: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    path, old = tmp_path / "c", tmp_path / ".c.old"
    write(path, world, 1)
    assert whole(path)["run"] == "7"
    path.rename(old)
    rename = Path.rename

    def seen(self: Path, target: Path) -> Path:
        assert whole(old)["step"] == 1
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", seen)
    write(path, world, 2)
    assert whole(path)["step"] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_memory_that_runs_out_is_no_fault_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(checkpoint, "state_of", full)
    model = torch.nn.Linear(1, 1)
    with pytest.raises(torch.OutOfMemoryError):
        checkpoint.load(tmp_path, model, torch.optim.AdamW(model.parameters()), 1)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("bf16", "True", "--bf16"), ("bf16", "False", "--bf16 not given"), ("data", "None", "--data not given"),
     ("global_batch", "8", "--global-batch 8")],
)  # fmt: skip
def test_an_option_is_said_as_it_was_given(name: str, value: str, words: str) -> None:
    assert checkpoint.as_given(name, value) == words


def test_a_disk_that_is_full_leaves_the_old_checkpoint_and_says_so(
    tmp_path: Path, world: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c"
    write(path, world, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "put", full)
    with pytest.raises(SpecError) as caught:
        write(path, world, 2)
    assert str(caught.value) == (
        f"the checkpoint cannot be written\n  found  --checkpoint {path}: [Errno 28] No space left on device\n"
        "  do     a new folder on a disk with room, in a folder of your own"
    )
    assert whole(path)["step"] == 1
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("place", ["dcp", "checksums"])
def test_a_rank_that_does_not_come_is_no_fault_of_the_disk(
    place: str, tmp_path: Path, world: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(words: str) -> Callable[..., object]:
        def failing(*_: object, **__: object) -> None:
            raise RuntimeError(words)

        return failing

    saver, late = torch.distributed.checkpoint.state_dict_saver, fail("Timed out waiting 8000ms for recv")
    monkeypatch.setattr(*((saver, "save") if place == "dcp" else (checkpoint, "gather")), late)
    with pytest.raises(RuntimeError, match="Timed out waiting"):
        write(tmp_path / "c", world, 1)
    monkeypatch.setattr(saver, "save", fail("PytorchStreamWriter failed writing file"))
    with pytest.raises(SpecError, match="failed writing file"):
        write(tmp_path / "c", world, 1)


def test_a_path_that_takes_no_checkpoint_is_refused_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path / "new" / "folder" / "c")
    assert (tmp_path / "new" / "folder").is_dir()
    with pytest.raises(SpecError, match=r"new: something else is there\n"):
        prepare(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=r"file/c: (File exists|Not a directory)\n"):
        prepare(tmp_path / "file" / "c")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SpecError, match=f"{tmp_path} is not yours to write in"):
        prepare(tmp_path / "d")


def test_a_checkpoint_of_another_model_is_refused_with_both_numbers() -> None:
    compare_shapes(Path("c"), {"layers": 2, "width": 8}, {"layers": 2, "width": 8})
    with pytest.raises(SpecError) as caught:
        compare_shapes(Path("c"), {"layers": 2, "width": 8}, {"layers": 4, "width": 16})
    assert str(caught.value) == (
        "the checkpoint is another model's\n"
        "  found  layers 2 in c, 4 asked for, width 8 in c, 16 asked for\n"
        "  do     --layers 2 --width 8"
    )


def of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Options:
    """As a program reads them in a job, one of whose two hosts sees nothing of what is put into the run's folder."""
    monkeypatch.setenv("HPC_KIT_RUN", str(folder))
    monkeypatch.setattr(
        checkpoint, "gather", lambda value: [value] if isinstance(value, str) else [value, ("n2", False)]
    )
    return Options.parse(None, words)


def test_hosts_that_do_not_share_the_runs_folder_train_without_a_checkpoint(
    tmp_path: Path, world: Group, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = of_a_run(tmp_path, monkeypatch)
    assert options.checkpoint == tmp_path / "checkpoint" and not options.asks_for_checkpoint
    assert checkpoint.agreed(options, world).checkpoint is None
    assert "no checkpoint is written: n2 cannot see" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("--checkpoint", "mine"), ("--checkpoint-every", "5")])
def test_but_not_where_somebody_has_asked_for_one(
    tmp_path: Path, world: Group, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="the hosts do not share the checkpoint's folder"):
        checkpoint.agreed(of_a_run(tmp_path, monkeypatch, *words), world)
    assert not list(tmp_path.iterdir())
