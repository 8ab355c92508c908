"""Checkpoints in one file: saved by rank 0, loaded to the device of each rank, converted to folders and back."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_saver
from torch.optim import AdamW, Optimizer

import hpc_kit
from hpc_kit.errors import SpecError
from hpc_kit.runtime.restart.checkpoint import (
    MOMENTS,
    Checkpointer,
    CheckpointInfo,
    collect_state,
    load_state,
    publish,
    read_info,
)
from hpc_kit.runtime.restart.checkpoint_file import main
from tests.conftest import ROOT

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
            text = str(error).partition(chr(10))[0]
    os.write(1, f"{step}: {text}\\n".encode())
"""


def test_rank_0_saves_and_all_ranks_wait_and_load(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(RANKS))
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py", str(tmp_path / "c.pt")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    # Rank 0's value counts, and its failure is known to all.
    assert sorted(done.stdout.splitlines()) == ["0: rank 0 cannot go on", "0: the checkpoint cannot be written"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no checkpoint"),
        (b"no zip", "not a checkpoint in one file"),
        ([1], "not a checkpoint in one file"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: object, words: str) -> None:
    path = tmp_path / "c.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(SpecError, match=words):
        hpc_kit.load_checkpoint(path, model=Model())


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=nn.Linear(2, 2))
    with pytest.raises(SpecError, match="the checkpoint belongs to another model"):
        hpc_kit.load_checkpoint(tmp_path / "c.pt", model=nn.Linear(2, 3))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_file_becomes_a_folder_and_a_file_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = trained()
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=model, optimizer=optimizer, step=2)
    assert main([str(tmp_path / "c.pt"), str(tmp_path / "folder")]) == 0
    assert read_info(tmp_path / "folder")["step"] == 2
    state = {"model.first.weight": torch.empty(4, 3), "exp_avg_sq.first.bias": torch.empty(4)}
    load_state(tmp_path / "folder", state)
    assert torch.equal(state["model.first.weight"], model.first.weight.detach())
    assert torch.equal(state["exp_avg_sq.first.bias"], optimizer.state[model.first.bias]["exp_avg_sq"])

    assert main([str(tmp_path / "folder"), str(tmp_path / "again.pt")]) == 0
    again, its = trained(1, lr=1.0)
    assert hpc_kit.load_checkpoint(tmp_path / "again.pt", model=again, optimizer=its) == {"step": 2}
    # With the buffers of batch normalization.
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())
    assert all(map(torch.equal, moments(its), moments(optimizer)))
    assert its.param_groups[0]["lr"] == 0.01

    assert main([str(tmp_path / "folder"), str(tmp_path / "again.pt")]) == 2
    assert "the target of the conversion exists" in capsys.readouterr().err


def test_a_folder_of_a_checkpointer_becomes_a_file(tmp_path: Path, world_of_one: None) -> None:
    model = nn.Linear(3, 4)
    optimizer = AdamW(model.parameters())
    model(torch.rand(2, 3)).sum().backward()
    optimizer.step()
    saver = Checkpointer(tmp_path / "folder", options={"lr": "0.5"})
    saver.restore(model=model, optimizer=optimizer)
    saver.save(7)
    hpc_kit.convert_checkpoint(tmp_path / "folder", tmp_path / "c.pt")
    again = nn.Linear(3, 4)
    its = AdamW(again.parameters())
    assert hpc_kit.load_checkpoint(tmp_path / "c.pt", model=again, optimizer=its) == {"step": 7}
    assert torch.equal(again.weight, model.weight)
    assert its.param_groups[0]["lr"] == 0.5


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


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_folder_in_another_order_keeps_the_moments_of_each_parameter(tmp_path: Path) -> None:
    """Several ranks write the parameters of DistributedDataParallel in turns."""
    model, optimizer = trained_tied()
    names = [name for name, _ in model.named_parameters()]
    saved = collect_state(model, optimizer)
    order = [f"{kind}.{name}" for kind in ("model", *MOMENTS) for name in names[1::2] + names[::2]]
    draft = tmp_path / "draft"
    state_dict_saver.save({name: saved[name] for name in order}, checkpoint_id=draft, no_dist=True)
    publish(draft, tmp_path / "folder", CheckpointInfo(step=1, shape={}, options={}, files={}, checksums={}, run=""))
    hpc_kit.convert_checkpoint(tmp_path / "folder", tmp_path / "c.pt")
    assert torch.load(tmp_path / "c.pt")["parameters"] == names[1::2] + names[::2]
    again, its = trained_tied()
    hpc_kit.load_checkpoint(tmp_path / "c.pt", model=again, optimizer=its)
    assert all(map(torch.equal, moments(its), moments(optimizer)))
    # A tied weight is in the folder once.
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())
    assert again.head.weight is again.layers[0].weight


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_optimizer_in_an_order_of_its_own_is_converted_by_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = AdamW([*model[1].parameters(), *model[0].parameters()])
    model(torch.rand(2, 3)).square().sum().backward()
    optimizer.step()
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=model, optimizer=optimizer)
    hpc_kit.convert_checkpoint(tmp_path / "c.pt", tmp_path / "folder")
    state = {"exp_avg.1.weight": torch.empty(3, 3)}
    load_state(tmp_path / "folder", state)
    assert torch.equal(state["exp_avg.1.weight"], optimizer.state[next(model[1].parameters())]["exp_avg"])


def test_both_names_of_a_tied_weight_survive_the_conversion(tmp_path: Path) -> None:
    model, optimizer = trained_tied()
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=model, optimizer=optimizer)
    hpc_kit.convert_checkpoint(tmp_path / "c.pt", tmp_path / "folder")
    hpc_kit.convert_checkpoint(tmp_path / "folder", tmp_path / "again.pt")
    again, its = trained_tied()
    hpc_kit.load_checkpoint(tmp_path / "again.pt", model=again, optimizer=its)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())
    assert all(map(torch.equal, moments(its), moments(optimizer)))


def test_the_moments_of_another_model_are_refused(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=model, optimizer=AdamW(model["a"].parameters()))
    with pytest.raises(SpecError, match=r"only one of the two optimizers has a\.weight"):
        hpc_kit.load_checkpoint(tmp_path / "c.pt", model=model, optimizer=AdamW(model["b"].parameters()))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), "only the state of AdamW"),
        (lambda model: torch.optim.SGD(model.parameters(), lr=0.1), "only the state of AdamW"),
        (lambda model: AdamW(model.parameters(), amsgrad=True), "only the state of AdamW"),
        (
            lambda model: AdamW([{"params": model.weight, "weight_decay": 0.5}, {"params": model.bias}]),
            "weight_decay of 2 groups",
        ),
    ],
    ids=["momentum", "sgd", "amsgrad", "groups"],
)
def test_an_optimizer_that_a_folder_cannot_contain_is_refused(
    make: Callable[[nn.Linear], Optimizer], words: str, tmp_path: Path
) -> None:
    model = nn.Linear(2, 2)
    optimizer = make(model)
    model(torch.rand(2, 2)).sum().backward()
    optimizer.step()
    hpc_kit.save_checkpoint(tmp_path / "c.pt", model=model, optimizer=optimizer)
    with pytest.raises(SpecError, match=words):
        hpc_kit.convert_checkpoint(tmp_path / "c.pt", tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]


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


@pytest.fixture
def world_of_one() -> object:
    with hpc_kit.distributed(backend="gloo"):
        yield


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
