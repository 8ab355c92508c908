"""`hpc_kit.Checkpointer`: saves a training, restores it, and stops it before the job ends.

Each rank writes and reads its part of the model with torch.distributed.checkpoint, under the names that parameters have
in the whole model. So a checkpoint of one layout can be resumed under another.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import torch
from torch import distributed as dist

from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.run_files import RUN_VARIABLE, SAVED, STOPPED, write_whole
from hpc_kit.runtime import shutdown, watchdog
from hpc_kit.runtime.first_failure import is_peer_loss
from hpc_kit.runtime.restart import checkpoint_folder
from hpc_kit.runtime.restart.all_ranks import gather, own_rank, run_on_all, world_size
from hpc_kit.runtime.restart.attempts import FolderLock, is_restart, job_identity, write_error
from hpc_kit.runtime.restart.checkpoint_folder import CheckpointInfo, Damage, Saved
from hpc_kit.runtime.restart.checkpoint_writer import (
    CheckpointWriter,
    Written,
    last_line,
    new_cpu_group,
    without_warning,
)
from hpc_kit.runtime.restart.stop_signal import LEAD_VARIABLE, StopAgreement, StopSignal
from hpc_kit.runtime.restart.training_state import Shape, TrainingState

T = TypeVar("T")

_LONG_SAVE, _LARGE_SHARE = 1.0, 0.1
"""Saves that take more than these seconds and more than this share of the time are reported."""


class Checkpointer:
    """Saves checkpoints at regular steps and when the job is about to end, and restores them in the next attempt.

    ::

        with hpc_kit.distributed() as world:
            saver = hpc_kit.Checkpointer("checkpoints", every=500, keep=3)
            first = saver.restore(model=model, optimizer=optimizer, sampler=sampler)  # 0 on the first start
            for step in range(first, steps):
                ...
                if saver.step(step):  # saves when due or when a stop was requested
                    break

    All ranks must make the same calls. A program without a process group is one rank. After the constructor, a stop
    signal no longer ends the process: the next call of `step` saves, and returns True. Stop signals are SIGUSR1, or
    those in HPC_KIT_STOP_SIGNAL, and in a job with [restart] SIGTERM, which Slurm sends at a preemption.

    A checkpoint is a folder `step-N`, complete and on the disk before it gets this name. Only one training at a time
    can use a folder.

    Args:
        folder: Folder of the checkpoints, which all hosts share. None: nothing is saved; a stop still ends the loop.
        every: Steps between two saves; 0: only `save` and a stop write a checkpoint.
        keep: Number of checkpoints that stay in the folder. With two or more, a damaged one costs only its steps.
        asynchronous: Copy the state to the memory of the host, and write it while the training continues. A save that
            is due while the last one still runs is left out. `save`, and a save at a stop, always wait for the disk.
        resume: Start from this checkpoint, or from the newest one of this folder. Later attempts of the job start from
            their own checkpoints.
        is_required: Fail if the hosts do not share the folder; otherwise train without checkpoints.
        agree_every: Steps between two agreements of the ranks on a stop. Default: chosen from the duration of a step,
            so that the ranks stop at most a second late, or after the next step if steps take longer.
        options: Values that describe the training. Differences from those of the checkpoint are reported.
        report: Receives lines about checkpoints, on rank 0. Default: print them.

    Attributes:
        stopped: True after a requested stop. The next attempt of the job continues the training, so skip what belongs
            to its end.
        latest: The newest checkpoint of this training.
    """

    def __init__(
        self,
        folder: Path | str | None,
        *,
        every: int = 0,
        keep: int = 2,
        asynchronous: bool = False,
        resume: Path | str | None = None,
        is_required: bool = True,
        agree_every: int | None = None,
        options: Mapping[str, object] | None = None,
        report: Callable[[str], object] | None = None,
    ) -> None:
        for name, value, least in (("every", every, 0), ("keep", keep, 1), ("agree_every", agree_every or 1, 1)):
            if value < least:
                raise SpecError(f"{name} is too small", found=f"{name}={value}", remedy=f"use {least} or more")
        self.folder = None if folder is None else Path(folder)
        self.every, self.keep, self.asynchronous, self.is_required = every, keep, asynchronous, is_required
        self.stopped = False
        self.latest: Path | None = None
        self._resume = None if resume is None else Path(resume)
        self._options = {name: str(value) for name, value in (options or {}).items()}
        self._report = report or partial(print, flush=True)
        self._handlers = ExitStack()
        self._signal = self._handlers.enter_context(StopSignal(os.environ))
        self._agreement = StopAgreement(agree_every)
        self._state: TrainingState | None = None
        self._group: dist.ProcessGroup | None = None
        self._writer: CheckpointWriter | None = None
        self._lock: FolderLock | None = None
        self._is_open = False
        self._save_seconds = 0.0
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(wait=kind is None)

    def close(self, *, wait: bool = True) -> None:
        """Finish a running save, unlock the folder, and restore the previous signal handlers.

        Without this call, the end of `hpc_kit.distributed()` finishes the save, and the lock ends with the process.

        Args:
            wait: Wait for a running save. All ranks must do this together.
        """
        if wait:
            self._finish_saves()
        if self._lock:
            self._lock.release()
            self._lock = None
        self._handlers.close()

    def restore(self, **objects: Any) -> int:
        """Load the newest good checkpoint into these objects. The next saves write the same objects.

        A damaged checkpoint is skipped with a message. The random numbers of Python, NumPy and torch continue where
        they were if the number of ranks is the same.

        Args:
            objects: By name: modules or lists of modules (the stages of this rank), their optimizers, and other objects
                with `state_dict` and `load_state_dict`, such as schedulers and samplers. If such other objects have a
                different state on each rank, the number of ranks must stay the same.

        Returns:
            The number of the step to continue with; 0 without a checkpoint.

        Raises:
            SpecError: The folder cannot be used, another training uses it, none of its checkpoints is good, or the
                checkpoint belongs to another model.
        """
        if not self._is_open:
            self._open_folder()
        self._state = run_on_all(lambda: TrainingState(objects, own_rank()), self._group)
        found = self._find_checkpoint()
        if found is None:
            if self.folder and is_restart(os.environ):
                self._print(f"note    restarted from the beginning: no checkpoint is in {shorten_path(self.folder)}")
            return 0
        step = found.info["step"]
        self._load(found)
        self.latest = found.path
        self._print(f"resume  step {step} of {shorten_path(found.path)}")
        if words := self._changed_options(found.info):
            self._print(f"note    the checkpoint was made with {words}: an unbroken training would differ")
        if (then := found.info.get("ranks")) != (now := world_size()):
            self._print(f"note    {now} ranks instead of {then}: random numbers start from new seeds")
        self._save_seconds = found.info.get("seconds", 0.0)
        self._compare_with_lead()
        return step

    def step(self, step: int, check: Callable[[], object] | None = None) -> bool:
        """Save if a save is due or a stop was requested.

        If a save fails, this is reported, the old checkpoint stays, and the training continues.

        Args:
            step: The number of the step that has just been made, from 0.
            check: Called on all ranks before a save. If it raises an error on one rank, this method raises it on all
                ranks and the old checkpoint stays.

        Returns:
            True if the training must leave its loop, because a stop was requested. The step is the same on all ranks.
        """
        state, done = self._require_state(), int(step) + 1
        watchdog.progress(step)
        self._collect_write(wait=False)
        self.stopped = self._agreement.is_stop(done, self._signal.requested)
        self._compare_with_lead()
        if self.stopped or (self.every and done % self.every == 0):
            if check:
                run_on_all(cast("Callable[[], None]", check), self._group)
            try:
                if self.asynchronous and not self.stopped:
                    self._start_write(done, state)
                else:
                    self.save(step)
            except HpcKitError as error:
                self._report_failed_save(f"step {done}", error)
        if self.stopped:
            self._record_step(STOPPED, done)
        return self.stopped

    def save(self, step: int) -> None:
        """Write the checkpoint now, and return when it is on the disk.

        Args:
            step: The number of the last step that was made, from 0.

        Raises:
            SpecError: It cannot be written. The old checkpoint stays.
        """
        state = self._require_state()
        with watchdog.phase("save"):  # a slow disk is no stall
            self._collect_write(wait=True)
            if self._writer:
                self._finish_write(self._writer.write(int(step) + 1, state.collect(), state.digests))

    def _require_state(self) -> TrainingState:
        if self._state is None:
            raise SpecError(
                "there is nothing to save", found="no call of restore()", remedy="call restore(model=model, ...) first"
            )
        return self._state

    def _open_folder(self) -> None:
        """Check the folder and lock it, on rank 0 for all ranks."""
        self._group = self._agreement.group = new_cpu_group()
        self._on_rank_0(_remove_stop_mark)
        if folder := self.folder:
            self._on_rank_0(partial(checkpoint_folder.prepare_folder, folder))
            if self._is_shared(folder):
                self._lock = self._on_rank_0(partial(FolderLock, folder))
                self._on_rank_0(partial(checkpoint_folder.remove_leftovers, folder))
                self._writer = CheckpointWriter(
                    folder, self.keep, self._options, self._group, own_group=self.asynchronous
                )
            else:
                self.folder = None
        shutdown.call_before_destroy(self._finish_saves)
        self._is_open = True

    def _on_rank_0(self, work: Callable[[], T]) -> T | None:
        """Run a function on rank 0. If it fails there, raise the error on all ranks."""
        return run_on_all(lambda: work() if own_rank() == 0 else None, self._group)

    def _is_shared(self, folder: Path) -> bool:
        """Return whether all hosts see the files that rank 0 writes into the folder.

        Raises:
            SpecError: A host does not see them, and the folder is required.
        """
        # The name is new: a network file system may remember for a while that a name did not exist.
        mark = folder / f".{gather(os.urandom(4).hex(), self._group)[0]}"
        try:
            self._on_rank_0(lambda: _touch(mark))
            # Path.exists() would raise an error if this user may not look into the folder.
            seen = gather((socket.gethostname(), os.path.exists(mark)), self._group)  # noqa: PTH110
        finally:
            if own_rank() == 0:
                mark.unlink(missing_ok=True)
        blind_hosts = sorted({host for host, is_there in seen if not is_there})
        if not blind_hosts:
            return True
        if self.is_required:
            raise SpecError(
                "the hosts do not share the folder of the checkpoints",
                found=f"{folder}: {', '.join(blind_hosts)} cannot see what rank 0 writes there",
                remedy="choose a folder that all hosts see",
            )
        self._print(f"note    no checkpoint: {', '.join(blind_hosts)} cannot see {shorten_path(folder)} of rank 0")
        return False

    def _find_checkpoint(self) -> Saved | None:
        """Return the checkpoint to start from: the newest one without damage.

        Raises:
            SpecError: There are checkpoints, and none of them is good.
        """
        source, is_own = self._from_rank_0(self._choose_source)
        if source is None:
            return None
        # Rank 0 lists the files, because a network file system may show them to other ranks later.
        saved, damages = self._from_rank_0(lambda: checkpoint_folder.list_checkpoints(source))
        skipped = list(damages.items())
        for found in saved:
            damage = self._verify(found)
            if damage is None:
                self._report_skipped(skipped, is_own=is_own)
                return found
            skipped.append((found.path, damage))
        if skipped:
            path, damage = skipped[0]
            raise checkpoint_folder.damage_error(path, damage.text)
        if is_own:
            return None
        raise SpecError("there is no checkpoint", found=str(source), remedy="name a path that every host sees")

    def _verify(self, found: Saved) -> Damage | None:
        """Return the damage that any rank finds. Each rank reads its share of the files."""
        damage = checkpoint_folder.verify_checksums(found.path, found.info, own_rank(), world_size())
        if damage and not damage.is_permanent:
            damage = damage._replace(text=f"{damage.text} on {socket.gethostname()}")
        return next(filter(None, gather(damage, self._group)), None)

    def _report_skipped(self, skipped: list[tuple[Path, Damage]], *, is_own: bool) -> None:
        for path, damage in skipped:
            name = shorten_path(path)
            if is_own and damage.is_permanent:  # so that it is not one of the checkpoints to keep
                name = shorten_path(self._from_rank_0(partial(checkpoint_folder.set_aside, path)))
            self._print(f"skipped {name}, which is damaged: {damage.text}")

    def _choose_source(self) -> tuple[Path | None, bool]:
        """Return where to look for checkpoints, and whether this is the folder of this training."""
        own = list(checkpoint_folder.find_checkpoints(self.folder)) if self.folder else []
        if self._resume:
            infos = [info for path in own if not isinstance(info := checkpoint_folder.read_info(path), Damage)]
            identity = job_identity(os.environ)
            if not (is_restart(os.environ) and any(identity and info.get("run") == identity for info in infos)):
                return self._resume, False
        return (self.folder, True) if own else (None, True)

    def _from_rank_0(self, work: Callable[[], T]) -> T:
        """Run a function on rank 0, and return its result on all ranks."""
        return cast("T", gather(self._on_rank_0(work), self._group)[0])

    def _load(self, found: Saved) -> None:
        """Fill the objects from a checkpoint.

        Raises:
            SpecError: The checkpoint belongs to another model, or a file has the right checksum but the wrong content.
        """
        from torch.distributed import checkpoint as dcp  # importing it takes a second

        state, (path, info) = self._require_state(), found
        reader = dcp.filesystem.FileSystemReader(path)
        saved = run_on_all(lambda: _read_shapes(path, reader), self._group)
        difference, present = state.compare(saved)
        compared = gather((difference, present), self._group)
        difference = next((text for text, _ in compared if text), "")
        # Bit N of `present` is set if this rank has name N: a few bytes to send, whatever the number of names.
        on_any_rank = reduce(or_, (bits for _, bits in compared))
        missing = [name for number, name in enumerate(state.names_of(saved)) if not on_any_rank >> number & 1]
        if not difference and missing:
            difference = f"{missing[0]} of the checkpoint is not in this model"
        if difference:
            words = self._changed_options(info)
            raise SpecError(
                "the checkpoint belongs to another model",
                found=f"{path}: {difference}" + (f"\nit was made with {words}" if words else ""),
                remedy="build the same model, or start in another folder",
            )
        is_same_layout = info.get("ranks") == world_size()
        shared = set(info.get("shared", []))
        targets = run_on_all(lambda: state.targets(saved, is_same_layout=is_same_layout, shared=shared), self._group)
        try:
            with without_warning():
                dcp.state_dict_loader.load(targets, storage_reader=reader, process_group=self._group)
        except torch.OutOfMemoryError:
            raise  # a RuntimeError that the files did not cause
        except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
            if isinstance(error, RuntimeError) and is_peer_loss(error):
                raise
            raise checkpoint_folder.damage_error(path, last_line(error)) from error
        run_on_all(lambda: state.apply(targets), self._group)

    def _changed_options(self, info: CheckpointInfo) -> str:
        """Return the options of a checkpoint that differ from those of this training, as on a command line."""
        then = info.get("options", {})
        changed = [name for name in self._options if then.get(name, self._options[name]) != self._options[name]]
        return ", ".join(format_option(name, then[name]) for name in changed)

    def _start_write(self, done: int, state: TrainingState) -> None:
        """Start an asynchronous save, unless the last one still runs on any rank."""
        if not self._writer:
            return
        if any(gather(self._writer.is_busy, self._group)):
            if "busy" not in self._warned:
                self._warned.add("busy")
                self._print(f"note    step {done} is not saved: the last save still runs; choose a larger every")
            return
        self._collect_write(wait=True)
        self._writer.start(done, state.collect(), state.digests)

    def _collect_write(self, *, wait: bool) -> None:
        """Report the end of an asynchronous save."""
        if self._writer and (wait or not self._writer.is_busy):
            # Report an error instead of raising it: the ranks learn of the end of a save at different steps.
            try:
                written = self._writer.result()
            except HpcKitError as error:
                self._report_failed_save(str(shorten_path(self._writer.path)), error)
            else:
                if written:
                    self._finish_write(written)

    def _finish_saves(self) -> None:
        """Wait for an asynchronous save before the process group ends."""
        try:
            self._collect_write(wait=True)
        finally:
            if self._writer:
                self._writer.close()

    def _finish_write(self, written: Written) -> None:
        self.latest = written.path
        self._print(f"saved   {shorten_path(written.path)}")
        self._warned.discard("failed save")
        self._record_step(SAVED, written.done)
        self._save_seconds = written.seconds
        self._compare_with_lead()
        self._compare_with_interval(written.seconds)

    def _report_failed_save(self, name: str, error: HpcKitError) -> None:
        """Report a save that failed, with the remedy for the first of several failures in a row."""
        details = f": {error.found or error.what}" if "failed save" in self._warned else f"\n{error}"
        self._warned.add("failed save")
        self._print(f"warning: {name} is not saved{details}")

    def _compare_with_lead(self) -> None:
        """Warn if the time between the stop signal and the end of the job may be too short for a save."""
        text = os.environ.get(LEAD_VARIABLE, "")
        lead = float(text) if text.isdigit() else 0.0
        until_noticed = self._agreement.seconds_late
        needed = until_noticed + 1.5 * self._save_seconds  # a disk is slower on some days
        if lead and needed > lead and "lead" not in self._warned:
            self._warned.add("lead")
            self._print(
                "warning: the lead may be too short for a save\n"
                f"  found  a stop takes up to {needed:.0f} s: a save takes {self._save_seconds:.0f} s, the ranks notice"
                f" the signal after {until_noticed:.0f} s; the lead is {lead:.0f} s\n"
                f"  do     set lead = {int(needed * 1.5) + 1} in [restart]"
            )

    def _compare_with_interval(self, seconds: float) -> None:
        """Report saves that take a large part of the time of a training."""
        between = self.every * self._agreement.step_seconds
        share = seconds / (seconds + between) if between else 1.0
        is_reported = self.asynchronous or not between or "interval" in self._warned
        if not is_reported and seconds > _LONG_SAVE and share > _LARGE_SHARE:
            self._warned.add("interval")
            self._print(f"note    saves take {share:.0%} of the time; use every={5 * self.every} or asynchronous=True")

    def _record_step(self, name: str, done: int) -> None:
        """Record the step of a stop or a save for the batch script: torchrun hides the exit codes of its workers."""
        run = os.environ.get(RUN_VARIABLE)
        if run and own_rank() == 0:
            try:
                write_whole(Path(run, name), f"{done} {time.time():.3f}\n".encode())
            except OSError as error:
                self._print(f"warning: {run}/{name} cannot be written: {error.strerror or error}")

    def _print(self, line: str) -> None:
        if own_rank() == 0:
            self._report(line)


def _read_shapes(path: Path, reader: Any) -> dict[str, Shape]:
    """Return size and type of each tensor of a checkpoint.

    Raises:
        SpecError: The metadata cannot be read.
    """
    try:
        entries = reader.read_metadata().state_dict_metadata
        return {name: Shape(entry.size, entry.properties.dtype) for name, entry in entries.items()}
    except Exception as error:  # it is a pickle, which raises errors of any kind
        raise checkpoint_folder.damage_error(path, last_line(error)) from error


def _touch(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise write_error(path.parent, error.strerror or str(error)) from None


def _remove_stop_mark() -> None:
    if run := os.environ.get(RUN_VARIABLE):
        with suppress(OSError):
            Path(run, STOPPED).unlink()


def shorten_path(path: Path) -> Path:
    """Return the path relative to the current folder if it lies below it."""
    return path.relative_to(here) if path.is_relative_to(here := Path.cwd()) else path


def format_option(name: str, value: str) -> str:
    """Return an option as written on a command line, or a remark that it was not given."""
    option = f"--{name.replace('_', '-')}"
    remarks = {"True": option, "False": f"{option} not given", "None": f"{option} not given"}
    return remarks.get(value, f"{option} {value}")
