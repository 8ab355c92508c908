"""Checkpoints in one file: saved by rank 0, loaded to the device of each rank, converted to folders and back."""

from __future__ import annotations

import errno
import fcntl
import io
import itertools
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_saver
from torch.optim import AdamW, Optimizer

import hpc_kit
from hpc_kit.errors import SpecError
from hpc_kit.runtime.restart import checkpoint_file
from hpc_kit.runtime.restart.checkpoint_file import main
from hpc_kit.runtime.restart.checkpoint_folder import CheckpointInfo, draft_of, publish
from hpc_kit.runtime.restart.training_state import TrainingState
from tests.conftest import ROOT
from tests.preloaded import Preloaded
from tests.runtime.launches import Step

TRAIN = ROOT / "jobs" / "train"


class Model(nn.Module):
    """A model with a buffer, as batch normalization has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)


def trained(steps: int = 2, lr: float = 0.01) -> tuple[Model, AdamW]:
    model = Model()
    optimizer = AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model.norm(model.first(torch.rand(5, 3))).square().sum().backward()
        optimizer.step()
    return model, optimizer


def moments(optimizer: AdamW) -> list[torch.Tensor]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [optimizer.state[each][name] for each in parameters for name in ("step", "exp_avg", "exp_avg_sq")]


def test_a_model_and_its_optimizer_continue_where_they_were_saved(tmp_path: Path) -> None:
    model, optimizer = trained()
    hpc_kit.save_checkpoint(tmp_path / "new" / "c.pt", model=model, optimizer=optimizer, step=2, note="first")
    again, its = trained(1, lr=1.0)
    assert hpc_kit.load_checkpoint(tmp_path / "new" / "c.pt", model=again, optimizer=its) == {
        "step": 2,
        "note": "first",
    }
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())
    assert all(map(torch.equal, moments(its), moments(optimizer)))
    assert its.param_groups[0]["lr"] == 0.01
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["c.pt"]


def test_the_tensors_are_loaded_to_the_device_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=trained()[0])
    devices = []
    load = torch.load

    def observed(path: Path, *, map_location: object, weights_only: bool) -> object:
        devices.append(map_location)
        return load(path, map_location="cpu", weights_only=weights_only)

    monkeypatch.setattr(torch, "load", observed)
    hpc_kit.load_checkpoint(tmp_path / "c.pt", model=Model())
    hpc_kit.load_checkpoint(tmp_path / "c.pt", model=Model(), device="cuda:3")
    assert devices == [torch.device("cpu"), "cuda:3"]


RANKS = """
    import os, sys, time, torch, hpc_kit
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    with hpc_kit.distributed(backend="gloo") as world:
        model = DistributedDataParallel(nn.Linear(2, 2))
        if world.is_main:
            save = torch.save
            torch.save = lambda *args: (time.sleep(1), save(*args))  # rank 1 has to wait for a slow disk
        hpc_kit.save_checkpoint(sys.argv[1], model=model, step=world.rank)
        assert os.path.exists(sys.argv[1])
        step = hpc_kit.load_checkpoint(sys.argv[1], model=model)["step"]
        assert list(torch.load(sys.argv[1])["model"]) == ["weight", "bias"]
        try:
            hpc_kit.save_checkpoint("/proc/c.pt", model=model)
        except hpc_kit.HpcKitError as error:
            texts = [str(error).partition(chr(10))[0]]
        if world.is_main:
            torch.save = lambda *args: 1 / 0
        try:
            hpc_kit.save_checkpoint(sys.argv[1], model=model)
        except (ZeroDivisionError, hpc_kit.HpcKitError) as error:
            texts += str(error).splitlines()[:2]
    os.write(1, f"{step}: {', '.join(texts)}\\n".encode())
