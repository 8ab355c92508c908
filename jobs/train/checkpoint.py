"""A checkpoint that any layout can read: every parameter and its moments under the name they have in the whole model.

torch.distributed.checkpoint writes what each rank holds, and reads what each rank needs, cut as it needs it. The folder
gets its name when all of it is on the disk: there is the old checkpoint or the new one, never half of one.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from about import About, checksum, compare_checksums, compare_shapes, whole
from hpc_kit.errors import SpecError
from hpc_kit.runtime.first_failure import is_victim
from lock import locked
from options import Options
from ranks import gather, together
from report import say
from restart import ABOUT, identity, is_restart, moved
from unwritable import unwritable

if TYPE_CHECKING:
    from hpc_kit.runtime import Group

MOMENTS = ("exp_avg", "exp_avg_sq")


def begin(options: Options, world: Group) -> int:
    """Find out now, not after the training, that a checkpoint cannot be read or written; return the first step."""
    if options.checkpoint and world.is_main:
        prepare(options.checkpoint)
    if not options.resume:
        if options.checkpoint and is_restart(os.environ):
            there = shown(options.checkpoint)
            say(world, f"note    started again, from the beginning: {there} is no checkpoint of this run")
        return 0
    about = whole(options.resume)
    compare_shapes(options.resume, about["shape"], asdict(options.model))
    compare_checksums(options.resume, about, world.rank, world.world_size)
    if about["step"] >= options.steps:
        raise SpecError(
            "the checkpoint leaves nothing to train",
            found=f"--resume {options.resume} is at step {about['step']}; --steps {options.steps}",
            remedy=f"--steps {2 * about['step']}: it counts from the first start",
        )
    say(world, f"resume  step {about['step']} of {shown(options.resume)}")
    theirs, ours = about.get("options", {}), deciding(options)
    if changed := [name for name in ours if theirs.get(name, ours[name]) != ours[name]]:
        was = ", ".join(as_given(name, theirs[name]) for name in changed)
        say(world, f"note    the checkpoint was made with {was}: an unbroken training had gone on differently")
    return about["step"]


def agreed(options: Options, world: Group) -> Options:
    """The options; without a checkpoint where the hosts do not share its folder, and nobody has asked for one.

    Raises:
        SpecError: somebody has: what each host keeps for itself is no checkpoint.
    """
    if not options.checkpoint:
        return options
    # A name that nobody has looked for yet: a network's file system may remember for a while that it was not there.
    mark = options.checkpoint.with_name(f".{options.checkpoint.name}.{gather(os.urandom(4).hex())[0]}")
    try:
        together(lambda: touch(mark) if world.is_main else None)
        seen = gather((socket.gethostname(), mark.exists()))
    finally:
        if world.is_main:
            mark.unlink(missing_ok=True)
    apart = sorted({host for host, is_there in seen if not is_there})
    if not apart:
        return options
    if options.asks_for_checkpoint:
        found = f"--checkpoint {options.checkpoint}: what rank 0 puts there, {', '.join(apart)} cannot see"
        raise SpecError(
            "the hosts do not share the checkpoint's folder", found=found, remedy="one that all of them see"
        )
    say(world, f"note    no checkpoint is written: {', '.join(apart)} cannot see {shown(options.checkpoint)} of rank 0")
    return replace(options, checkpoint=None)


@contextmanager
def held(options: Options, world: Group) -> Iterator[None]:
    """While this training lasts no other writes the same checkpoint.

    Raises:
        SpecError: one does.
    """
    with ExitStack() as stack:
        if path := options.checkpoint:
            together(lambda: stack.enter_context(locked(path)) if world.is_main else None)
        yield


def touch(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise unwritable(path, error.strerror or str(error)) from None


def deciding(options: Options) -> dict[str, str]:
    """By name, what a training that goes on must have in common with the one before, or its losses are others."""
    names = ("steps", "global_batch", "seed", "data", "lr", "warmup", "weight_decay", "clip", "bf16")
    return {name: str(getattr(options, name)) for name in names}


def as_given(name: str, value: str) -> str:
    """An option as it stood on the command line, or that it did not."""
    option = f"--{name.replace('_', '-')}"
    return {"True": option, "False": f"{option} not given", "None": f"{option} not given"}.get(
        value, f"{option} {value}"
    )


def load(path: Path, model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Every rank reads what it needs.

    Raises:
        SpecError: a file has the right size, but not what belongs in it.
    """
    from torch.distributed import checkpoint as dcp  # here and below: it takes a second to import

    try:
        dcp.state_dict_loader.load(state_of(model, optimizer, step=step), checkpoint_id=path)
    except torch.OutOfMemoryError:
        raise  # a RuntimeError, but no fault of the files
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        found = f"--resume {path}: {last_line(error)}"
        raise SpecError(
            "the checkpoint cannot be read", found=found, remedy="an earlier one: its files are damaged"
        ) from error


