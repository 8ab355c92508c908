"""Checkpoints in one file: rank 0 saves, all ranks wait, and each rank loads to its own device.

The file contains `{"model": ..., "optimizer": ..., ...}` with the state dictionaries of torch. `convert_checkpoint`
changes it into the folder of a `Checkpointer`, and back; so does `python -m hpc_kit.runtime.restart.checkpoint_file
SOURCE TARGET`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import distributed as dist
from torch import nn
from torch.optim import Optimizer

from hpc_kit.errors import SpecError
from hpc_kit.runtime.restart.all_ranks import run_on_all
from hpc_kit.runtime.restart.attempts import write_error
from hpc_kit.runtime.restart.checkpoint_folder import (
    CheckpointInfo,
    compute_own_checksums,
    damage_error,
    draft_of,
    list_checkpoints,
    publish,
    verify_checksums,
)
from hpc_kit.runtime.restart.checkpoint_writer import last_line
from hpc_kit.runtime.restart.training_state import OBJECT, decode, module_tensors, optimizer_tensors, plain_name, unwrap

_STATE, _VALUES, _GROUP = "optimizer.state.model.", "optimizer.values.model.", "optimizer.group.model."
"""Prefixes of the names in the folder of a `Checkpointer`, see `training_state`."""

_LOCK_SECONDS, _LOCK_PAUSE = 120.0, 0.1
"""Seconds to wait while another job writes the same file, and between two looks."""


def save_checkpoint(
    path: Path | str, *, model: nn.Module, optimizer: Optimizer | None = None, **values: object
) -> None:
    """Write a checkpoint to one file on rank 0, and wait on all ranks until it is complete.

    A kill leaves the previous file. All ranks must make the call. Without a process group, this process writes.

    Args:
        path: The file, such as `model.pt`.
        model: The model; of DistributedDataParallel and torch.compile, the module inside is saved.
        optimizer: Its optimizer.
        values: Further values, such as `step=100`: numbers, texts, tensors, and lists and dictionaries of them.

    Raises:
        SpecError: The file cannot be written, on every rank.
    """
    path = Path(path)

    def write() -> None:
        if dist.is_initialized() and dist.get_rank():
            return
        state = {"model": _rename(unwrap(model).state_dict()), "parameters": _numbered_names(model, optimizer)}
        if optimizer is not None:
            state["optimizer"] = optimizer.state_dict()
        _write({**state, **values}, path)

    run_on_all(write)


def load_checkpoint(
    path: Path | str, *, model: nn.Module, optimizer: Optimizer | None = None, device: torch.device | str | None = None
) -> dict[str, Any]:
    """Load a checkpoint from one file into the model and the optimizer of each rank.

    Args:
        path: The file, which all ranks see.
        model: The model, with the same parameters as the one that was saved.
        optimizer: Its optimizer, if the file contains one.
        device: `map_location` of `torch.load`. Default: the device of the model's parameters. The tensors were saved
            on rank 0's device, where they would otherwise be loaded by every rank.

    Returns:
        The further values of `save_checkpoint`.

    Raises:
        SpecError: The file is missing, damaged, or of another model; on every rank.
    """
    path = Path(path)
    device = device or next((parameter.device for parameter in model.parameters()), None)

    def read() -> dict[str, Any]:
        saved = _load_file(path, device)
        names = list(map(plain_name, saved.pop("parameters", None) or []))
        own_names = {plain_name(name): name for name in unwrap(model).state_dict()}
        try:
            unwrap(model).load_state_dict(_rename(saved.pop("model"), own_names))
            if optimizer is not None:
                optimizer.load_state_dict(_renumber(saved.pop("optimizer"), names, model, optimizer))
        except (RuntimeError, ValueError, KeyError) as error:
            raise SpecError(
                "the checkpoint belongs to another model",
                found=f"{path}: {last_line(error)}",
                remedy="load it into a model and an optimizer of the same parameters",
            ) from error
        return {name: value for name, value in saved.items() if name != "optimizer"}

    return run_on_all(read)


def convert_checkpoint(source: Path | str, target: Path | str) -> None:
    """Convert the file of `save_checkpoint` into the folder of a `Checkpointer`, or a folder into a file.

    It runs in one process, without a process group. The memory must be large enough for the whole model.

    Args:
        source: The file or the folder.
        target: The folder or the file; it must not exist.

    Raises:
        SpecError: The source cannot be read, or the target exists or cannot be written.
    """
    source, target = Path(source), Path(target)
    if target.exists():
        raise SpecError("the target of the conversion exists", found=str(target), remedy="choose a new path")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            target.parent.mkdir(parents=True, exist_ok=True)
            (_folder_to_file if source.is_dir() else _file_to_folder)(source, target)
    except OSError as error:
        raise write_error(target, last_line(error)) from error


def _file_to_folder(source: Path, target: Path) -> None:
    from torch.distributed import checkpoint as dcp

    saved = _load_file(source, "cpu")
    names, optimizer = _parameter_names(source, saved), saved.get("optimizer", {})
    # With its buffers and both names of tied weights.
    state = module_tensors("model", saved["model"])
    parameters = {number: f"model.{name}" for number, name in enumerate(names)}
    states, groups = optimizer.get("state", {}), optimizer.get("param_groups", [])
    # With all options: a program of plain torch needs them.
    state |= optimizer_tensors("optimizer", states, groups, parameters, ignored={"params", "param_names"})
    counts = [int(values["step"]) for values in states.values() if "step" in values]
    draft = draft_of(target)
    shutil.rmtree(draft, ignore_errors=True)
    dcp.state_dict_saver.save(state, storage_writer=dcp.filesystem.FileSystemWriter(draft), no_dist=True)
    step = int(saved.get("step", max(counts, default=0)))
    publish(draft, target, CheckpointInfo(step=step, checksums=compute_own_checksums(draft, 0)))


def _folder_to_file(source: Path, target: Path) -> None:
    from torch.distributed import checkpoint as dcp

    path, info = _newest(source)
    listed = dcp.filesystem.FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = (name for name in listed if name.startswith(("model.", _STATE, _VALUES, _GROUP)))
    state = {name: torch.empty(listed[name].size, dtype=listed[name].properties.dtype) for name in tensors}  # type: ignore[union-attr]
    dcp.state_dict_loader.load(state, storage_reader=dcp.filesystem.FileSystemReader(path), no_dist=True)
    groups: dict[bytes, list[str]] = {}  # names by options
    values: dict[str, dict[str, Any]] = {}
    for name, value in state.items():
        if name.startswith(_GROUP):
            groups.setdefault(value.numpy().tobytes(), []).append(name.removeprefix(_GROUP))
        elif name.startswith(_STATE):
            parameter, _, key = name.removeprefix(_STATE).rpartition(".")
            values.setdefault(parameter, {})[key] = value
        elif name.startswith(_VALUES):
            values.setdefault(name.removeprefix(_VALUES), {}).update(decode(value))
    names = [name for same in groups.values() for name in same]
    numbers = {name: number for number, name in enumerate(names)}
    saved: dict[str, Any] = {
        "model": {
            name.removeprefix("model.").removesuffix(OBJECT): decode(value) if name.endswith(OBJECT) else value
            for name, value in state.items()
            if name.startswith("model.")
        },
        "step": info["step"],
    }
    if names:
        saved["parameters"] = names
        saved["optimizer"] = {
            "state": {numbers[name]: each for name, each in values.items()},
            "param_groups": [
                {**decode(state[f"{_GROUP}{same[0]}"]), "params": [numbers[name] for name in same]}
                for same in groups.values()
            ],
        }
    _write(saved, target)


def _newest(folder: Path) -> tuple[Path, CheckpointInfo]:
    """Return the newest checkpoint of a folder, or the one that the folder is.

    Raises:
        SpecError: There is none, or it is damaged.
    """
    saved, damages = list_checkpoints(folder)
    if saved:
        path, info = saved[0]
        damage = verify_checksums(path, info, 0, 1)
        if damage is None:
            return path, info
        damages = {path: damage}
    for path, damage in damages.items():
        raise damage_error(path, damage.text)
    raise SpecError("there is no checkpoint", found=str(folder), remedy="name a folder of a Checkpointer")


def _write(state: dict[str, Any], path: Path) -> None:
    """Write the file under another name and rename it: a kill leaves the old file or none.

    Raises:
        SpecError: It cannot be written.
    """
    draft = draft_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open_draft(draft) as file:
            try:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
                draft.replace(path)
            except BaseException:
                with suppress(OSError):  # the file system may be gone
                    draft.unlink()
                raise
    except (OSError, RuntimeError) as error:
        raise write_error(path, last_line(error)) from error


def _open_draft(draft: Path) -> BinaryIO:
    """Open an empty draft, and wait while another job writes it. On a file system without locks, there is no wait.

    Raises:
        OSError: Another job has not finished it in time.
    """
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        file = os.fdopen(os.open(draft, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            if time.monotonic() > until:
                raise OSError(f"another job has been writing {draft} for {_LOCK_SECONDS:g} s") from None
            time.sleep(_LOCK_PAUSE)
            continue
        except OSError:
            pass  # a file system without locks
        # The other job may have renamed this file, which is then its checkpoint.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), draft.stat()):
                file.truncate()
                return file
        file.close()


def _parameter_names(path: Path, saved: Mapping[str, Any]) -> list[str]:
    """Return the parameters in the order in which the optimizer numbers them; buffers have no number."""
    names = list(map(plain_name, saved.get("parameters") or saved["model"]))
    groups = saved.get("optimizer", {}).get("param_groups", [])
    count = sum(len(group["params"]) for group in groups)
    if groups and count != len(names):
        raise SpecError(
            "the optimizer has another number of parameters than the model",
            found=f"{path}: {count} and {len(names)}",
            remedy="save the checkpoint with hpc_kit.save_checkpoint, which stores the names",
        )
    return names


def _load_file(path: Path, device: torch.device | str | None) -> dict[str, Any]:
    """Read the file.

    Raises:
        SpecError: It is missing, damaged, or no checkpoint.
    """
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
        if isinstance(saved, dict) and "model" in saved:
            return saved
        problem = "it contains no 'model'"
    except FileNotFoundError:
        raise SpecError("there is no checkpoint", found=str(path), remedy="name a file that every node sees") from None
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - torch.load raises errors of zipfile, pickle and its own
        problem = last_line(error)
    raise SpecError(
        "this is not a checkpoint in one file",
        found=f"{path}: {problem}",
        remedy="use a file of hpc_kit.save_checkpoint, or of torch.save({'model': ..., 'optimizer': ...})",
    )


def _rename(state: dict[str, Any], own_names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Rename the entries of a module's state, and return it: to their plain names, or to those of a module."""
    for name in list(state):  # in place: torch keeps the versions of the modules in an attribute of this dictionary
        plain = plain_name(name)
        state[(own_names or {}).get(plain, plain)] = state.pop(name)
    return state