"""


def test_rank_0_saves_and_all_ranks_wait_and_load(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(RANKS))
    ranks = [
        Preloaded(["train.py", str(tmp_path / "c.pt")], {**os.environ, **environ}, tmp_path, tmp_path / f"rank-{rank}")
        for rank, environ in enumerate(Step.of(2, hosts=("127.0.0.1",), job=str(os.getpid())).environs())
    ]
    texts = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.wait() for rank in ranks] == [0, 0], texts
    # Rank 0's value counts, and its failure is known to all, whatever its type.
    main_rank, other = (out.strip() for out, _ in texts)
    assert re.fullmatch(
        r"0: rank 0 cannot go on, rank 0 cannot go on, +found +\S+: ZeroDivisionError: division by zero", other
    )
    assert main_rank == "0: the checkpoint cannot be written, division by zero"


def test_two_trainings_that_save_to_one_path_write_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, path, errors = torch.save, tmp_path / "model.pt", []

    def save_slowly(state: object, file: IO[bytes]) -> None:
        data = io.BytesIO()
        save(state, data)
        for part in (data.getvalue()[:500], data.getvalue()[500:]):
            file.write(part)
            file.flush()
            time.sleep(0.05)

    def train(fill: float) -> None:
        model = nn.Linear(1000, 1)
        nn.init.constant_(model.weight, fill)
        try:
            for _ in range(5):
                hpc_kit.save_checkpoint(path, model=model)
                assert len(torch.load(path)["model"]["weight"].unique()) == 1
        except Exception as error:  # noqa: BLE001 - shown below
            errors.append(error)

    monkeypatch.setattr(torch, "save", save_slowly)
    threads = [threading.Thread(target=train, args=[fill]) for fill in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no checkpoint"),
        ("x" * 300, "File name too long"),
        (b"no zip", "not a checkpoint in one file"),
        ([1], "not a checkpoint in one file"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: object, words: str) -> None:
    path = tmp_path / (content if isinstance(content, str) else "c.pt")
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, list):
        torch.save(content, path)
    with pytest.raises(SpecError, match=words):
        hpc_kit.load_checkpoint(path, model=Model())


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=nn.Linear(2, 2))
    with pytest.raises(SpecError, match="the checkpoint belongs to another model"):
        hpc_kit.load_checkpoint(tmp_path / "c.pt", model=nn.Linear(2, 3))


def restore_into(folder: Path, model: nn.Module, optimizer: Optimizer) -> int:
    saver = hpc_kit.Checkpointer(None, resume=folder, report=str)
    try:
        return saver.restore(model=model, optimizer=optimizer)
    finally:
        saver.close()


def save_folder(folder: Path, model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    saver = hpc_kit.Checkpointer(folder, report=str)
    saver.restore(model=model, optimizer=optimizer)
    saver.save(steps - 1)
    saver.close()


def test_a_file_becomes_a_folder_and_a_file_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = trained()
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=model, optimizer=optimizer, step=2)
    assert main([str(tmp_path / "c.pt"), str(tmp_path / "folder")]) == 0
    resumed, its = trained(1, lr=1.0)
    assert restore_into(tmp_path / "folder", resumed, its) == 2
    # With the buffers of batch normalization.
    assert all(torch.equal(resumed.state_dict()[name], value) for name, value in model.state_dict().items())
    assert all(map(torch.equal, moments(its), moments(optimizer)))
    assert its.param_groups[0]["lr"] == 0.01

    assert main([str(tmp_path / "folder"), str(tmp_path / "again.pt")]) == 0
    again, its = trained(1, lr=1.0)
    assert hpc_kit.load_checkpoint(tmp_path / "again.pt", model=again, optimizer=its) == {"step": 2}
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())
    assert all(map(torch.equal, moments(its), moments(optimizer)))
    assert its.param_groups[0]["lr"] == 0.01

    assert main([str(tmp_path / "folder"), str(tmp_path / "again.pt")]) == 2
    assert "the target of the conversion exists" in capsys.readouterr().err


def test_the_newest_checkpoint_of_a_folder_becomes_a_file(tmp_path: Path) -> None:
    model, optimizer = trained(lr=0.5)
    for steps in (3, 7):
        save_folder(tmp_path / "folder", model, optimizer, steps)
    hpc_kit.convert_checkpoint(tmp_path / "folder", tmp_path / "c.pt")
    again, its = trained(1)
    assert hpc_kit.load_checkpoint(tmp_path / "c.pt", model=again, optimizer=its) == {"step": 7}
    assert torch.equal(again.first.weight, model.first.weight)
    assert its.param_groups[0]["lr"] == 0.5


def test_a_damaged_folder_is_not_converted(tmp_path: Path) -> None:
    save_folder(tmp_path / "folder", *trained(), 3)
    file = next((tmp_path / "folder" / "step-3").glob("*.distcp"))
    file.write_bytes(b"?" + file.read_bytes()[1:])
    with pytest.raises(SpecError, match="the checkpoint is damaged"):
        hpc_kit.convert_checkpoint(tmp_path / "folder", tmp_path / "c.pt")
    assert not (tmp_path / "c.pt").exists()


class Tied(nn.Module):
    """Linear layers of equal shapes, and one more that has the weight of the first."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Linear(3, 3)
        self.layers = nn.Sequential(first, *(nn.Linear(3, 3) for _ in range(3)))
        self.head = nn.Linear(3, 3, bias=False)
        self.head.weight = first.weight


