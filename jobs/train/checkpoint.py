"""One file: either the old checkpoint or the new one, never half of one. Every rank reads it, rank 0 writes it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpc_kit.errors import SpecError
from options import Options
from report import say

if TYPE_CHECKING:
    from hpc_kit.runtime import Group


class Checkpoint(TypedDict):
    """Tensors and numbers only, so reading it back runs no code that somebody put into the file."""

    step: int
    shape: dict[str, int]
    model: dict[str, Tensor]
    optimizer: dict[str, object]


def begin(options: Options, world: Group, model: nn.Module, optimizer: Optimizer) -> int:
    """Find out now, not after the training, that a checkpoint cannot be read or written; return the first step."""
    if options.checkpoint and world.is_main:
        prepare(options.checkpoint)
    if not options.resume:
        return 0
    saved = load(options.resume, world.device)
    compare_shapes(options.resume, saved["shape"], asdict(options.model))
    if saved["step"] >= options.steps:
        raise SpecError(
            "the checkpoint leaves nothing to train",
            found=f"--resume {options.resume} is at step {saved['step']}; --steps {options.steps}",
            remedy=f"--steps {2 * saved['step']}: it counts from the first start",
        )
    model.load_state_dict(saved["model"])
    # The moments come from the file, the settings from this command line.
    optimizer.load_state_dict({**saved["optimizer"], "param_groups": optimizer.state_dict()["param_groups"]})
    return saved["step"]


def end(options: Options, world: Group, model: nn.Module, optimizer: Optimizer) -> None:
    """Rank 0 writes what all of them have."""
    if options.checkpoint and world.is_main:
        save(
            options.checkpoint,
            Checkpoint(
                step=options.steps,
                shape=asdict(options.model),
                model=model.state_dict(),
                optimizer=optimizer.state_dict(),
            ),
        )
        say(world, f"saved   {options.checkpoint}")


def prepare(path: Path) -> None:
    """Make the folder of the checkpoint, and see that it takes a file.

    Raises:
        SpecError: it does not.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error.strerror or str(error)) from None
    if path.is_dir():
        raise unwritable(path, "it is a folder")
    if not os.access(path.parent, os.W_OK):
        raise unwritable(path, f"{path.parent} is not yours to write in")


def unwritable(path: Path, trouble: str) -> SpecError:
    found, remedy = f"--checkpoint {path}: {trouble}", "name a file on a disk with room, in a folder of your own"
    return SpecError("the checkpoint cannot be written", found=found, remedy=remedy)


def save(path: Path, content: Checkpoint) -> None:
    """Write beside it, wait for the disk, rename: who is killed here leaves the old checkpoint as it was.

    Raises:
        SpecError: the disk is full, or gone.
    """
    draft = path.with_name(f".{path.name}.part")  # always this name: the next attempt writes over what a kill left
    try:
        with draft.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError on a full disk
        draft.unlink(missing_ok=True)
        raise unwritable(path, str(error).partition("\n")[0]) from error


def load(path: Path, device: torch.device) -> Checkpoint:
    """Read a whole checkpoint.

    Raises:
        SpecError: it is missing, cut short, or no checkpoint at all.
    """
    trouble = ""
    try:
        # Without map_location every rank would load onto the GPU that rank 0 saved from.
        content = torch.load(path, map_location=device, weights_only=True)
        if missing := Checkpoint.__required_keys__ - set(content if isinstance(content, dict) else ()):
            trouble = f"no {', '.join(sorted(missing))} in it"
    except FileNotFoundError:
        found, remedy = f"--resume {path}", "a path that every node sees"
        raise SpecError("there is no checkpoint", found=found, remedy=remedy) from None
    except Exception as error:  # noqa: BLE001  torch's reader fails in a dozen ways on a file that is not whole
        trouble = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if trouble:
        raise SpecError(
            "this is not a whole checkpoint",
            found=f"--resume {path}, {path.stat().st_size} bytes: {trouble}",
            remedy="an earlier one: this was cut short, or another program wrote it",
        )
    return cast("Checkpoint", content)


def compare_shapes(path: Path, theirs: dict[str, int], ours: dict[str, int]) -> None:
    different = [name for name in ours if theirs.get(name) != ours[name]]
    if different:
        raise SpecError(
            "the checkpoint is another model's",
            found=", ".join(f"{name} {theirs.get(name)} in {path}, {ours[name]} asked for" for name in different),
            remedy=" ".join(f"--{name} {theirs.get(name)}" for name in different),
        )