def _numbered_names(model: nn.Module, optimizer: Optimizer | None) -> list[str]:
    """Return the names of the model's parameters, in the order in which the optimizer numbers them."""
    names = {parameter: plain_name(name) for name, parameter in unwrap(model).named_parameters()}
    numbered = [parameter for group in optimizer.param_groups for parameter in group["params"]] if optimizer else []
    # An optimizer may have parameters of its own, without a name in this model.
    return [names[each] for each in numbered] if numbered and names.keys() >= set(numbered) else list(names.values())


def _renumber(state: dict[str, Any], names: list[str], model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's state with the numbers that its parameters have in this optimizer.

    torch itself loads by number: moments of equal shapes would go to wrong parameters without an error.

    Raises:
        ValueError: The two have different parameters.
    """
    own, sizes = _numbered_names(model, optimizer), [len(group["params"]) for group in optimizer.param_groups]
    options = {number: group for group in state["param_groups"] for number in group["params"]}
    if len(options) != len(names) or len(own) != sum(sizes):
        return state  # parameters without a name were saved by their order, and are loaded by it
    if missing := sorted(set(names) ^ set(own)):
        raise ValueError(f"only one of the two optimizers has {missing[0]}")
    old_numbers, groups, first = {name: number for number, name in enumerate(names)}, list[dict[str, Any]](), 0
    for size in sizes:
        same = options[old_numbers[own[first]]] if size else {}
        groups.append({**same, "params": list(range(first, first + size))})
        first += size
    by_number = {number: state["state"].get(old_numbers[name]) for number, name in enumerate(own)}
    found = {number: values for number, values in by_number.items() if values is not None}
    return {**state, "state": found, "param_groups": groups}


def main(words: list[str]) -> int:
    """Convert a checkpoint from the command line. Return the exit status."""
    if len(words) != 2:
        sys.stderr.write("usage: python -m hpc_kit.runtime.restart.checkpoint_file FILE.pt FOLDER, or FOLDER FILE.pt\n")
        return 2
    try:
        convert_checkpoint(*words)
    except SpecError as error:
        sys.stderr.write(f"hpc-kit: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