def trained_tied() -> tuple[Tied, AdamW]:
    model = Tied()
    optimizer = AdamW(model.parameters())
    model.head(model.layers(torch.rand(2, 3))).square().sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_folder_in_another_order_keeps_the_moments_of_each_parameter(tmp_path: Path) -> None:
    """Several ranks write their parameters in turns."""
    model, optimizer = trained_tied()
    save_folder(tmp_path / "saved", model, optimizer, 1)
    saved = hpc_kit.Checkpointer(None, resume=tmp_path / "saved", report=str)
    saved.restore(model=model, optimizer=optimizer)
    state = TrainingState({"model": model, "optimizer": optimizer}, 0).collect()
    draft, names = tmp_path / "draft", list(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state_dict_saver.save({name: state[name] for name in names[1::2] + names[::2]}, checkpoint_id=draft)
    publish(draft, tmp_path / "folder", CheckpointInfo(step=1))
    hpc_kit.convert_checkpoint(tmp_path / "folder", tmp_path / "c.pt")
    again, its = trained_tied()
    hpc_kit.load_checkpoint(tmp_path / "c.pt", model=again, optimizer=its)
    assert all(map(torch.equal, moments(its), moments(optimizer)))
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())
    assert again.head.weight is again.layers[0].weight


def test_an_optimizer_in_an_order_of_its_own_is_converted_by_names(tmp_path: Path) -> None:
    def make() -> tuple[nn.Sequential, AdamW]:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        groups: list[dict[str, Any]] = [
            {"params": model[1].parameters(), "weight_decay": 0.5},
            {"params": model[0].parameters()},
        ]
        return model, AdamW(groups)

    model, optimizer = make()
    model(torch.rand(2, 3)).square().sum().backward()
    optimizer.step()
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=model, optimizer=optimizer)
    hpc_kit.convert_checkpoint(tmp_path / "c.pt", tmp_path / "folder")
    hpc_kit.convert_checkpoint(tmp_path / "folder", tmp_path / "again.pt")
    resumed, its = make()
    assert restore_into(tmp_path / "folder", resumed, its) == 1  # counted by the optimizer
    assert all(map(torch.equal, moments(its), moments(optimizer)))
    loaded, its = make()
    hpc_kit.load_checkpoint(tmp_path / "again.pt", model=loaded, optimizer=its)
    assert all(map(torch.equal, moments(its), moments(optimizer)))
    assert [group["weight_decay"] for group in its.param_groups] == [0.5, 0.01]


def test_both_names_of_a_tied_weight_survive_the_conversion(tmp_path: Path) -> None:
    model, optimizer = trained_tied()
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=model, optimizer=optimizer)
    hpc_kit.convert_checkpoint(tmp_path / "c.pt", tmp_path / "folder")
    hpc_kit.convert_checkpoint(tmp_path / "folder", tmp_path / "again.pt")
    again, its = trained_tied()
    hpc_kit.load_checkpoint(tmp_path / "again.pt", model=again, optimizer=its)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())
    assert all(map(torch.equal, moments(its), moments(optimizer)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, in torch.compile
def test_a_compiled_model_has_the_names_of_the_plain_one(tmp_path: Path) -> None:
    model, optimizer = trained()
    compiled: Any = torch.compile(model)
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=compiled, optimizer=optimizer)
    assert list(torch.load(tmp_path / "c.pt")["model"]) == list(model.state_dict())
    parameters = [name for name, _ in compiled.named_parameters()]
    torch.save(
        {"model": compiled.state_dict(), "optimizer": optimizer.state_dict(), "parameters": parameters},
        tmp_path / "names-of-torch.pt",
    )
    for file in ("c.pt", "names-of-torch.pt"):
        folder = tmp_path / f"folder of {file}"
        hpc_kit.convert_checkpoint(tmp_path / file, folder)
        for wrap, is_file in itertools.product((torch.compile, nn.Module.eval), (True, False)):
            again, its = trained(1)
            if is_file:
                hpc_kit.load_checkpoint(tmp_path / file, model=wrap(again), optimizer=its)
            else:
                restore_into(folder, wrap(again), its)
            assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())
            assert all(map(torch.equal, moments(its), moments(optimizer)))


