"""Checkpoints in one file: rank 0 saves, all ranks wait, and each rank loads to its own device.

The file contains `{"model": ..., "optimizer": ..., ...}` with the state dictionaries of torch. `convert_checkpoint`
changes it into the folder of a `Checkpointer`, and back; so does `python -m hpc_kit.runtime.restart.checkpoint_file
SOURCE TARGET`.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from hpc_kit.errors import SpecError
from hpc_kit.runtime.restart.all_ranks import run_on_all
from hpc_kit.runtime.restart.attempts import write_error
from hpc_kit.runtime.restart.checkpoint import (
    MOMENTS,
    CheckpointInfo,
    compute_own_checksums,
    last_line,
    load_state,
    publish,
    read_info,
)

T = TypeVar("T")

_MODEL = "model."
"""Prefix of the parameters in the folder of a `Checkpointer`."""

_OPTIONS = ("lr", "weight_decay")
"""Options of the optimizer that both forms contain."""


def save_checkpoint(
    path: Path | str, *, model: nn.Module, optimizer: Optimizer | None = None, **values: object
) -> None:
    """Write a checkpoint to one file on rank 0, and wait on all ranks until it is complete.

    A kill leaves the previous file. All ranks must make the call. Without a process group, this process writes.

    Args:
        path: The file, such as `model.pt`.
        model: The model; of DistributedDataParallel, the module inside is saved.
        optimizer: Its optimizer.
        values: Further values, such as `step=100`: numbers, texts, tensors, and lists and dictionaries of them.

    Raises:
        SpecError: The file cannot be written, on every rank.
    """
    path = Path(path)

    def write() -> None:
        if dist.is_initialized() and dist.get_rank():
            return
        state = {"model": _unwrap(model).state_dict(), "parameters": _numbered_names(model, optimizer)}
        if optimizer is not None:
            state["optimizer"] = optimizer.state_dict()
        _write({**state, **values}, path)

    _run_on_all(write)


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
        saved = _read(path, device)
        names = saved.pop("parameters", None) or []
        try:
            _unwrap(model).load_state_dict(_with_tied_weights(model, saved.pop("model")))
            if optimizer is not None:
                state = saved.pop("optimizer")
                optimizer.load_state_dict(_renumber(state, names, _numbered_names(model, optimizer)))
        except (RuntimeError, ValueError, KeyError) as error:
            raise SpecError(
                "the checkpoint belongs to another model",
                found=f"{path}: {last_line(error)}",
                remedy="load it into a model and an optimizer of the same parameters",
            ) from error
        return {name: value for name, value in saved.items() if name != "optimizer"}

    return _run_on_all(read)


def convert_checkpoint(source: Path | str, target: Path | str) -> None:
    """Convert the file of `save_checkpoint` into the folder of a `Checkpointer`, or a folder into a file.

    It runs in one process, without a process group. The memory must be large enough for the whole model.

    Args:
        source: The file or the folder.
        target: The folder or the file; it must not exist.

    Raises:
        SpecError: The source cannot be read, its optimizer is none that a `Checkpointer` saves, or the target exists
            or cannot be written.
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

    saved = _read(source, "cpu")
    names = _parameter_names(source, saved)
    _check_optimizer(source, saved)
    # With its buffers and both names of tied weights. A program reads of a folder only what its own model has.
    state = {f"{_MODEL}{name}": tensor for name, tensor in saved["model"].items()}
    step = int(saved.get("step", 0))
    for number, moments in saved.get("optimizer", {}).get("state", {}).items():
        state |= {f"{moment}.{names[number]}": moments[moment] for moment in MOMENTS}
        step = int(saved.get("step", moments["step"]))
    draft = target.with_name(f".{target.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    dcp.state_dict_saver.save(state, checkpoint_id=draft, no_dist=True)
    groups = saved.get("optimizer", {}).get("param_groups", [])
    options = {name: str(group[name]) for group in groups[:1] for name in _OPTIONS if name in group}
    checksums = compute_own_checksums(draft, 0)
    info = CheckpointInfo(step=step, shape={}, options=options, files={}, checksums=checksums, run="")
    publish(draft, target, info)


def _folder_to_file(source: Path, target: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    info = read_info(source)
    listed = FileSystemReader(source).read_metadata().state_dict_metadata
    state = {
        name: torch.empty(each.size, dtype=each.properties.dtype)
        for name, each in listed.items()
        if isinstance(each, TensorStorageMetadata)
    }
    load_state(source, state)
    # The folder contains no options of the optimizer but those that its program has described.
    known = {name: float(info["options"][name]) for name in _OPTIONS if name in info.get("options", {})}
    options = torch.optim.AdamW([torch.empty(0)]).defaults | known
    names = [name.removeprefix(_MODEL) for name in state if name.startswith(_MODEL)]
    # In the order of the folder, which several ranks have mixed: `load_checkpoint` finds the moments by these names.
    trained = [name for name in names if f"{MOMENTS[0]}.{name}" in state]
    moments = [
        {"step": torch.tensor(float(info["step"]))} | {moment: state[f"{moment}.{name}"] for moment in MOMENTS}
        for name in trained
    ]
    saved = {
        "model": {name: state[f"{_MODEL}{name}"] for name in names},
        "parameters": trained or names,
        "optimizer": {
            "state": dict(enumerate(moments)),
            "param_groups": [{**options, "params": list(range(len(moments)))}],
        },
        "step": info["step"],
    }
    _write(saved, target)


def _write(state: dict[str, Any], path: Path) -> None:
    """Write the file under another name and rename it: a kill leaves the old file or none.

    Raises:
        SpecError: It cannot be written.
    """
    draft = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except (OSError, RuntimeError) as error:
        draft.unlink(missing_ok=True)
        raise write_error(path, last_line(error)) from error


def _check_optimizer(path: Path, saved: Mapping[str, Any]) -> None:
    """Refuse what a folder cannot contain, before anything is written.

    Raises:
        SpecError: The optimizer is not AdamW, its groups of parameters have different options, or a value of the model
            is no tensor.
    """
    optimizer = saved.get("optimizer", {})
    kept = {"step", *MOMENTS}
    found = next((sorted(each) for each in optimizer.get("state", {}).values() if each.keys() != kept), None)
    groups = [
        {name: value for name, value in group.items() if name not in {"params", "param_names"}}
        for group in optimizer.get("param_groups", [])
    ]
    if not found and groups and "betas" not in groups[0]:  # SGD without momentum has no state
        found = sorted(groups[0])
    if found:
        raise SpecError(
            "only the state of AdamW can be converted",
            found=f"{path}: the optimizer has {', '.join(map(str, found))}; AdamW has {', '.join(sorted(kept))}",
            remedy="convert a file that was saved without the optimizer",
        )
    if different := sorted({name for group in groups for name in group if group[name] != groups[0].get(name)}):
        raise SpecError(
            "the optimizer's groups of parameters have different options, and a folder contains one group",
            found=f"{path}: {', '.join(different)} of {len(groups)} groups",
            remedy="convert a file that was saved without the optimizer",
        )
    if others := [name for name, value in saved["model"].items() if not isinstance(value, Tensor)]:
        raise SpecError(
            "the model contains values that are no tensors",
            found=f"{path}: {', '.join(others)}",
            remedy="remove get_extra_state from the model, or save these values with save_checkpoint(NAME=VALUE)",
        )


def _parameter_names(path: Path, saved: Mapping[str, Any]) -> list[str]:
    """Return the parameters in the order in which the optimizer numbers them; buffers have no number."""
    names = list(saved.get("parameters") or saved["model"])
    groups = saved.get("optimizer", {}).get("param_groups", [])
    count = sum(len(group["params"]) for group in groups)
    if groups and count != len(names):
        raise SpecError(
            "the optimizer has another number of parameters than the model",
            found=f"{path}: {count} and {len(names)}",
            remedy="save the checkpoint with hpc_kit.save_checkpoint, which stores the names",
        )
    return names


def _read(path: Path, device: torch.device | str | None) -> dict[str, Any]:
    """Read the file.

    Raises:
        SpecError: It is missing, damaged, or no checkpoint.
    """
    if not path.is_file():
        raise SpecError("there is no checkpoint", found=str(path), remedy="name a file that every node sees")
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
        if isinstance(saved, dict) and "model" in saved:
            return saved
        problem = "it contains no 'model'"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - torch.load raises errors of zipfile, pickle and its own
        problem = last_line(error)
    raise SpecError(
        "this is not a checkpoint in one file",
        found=f"{path}: {problem}",
        remedy="use a file of hpc_kit.save_checkpoint, or of torch.save({'model': ..., 'optimizer': ...})",
    )


def _unwrap(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel | DataParallel) else model


def _numbered_names(model: nn.Module, optimizer: Optimizer | None) -> list[str]:
    """Return the names of the model's parameters, in the order in which the optimizer numbers them."""
    names = {parameter: name for name, parameter in _unwrap(model).named_parameters()}
    numbered = [parameter for group in optimizer.param_groups for parameter in group["params"]] if optimizer else []
    # An optimizer may have parameters of its own, without a name in this model.
    return [names[each] for each in numbered] if numbered and names.keys() >= set(numbered) else list(names.values())


def _with_tied_weights(model: nn.Module, saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the further names of parameters that have several. A `Checkpointer` saves each parameter once."""
    first_names: dict[Tensor, str] = {}
    for name, parameter in _unwrap(model).named_parameters(remove_duplicate=False):
        first = first_names.setdefault(parameter, name)
        if first in saved:
            saved.setdefault(name, saved[first])
    return saved


def _renumber(state: dict[str, Any], names: list[str], new_names: list[str]) -> dict[str, Any]:
    """Return an optimizer's state with the numbers of another order of its parameters.

    torch itself loads by number: moments of equal shapes would go to wrong parameters without an error.

    Raises:
        ValueError: The two have different parameters.
    """
    groups = state["param_groups"]
    # Several groups, or parameters without a name, were saved by this order and are loaded by it.
    if len(groups) != 1 or len(groups[0]["params"]) != len(names) or names == new_names:
        return state
    if missing := sorted(set(names) ^ set(new_names)):
        raise ValueError(f"only one of the two optimizers has {missing[0]}")
    new_numbers = {name: number for number, name in enumerate(new_names)}
    by_number = {new_numbers[names[number]]: values for number, values in state["state"].items()}
    return {**state, "state": by_number, "param_groups": [{**groups[0], "params": list(range(len(names)))}]}


def _run_on_all(work: Callable[[], T]) -> T:
    return run_on_all(work) if dist.is_initialized() else work()


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