def write(options: Options, world: Group, model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """All ranks write what they have after `step` steps."""
    if options.checkpoint:
        save(options.checkpoint, world, options, state_of(model, optimizer), step)
        say(world, f"saved   {shown(options.checkpoint)}" + (f", step {step}" if step < options.steps else ""))


def shown(path: Path) -> Path:
    """As one would write it here."""
    return path.relative_to(here) if path.is_relative_to(here := Path.cwd()) else path


def inner(optimizer: Optimizer) -> Optimizer:
    """The optimizer itself: ZeroRedundancyOptimizer has one inside, for this rank's part of the parameters."""
    return getattr(optimizer, "optim", optimizer)


def state_of(model: nn.Module, optimizer: Optimizer, *, step: int | None = None) -> dict[str, Tensor]:
    """Parameters and moments that this rank holds, by name: the tensors themselves, to be written or filled.

    Args:
        model: This rank's part of the model.
        optimizer: AdamW, over all or some of those parameters.
        step: How many steps the moments to be filled will have seen; None: they are there.
    """
    own = inner(optimizer)
    names = {parameter: name for name, parameter in model.named_parameters()}
    state: dict[str, Tensor] = {f"model.{name}": parameter.detach() for parameter, name in names.items()}
    for parameter in (parameter for group in own.param_groups for parameter in group["params"]):
        moments = own.state[parameter]
        if step is not None:
            empty = getattr(own, "empty_moments", empty_moments)
            made = empty(parameter)
            moments.update(made, step=torch.tensor(float(step), device=made[MOMENTS[0]].device))
        state |= {f"{moment}.{names[parameter]}": moments[moment] for moment in MOMENTS}
    return state


def empty_moments(parameter: Tensor) -> dict[str, Tensor]:
    """As AdamW makes them in its first step."""
    return {moment: torch.zeros_like(parameter.detach()) for moment in MOMENTS}


def prepare(path: Path) -> None:
    """Make the folder that the checkpoint goes to, and see that it takes one.

    Raises:
        SpecError: it does not.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error.strerror or str(error)) from None
    if path.exists() and not (path / ABOUT).is_file():
        raise unwritable(path, "something else is there")
    if not os.access(path.parent, os.W_OK):
        raise unwritable(path, f"{path.parent} is not yours to write in")


def save(path: Path, world: Group, options: Options, state: dict[str, Tensor], step: int) -> None:
    """Write beside it, wait for the disk, rename: who is killed here leaves the old checkpoint.

    Raises:
        SpecError: the disk is full, or gone.
    """
    from torch.distributed import checkpoint as dcp

    draft = path.with_name(f".{path.name}.part")  # always this name: the next attempt takes away what a kill left
    if world.is_main:
        shutil.rmtree(draft, ignore_errors=True)
    world.barrier()
    try:
        dcp.state_dict_saver.save(state, checkpoint_id=draft)
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        if isinstance(error, RuntimeError) and is_victim(error):
            raise  # no fault of the disk: another rank did not come, or has gone
        shutil.rmtree(draft, ignore_errors=True)
        raise unwritable(path, last_line(error)) from error
    checksums = gather(together(lambda: checksums_of_mine(draft, world.rank)))
    try:
        if world.is_main:
            put(draft, path, options, step, {name: value for each in checksums for name, value in each.items()})
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise unwritable(path, last_line(error)) from error


def checksums_of_mine(draft: Path, rank: int) -> dict[str, int]:
    """Of the files that this rank wrote: another host may see those of others later."""
    mine = [*draft.glob(f"__{rank}_*"), *([draft / ".metadata"] if rank == 0 else [])]
    try:
        return {file.name: checksum(file) for file in mine}
    except OSError as error:
        raise unwritable(draft, error.strerror or str(error)) from None


def put(draft: Path, path: Path, options: Options, step: int, checksums: dict[str, int]) -> None:
    """Give a folder that is all there its name; `about.json` is its last file."""
    sizes = {file.name: file.stat().st_size for file in sorted(draft.iterdir())}
    about = About(
        step=step,
        shape=asdict(options.model),
        options=deciding(options),
        files=sizes,
        checksums=checksums,
        run=identity(os.environ),
    )
    with (draft / ABOUT).open("w") as file:
        json.dump(about, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    old = moved(path)
    if path.exists():  # else a kill has left nothing but the old one
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    draft.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def last_line(error: BaseException) -> str:
    """Its own words: torch puts those of all ranks below a heading."""
    return str(error).strip().rpartition("\n")[2] or type(error).__name__
