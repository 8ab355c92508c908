"""`Checkpointer`: saves and restores a training, whatever layout its ranks have.

torch.distributed.checkpoint writes what each rank holds and reads what each rank needs, under the names of the whole
model. So a checkpoint of one layout can be resumed under another. A checkpoint is a folder. It is written under another
name and renamed when it is complete: there is always the old checkpoint or the new one, never a part of one.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypedDict

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from hpc_kit.errors import SpecError
from hpc_kit.runtime.first_failure import is_peer_loss
from hpc_kit.runtime.restart.all_ranks import gather, run_on_all
from hpc_kit.runtime.restart.attempts import (
    INFO_FILE,
    checkpoint_lock,
    find_own_checkpoint,
    is_restart,
    job_identity,
    previous_path,
    write_error,
)
from hpc_kit.runtime.restart.stop_signal import StopSignal

MOMENTS = ("exp_avg", "exp_avg_sq")
READ_BYTES = 1 << 24


class CheckpointInfo(TypedDict):
    """The content of `about.json`."""

    step: int
    shape: dict[str, int]
    """Sizes of the model."""
    options: dict[str, str]
    """Options that decide the losses of the following steps."""
    files: dict[str, int]
    """Sizes of the other files in bytes."""
    checksums: dict[str, int]
    """CRC-32 of the other files."""
    run: str
    """The training that wrote it, see `job_identity`."""


class Checkpointer:
    """Saves a model and its AdamW optimizer, and restores them.

    A context manager: inside, no other training can write the same checkpoint, and SIGUSR1 requests a stop. All ranks
    must make the same calls.

    Args:
        path: Folder of the checkpoint. None: nothing is saved.
        every: Steps between two saves; 0: only `save` and a stop write one.
        agree_every: Steps between two agreements of the ranks on whether a stop was requested.
        resume: Checkpoint to start from. Default: after a restart, the one that this training wrote.
        is_required: Fail if the hosts do not share the folder of `path`; otherwise train without a checkpoint.
        shape: Sizes of the model. They must be the same on resume.
        options: Options that decide the losses. A difference on resume is reported.
        report: Receives lines about the checkpoint, on every rank.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        every: int = 0,
        agree_every: int = 1,
        resume: Path | None = None,
        is_required: bool = True,
        shape: Mapping[str, int] | None = None,
        options: Mapping[str, str] | None = None,
        report: Callable[[str], object] = str,
    ) -> None:
        self.path, self.every, self.agree_every, self.is_required = path, every, agree_every, is_required
        self.resume, self.shape, self.options, self.report = resume, dict(shape or {}), dict(options or {}), report
        self.stopped = False
        """True if the training ends early because a rank was asked to stop."""
        self._stop_signal = StopSignal()
        self._exit = ExitStack()
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None
        self._steps: int | None = None

    def __enter__(self) -> Self:
        """Check before the training that the checkpoint can be written, lock it, and listen for SIGUSR1.

        Raises:
            SpecError: The folder cannot be written, is not shared, or belongs to another training.
        """
        with ExitStack() as stack:
            if path := self.path:
                run_on_all(lambda: prepare_folder(path) if dist.get_rank() == 0 else None)
                if not self._is_shared(path):
                    self.path = None
                else:
                    run_on_all(lambda: stack.enter_context(checkpoint_lock(path)) if dist.get_rank() == 0 else None)
            stack.enter_context(self._stop_signal)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _is_shared(self, path: Path) -> bool:
        """Return whether all hosts see what rank 0 writes beside `path`.

        Raises:
            SpecError: They do not, and the checkpoint is required.
        """
        # A new name: a network file system may remember for a while that a known name did not exist.
        mark = path.with_name(f".{path.name}.{gather(os.urandom(4).hex())[0]}")
        try:
            run_on_all(lambda: _touch(mark) if dist.get_rank() == 0 else None)
            seen = gather((socket.gethostname(), mark.exists()))
        finally:
            if dist.get_rank() == 0:
                mark.unlink(missing_ok=True)
        blind_hosts = sorted({host for host, is_there in seen if not is_there})
        if not blind_hosts:
            return True
        if self.is_required:
            raise SpecError(
                "the hosts do not share the folder of the checkpoint",
                found=f"--checkpoint {path}: {', '.join(blind_hosts)} cannot see what rank 0 writes there",
                remedy="choose a folder that all hosts see",
            )
        self.report(f"note    no checkpoint: {', '.join(blind_hosts)} cannot see {display_path(path)} of rank 0")
        return False

    def restore(self, *, model: nn.Module, optimizer: Optimizer, steps: int | None = None) -> int:
        """Load the checkpoint to start from, if there is one, and remember what `save` will write.

        Args:
            model: This rank's part of the model, with the parameter names of the whole model.
            optimizer: AdamW over some or all parameters of `model`. One that keeps its moments elsewhere than beside
                the parameters has a method `empty_moments(parameter)`.
            steps: Steps of the whole training. A checkpoint given as `resume` must leave some of them.

        Returns:
            The number of steps that are done; 0 without a checkpoint.

        Raises:
            SpecError: The checkpoint is missing, damaged, of another model, or at the last step.
        """
        self._model, self._optimizer, self._steps = model, optimizer, steps
        # Rank 0 decides: over a network file system, another rank may see the files of the last attempt later.
        path = self.resume or gather(find_own_checkpoint(self.path, os.environ) if self.path else None)[0]
        if path is None:
            if self.path and is_restart(os.environ):
                name = display_path(self.path)
                self.report(f"note    restarted from the beginning: {name} is no checkpoint of this run")
            return 0
        info = run_on_all(lambda: self._verify(path, steps))
        if steps is not None and info["step"] >= steps:
            self.report(f"note    {display_path(path)} is at step {info['step']} of {steps}: nothing is left to train")
            return info["step"]
        self.report(f"resume  step {info['step']} of {display_path(path)}")
        then = info.get("options", {})
        if changed := [name for name in self.options if then.get(name, self.options[name]) != self.options[name]]:
            words = ", ".join(format_option(name, then[name]) for name in changed)
            self.report(f"note    the checkpoint was made with {words}: an unbroken training would differ")
        run_on_all(lambda: load_state(path, collect_state(model, optimizer, step=info["step"])))
        return info["step"]

    def _verify(self, path: Path, steps: int | None) -> CheckpointInfo:
        """Return the info of a checkpoint after checking everything that can be checked before it is loaded."""
        info = read_info(path)
        compare_shapes(path, info["shape"], self.shape)
        verify_checksums(path, info, dist.get_rank(), dist.get_world_size())
        if self.resume and steps is not None and info["step"] >= steps:
            raise SpecError(
                "the checkpoint leaves nothing to train",
                found=f"--resume {path} is at step {info['step']}; --steps {steps}",
                remedy=f"--steps {2 * info['step']}: it counts from the first start",
            )
        return info

    def step(self, done: int, check: Callable[[], object] = lambda: None) -> bool:
        """Save if a save is due or a rank was asked to stop.

        Args:
            done: Steps that are done.
            check: Called on all ranks before a save. If it raises, the old checkpoint stays.

        Returns:
            True if the training must leave its loop, because a stop was requested.
        """
        self.stopped = done % self.agree_every == 0 and any(gather(self._stop_signal.requested))
        if self.stopped or (self.every and done % self.every == 0):
            run_on_all(check)
            self.save(done)
        return self.stopped

    def save(self, step: int) -> None:
        """Write the checkpoint of this step, if there is a path; `restore` has named the model and the optimizer.

        Raises:
            SpecError: The disk is full or gone. The old checkpoint stays.
        """
        if self.path is None or self._model is None or self._optimizer is None:
            return
        path, state = self.path, collect_state(self._model, self._optimizer)
        info = CheckpointInfo(
            step=step, shape=self.shape, options=self.options, files={}, checksums={}, run=job_identity(os.environ)
        )
        run_on_all(lambda: save_state(path, state, info))
        self.report(f"saved   {display_path(path)}" + (f", step {step}" if step != self._steps else ""))