def test_a_path_below_a_file_is_an_error_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=r"the checkpoint cannot be written(.|\n)*File exists"):
        hpc_kit.save_checkpoint(tmp_path / "file" / "c.pt", model=Model())


def test_the_moments_of_another_model_are_refused(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=model, optimizer=AdamW(model["a"].parameters()))
    with pytest.raises(SpecError, match=r"only one of the two optimizers has a\.weight"):
        hpc_kit.load_checkpoint(tmp_path / "c.pt", model=model, optimizer=AdamW(model["b"].parameters()))


@pytest.mark.parametrize("make", [
    lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    lambda model: AdamW(model.parameters(), amsgrad=True),
], ids=["momentum", "sgd", "amsgrad"])  # fmt: skip
def test_any_optimizer_is_converted(make: Callable[[nn.Module], Optimizer], tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = make(model)
    model(torch.rand(2, 2)).sum().backward()
    optimizer.step()
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=model, optimizer=optimizer)
    hpc_kit.convert_checkpoint(tmp_path / "c.pt", tmp_path / "folder")
    hpc_kit.convert_checkpoint(tmp_path / "folder", tmp_path / "again.pt")
    first, again = torch.load(tmp_path / "c.pt")["optimizer"], torch.load(tmp_path / "again.pt")["optimizer"]
    assert again["param_groups"] == first["param_groups"]
    assert again["state"].keys() == first["state"].keys()
    for number, values in first["state"].items():
        assert all(
            torch.equal(again["state"][number][name], value) for name, value in values.items() if value is not None
        )


def test_a_failed_conversion_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = trained()
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=model, optimizer=optimizer)
    hpc_kit.convert_checkpoint(tmp_path / "c.pt", tmp_path / "folder")

    def fail(_state: object, file: IO[bytes]) -> None:
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(SpecError, match="No space left on device"):
        hpc_kit.convert_checkpoint(tmp_path / "folder", tmp_path / "again.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.pt", "folder"]


def lines(*words: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=TRAIN, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_plain_program_continues_and_its_file_continues_under_a_shipped_program(tmp_path: Path) -> None:
    few = ("--data", ROOT / "hpc_kit" / "runtime", "--global-batch", 8)
    straight = lines("plain_ddp.py", *few, "--steps", 6)[-1]
    lines("plain_ddp.py", *few, "--steps", 4, "--checkpoint", tmp_path / "c.pt")
    hpc_kit.convert_checkpoint(tmp_path / "c.pt", tmp_path / "folder")
    hpc_kit.convert_checkpoint(tmp_path / "folder", tmp_path / "again.pt")
    for name in ("c.pt", "again.pt"):
        assert lines("plain_ddp.py", *few, "--steps", 6, "--checkpoint", tmp_path / name)[-1] == straight
    resumed = lines("ddp.py", *few, "--steps", 6, "--resume", tmp_path / "folder")
    assert resumed[0] == f"resume  step 4 of {tmp_path}/folder"


def test_a_file_that_another_job_does_not_finish_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_file, "_LOCK_SECONDS", 0.3)
    draft = draft_of(tmp_path / "model.pt")
    with draft.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SpecError, match="the checkpoint cannot be written") as caught:
            hpc_kit.save_checkpoint(tmp_path / "model.pt", model=nn.Linear(2, 2))
    assert "another job has been writing" in str(caught.value.found)
    hpc_kit.save_checkpoint(tmp_path / "model.pt", model=nn.Linear(2, 2))