def display_path(path: Path) -> Path:
    """Return the path relative to the current folder if it lies below it."""
    return path.relative_to(here) if path.is_relative_to(here := Path.cwd()) else path


def format_option(name: str, value: str) -> str:
    """Return an option as written on a command line, or a remark that it was not given."""
    option = f"--{name.replace('_', '-')}"
    remarks = {"True": option, "False": f"{option} not given", "None": f"{option} not given"}
    return remarks.get(value, f"{option} {value}")


def prepare_folder(path: Path) -> None:
    """Create the folder that will contain the checkpoint, and check that it can be written.

    Raises:
        SpecError: It cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path, error.strerror or str(error)) from None
    if path.exists() and not (path / INFO_FILE).is_file():
        raise write_error(path, "something else is there")
    if not os.access(path.parent, os.W_OK):
        raise write_error(path, f"{path.parent} is not writable for you")


def _touch(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise write_error(path, error.strerror or str(error)) from None


def read_info(path: Path) -> CheckpointInfo:
    """Return the info of a checkpoint whose files are all there in their full length.

    Raises:
        SpecError: It is missing, cut short, or no checkpoint.
    """
    if not path.exists():
        old = previous_path(path)
        back = f"mv {old} {path}: a kill during a save left it there"
        remedy = back if old.exists() else "name a path that every node sees"
        raise SpecError("there is no checkpoint", found=f"--resume {path}", remedy=remedy)
    try:
        info: CheckpointInfo = json.loads((path / INFO_FILE).read_text())
        sizes = {name: (path / name).stat().st_size for name in info["files"]}
        wrong = [
            f"{name} has {sizes[name]} bytes of {size}" for name, size in info["files"].items() if sizes[name] != size
        ]
        is_complete = {"step", "shape"} <= info.keys()
        problem = ", ".join(wrong) or ("" if is_complete else f"{INFO_FILE} contains no step or shape")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise SpecError(
            "this is not a complete checkpoint",
            found=f"--resume {path}: {problem}",
            remedy="resume from an earlier one: this one was cut short, or another program wrote it",
        )
    return info


def compare_shapes(path: Path, saved: Mapping[str, int], ours: Mapping[str, int]) -> None:
    """Refuse a checkpoint of a model with other sizes. A converted checkpoint states no sizes."""
    if saved and (different := [name for name in ours if saved.get(name) != ours[name]]):
        raise SpecError(
            "the checkpoint belongs to another model",
            found=", ".join(f"{name} {saved.get(name)} in {path}, {ours[name]} requested" for name in different),
            remedy=" ".join(f"--{name} {saved.get(name)}" for name in different),
        )


def compute_checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def verify_checksums(path: Path, info: CheckpointInfo, rank: int, ranks: int) -> None:
    """Check this rank's share of the files. torch loads changed bits without an error.

    Raises:
        SpecError: A file has changed since it was written.
    """
    written = info.get("checksums", {})
    for name in sorted(written)[rank::ranks]:
        if (found := compute_checksum(path / name)) != written[name]:
            raise SpecError(
                "the checkpoint is damaged",
                found=f"--resume {path}: {name} has checksum {found:08x}, {written[name]:08x} was written",
                remedy=f"resume from an earlier one; without one, start from the beginning: rm -r {path}",
            )


def collect_state(model: nn.Module, optimizer: Optimizer, *, step: int | None = None) -> dict[str, Tensor]:
    """Return the parameters and moments of this rank by name: the tensors themselves, to be written or filled.

    Args:
        model: This rank's part of the model.
        optimizer: AdamW over some or all of its parameters.
        step: Make empty moments, to be filled, of this many steps. None: use the existing moments.
    """
    # ZeroRedundancyOptimizer wraps an optimizer, which updates this rank's share of the parameters.
    inner = getattr(optimizer, "optim", optimizer)
    names = {parameter: name for name, parameter in model.named_parameters()}
    state: dict[str, Tensor] = {f"model.{name}": parameter.detach() for parameter, name in names.items()}
    for parameter in (parameter for group in inner.param_groups for parameter in group["params"]):
        moments = inner.state[parameter]
        if step is not None:
            empty = getattr(inner, "empty_moments", empty_moments)(parameter)
            moments.update(empty, step=torch.tensor(float(step), device=empty[MOMENTS[0]].device))
        state |= {f"{moment}.{names[parameter]}": moments[moment] for moment in MOMENTS}
    return state


def empty_moments(parameter: Tensor) -> dict[str, Tensor]:
    """Return moments as AdamW creates them in its first step."""
    return {moment: torch.zeros_like(parameter.detach()) for moment in MOMENTS}


def load_state(path: Path, state: dict[str, Tensor]) -> None:
    """Fill the tensors from a checkpoint.

    Raises:
        SpecError: A file has the right size but the wrong content.
    """
    from torch.distributed import checkpoint as dcp  # importing it takes a second

    try:
        dcp.state_dict_loader.load(state, checkpoint_id=path)
    except torch.OutOfMemoryError:
        raise  # a RuntimeError that the files did not cause
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        found = f"--resume {path}: {last_line(error)}"
        remedy = "resume from an earlier one: the files are damaged"
        raise SpecError("the checkpoint cannot be read", found=found, remedy=remedy) from error


def save_state(path: Path, state: dict[str, Tensor], info: CheckpointInfo) -> None:
    """Write the tensors beside the checkpoint, then rename the folder: a kill leaves the old checkpoint.

    Raises:
        SpecError: The disk is full or gone.
    """
    from torch.distributed import checkpoint as dcp

    is_main = dist.get_rank() == 0
    draft = path.with_name(f".{path.name}.part")  # a fixed name: the next attempt removes what a kill left
    if is_main:
        shutil.rmtree(draft, ignore_errors=True)
    gather(None)
    try:
        dcp.state_dict_saver.save(state, checkpoint_id=draft)
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        if isinstance(error, RuntimeError) and is_peer_loss(error):
            raise  # not a problem of the disk: another rank did not come or has died
        shutil.rmtree(draft, ignore_errors=True)
        raise write_error(path, last_line(error)) from error
    checksums = gather(run_on_all(lambda: compute_own_checksums(draft, dist.get_rank())))
    try:
        if is_main:
            info["checksums"] = {name: value for each in checksums for name, value in each.items()}
            publish(draft, path, info)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise write_error(path, last_line(error)) from error


def compute_own_checksums(draft: Path, rank: int) -> dict[str, int]:
    """Return the checksums of the files that this rank wrote. Another host may not see them yet."""
    files = [*draft.glob(f"__{rank}_*"), *([draft / ".metadata"] if rank == 0 else [])]
    try:
        return {file.name: compute_checksum(file) for file in files}
    except OSError as error:
        raise write_error(draft, error.strerror or str(error)) from None


def publish(draft: Path, path: Path, info: CheckpointInfo) -> None:
    """Rename a complete draft to the checkpoint; `about.json` is written last."""
    info["files"] = {file.name: file.stat().st_size for file in sorted(draft.iterdir())}
    with (draft / INFO_FILE).open("w") as file:
        json.dump(info, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    old = previous_path(path)
    if path.exists():  # after a kill between the two renames, only the old one exists
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    draft.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def last_line(error: BaseException) -> str:
    """Return the last line of an error: torch puts the messages of all ranks below a heading."""
    return str(error).strip().rpartition("\n")[2] or type(error).__name__
