"""`hpc_kit.Checkpointer`: saves a training, restores it, and stops it when the job asks for that.

torch.distributed.checkpoint writes what each rank has and reads what each rank needs, under the names of the whole
model. So a checkpoint of one layout can be resumed under another.
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

    All ranks must make the same calls. A program without a process group is one rank. From the constructor on, the stop
    signal does not end the process: `step` saves, and returns True. It is SIGUSR1, or those of HPC_KIT_STOP_SIGNAL; in
    a job with [restart] also SIGTERM, which Slurm sends at a preemption.

    A checkpoint is a folder `step-N`, complete and on the disk before it gets this name. Only one training at a time
    can use a folder.

    Args:
        folder: Folder of the checkpoints, which all hosts share. None: nothing is saved; a stop still ends the loop.
        every: Steps between two saves; 0: only `save` and a stop write a checkpoint.
        keep: Number of checkpoints that stay in the folder. With two or more, a damaged one costs only its interval.
        asynchronous: Copy the state to the memory of the host, and write it while the training goes on. Saves at a stop
            and by `save` are not affected. If the last save still runs when the next is due, the next one is left out.
        resume: Start from this checkpoint, or from the newest one of this folder. From the second attempt of the job
            on, its own checkpoints count first.
        is_required: Fail if the hosts do not share the folder; otherwise train without checkpoints.
        agree_every: Steps between two agreements of the ranks on a stop. Default: chosen from the duration of a step,
            so that the ranks stop at most a second late, or after the next step if steps take longer.
        options: Values that describe the training. A difference to the checkpoint is reported.
        report: Receives lines about checkpoints, on rank 0. Default: print them.

    Attributes:
        stopped: True after the training left its loop because a stop was requested. The job goes on in its next
            attempt: skip what belongs to the end of the training.
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
        """Finish a save that runs, unlock the folder, and bring back the previous signal handlers.

        The end of `hpc_kit.distributed()` finishes the save, and the end of the process does the rest.

        Args:
            wait: Wait for the save; all ranks must do this.
        """
        if wait:
            self._finish()
        if self._lock:
            self._lock.release()
            self._lock = None
        self._handlers.close()

    def restore(self, **objects: Any) -> int:
        """Load the newest good checkpoint into these objects, and remember what to save.

        A checkpoint that is damaged is skipped with a message, and the one before is used. Random numbers (of Python,
        NumPy and torch) continue as they were, if the number of ranks is the same.

        Args:
            objects: By name: modules or lists of modules (the stages of this rank), their optimizers, and other objects
                with `state_dict` and `load_state_dict`, such as schedulers and samplers. An object of the last kind
                that has another state on each rank needs the same number of ranks.

        Returns:
            The number of the step to continue with; 0 without a checkpoint.

        Raises:
            SpecError: The folder cannot be used, another training uses it, none of its checkpoints is good, or the
                checkpoint belongs to another model.
        """
        if not self._is_open:
            self._open()
        self._state = run_on_all(lambda: TrainingState(objects, own_rank()), self._group)
        found = self._find()
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

        A save that fails is reported, the old checkpoint stays, and the training goes on: to its next save, or to the
        next attempt of the job.

        Args:
            step: The number of the step that has just been made, from 0.
            check: Called on all ranks before a save. If it raises, the error leaves this call on all ranks and the old
                checkpoint stays.

        Returns:
            True if the training must leave its loop, because a stop was requested. The step is the same on all ranks.
        """
        state, done = self._opened(), int(step) + 1
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
            self._note_step(STOPPED, done)
        return self.stopped

    def save(self, step: int) -> None:
        """Write the checkpoint now, and return when it is on the disk.

        Args:
            step: The number of the last step that was made, from 0.

        Raises:
            SpecError: It cannot be written. The old checkpoint stays.
        """
        state = self._opened()
        with watchdog.phase("save"):  # a slow disk is no stall
            self._collect_write(wait=True)
            if self._writer:
                self._finish_write(self._writer.write(int(step) + 1, state.collect(), state.digests))

    def _opened(self) -> TrainingState:
        if self._state is None:
            raise SpecError(
                "nothing is known to save", found="no call of restore()", remedy="call restore(model=model, ...) first"
            )
        return self._state

    def _open(self) -> None:
        """Check the folder and lock it. Rank 0 does this for all."""
        self._group = self._agreement.group = new_cpu_group()
        self._on_main(_remove_stop_mark)
        if folder := self.folder:
            self._on_main(partial(checkpoint_folder.prepare_folder, folder))
            if self._is_shared(folder):
                self._lock = self._on_main(partial(FolderLock, folder))
                self._on_main(partial(checkpoint_folder.remove_leftovers, folder))
                self._writer = CheckpointWriter(
                    folder, self.keep, self._options, self._group, own_group=self.asynchronous
                )
            else:
                self.folder = None
        shutdown.call_before_destroy(self._finish)
        self._is_open = True

    def _on_main(self, work: Callable[[], T]) -> T | None:
        """Run a function on rank 0; if it fails, it fails on all ranks."""
        return run_on_all(lambda: work() if own_rank() == 0 else None, self._group)

    def _is_shared(self, folder: Path) -> bool:
        """Return whether all hosts see what rank 0 writes into the folder.

        Raises:
            SpecError: They do not, and the folder is required.
        """
        # A new name: a network file system may remember for a while that a known name did not exist.
        mark = folder / f".{gather(os.urandom(4).hex(), self._group)[0]}"
        try:
            self._on_main(lambda: _touch(mark))
            # Path.exists() raises an error where this user may not look into the folder.
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

    def _find(self) -> Saved | None:
        """Return the checkpoint to start from: the newest one without damage.

        Raises:
            SpecError: There are checkpoints, and none of them is good.
        """
        place, is_own = self._agreed(self._choose_place)
        if place is None:
            return None
        # Rank 0 decides: over a network file system, another rank may see the files of the last attempt later.
        saved, damages = self._agreed(lambda: checkpoint_folder.list_checkpoints(place))
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
        raise SpecError("there is no checkpoint", found=str(place), remedy="name a path that every host sees")

    def _verify(self, found: Saved) -> Damage | None:
        """Return the damage of a checkpoint that any rank finds. Each rank reads its share of the files."""
        damage = checkpoint_folder.verify_checksums(found.path, found.info, own_rank(), world_size())
        if damage and not damage.is_permanent:
            damage = damage._replace(text=f"{damage.text} on {socket.gethostname()}")
        return next(filter(None, gather(damage, self._group)), None)

    def _report_skipped(self, skipped: list[tuple[Path, Damage]], *, is_own: bool) -> None:
        for path, damage in skipped:
            name = shorten_path(path)
            if is_own and damage.is_permanent:  # it must not count as one of the checkpoints to keep
                name = shorten_path(self._agreed(partial(checkpoint_folder.set_aside, path)))
            self._print(f"skipped {name}, which is damaged: {damage.text}")

    def _choose_place(self) -> tuple[Path | None, bool]:
        """Return where to look for checkpoints, and whether this is the folder of this training."""
        own = list(checkpoint_folder.find_checkpoints(self.folder)) if self.folder else []
        if self._resume:
            infos = [info for path in own if not isinstance(info := checkpoint_folder.read_info(path), Damage)]
            identity = job_identity(os.environ)
            if not (is_restart(os.environ) and any(identity and info.get("run") == identity for info in infos)):
                return self._resume, False
        return (self.folder, True) if own else (None, True)

    def _agreed(self, work: Callable[[], T]) -> T:
        """Return the result that rank 0 has of a function."""
        return cast("T", gather(self._on_main(work), self._group)[0])

    def _load(self, found: Saved) -> None:
        """Fill the objects from a checkpoint.

        Raises:
            SpecError: It belongs to another model, or a file has the right checksum but the wrong content.
        """
        from torch.distributed import checkpoint as dcp  # importing it takes a second

        state, (path, info) = self._opened(), found
        reader = dcp.filesystem.FileSystemReader(path)
        saved = run_on_all(lambda: _read_shapes(path, reader), self._group)
        difference, present = state.compare(saved)
        compared = gather((difference, present), self._group)
        difference = next((text for text, _ in compared if text), "")
        # Bit N is set if the rank has name N. A name that no rank has is missing in the model.
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
        """Return the options of a checkpoint that differ from ours, as written on a command line."""
        then = info.get("options", {})
        changed = [name for name in self._options if then.get(name, self._options[name]) != self._options[name]]
        return ", ".join(format_option(name, then[name]) for name in changed)

    def _start_write(self, done: int, state: TrainingState) -> None:
        """Copy the state to the memory of the host, and write it in a thread."""
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
            # The ranks come here at different steps, so an error cannot be raised.
            try:
                written = self._writer.result()
            except HpcKitError as error:
                self._report_failed_save(str(shorten_path(self._writer.path)), error)
            else:
                if written:
                    self._finish_write(written)

    def _finish(self) -> None:
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
        self._note_step(SAVED, written.done)
        self._save_seconds = written.seconds
        self._compare_with_lead()
        self._compare_with_interval(written.seconds)

    def _report_failed_save(self, name: str, error: HpcKitError) -> None:
        """Report a save that failed. The remedy is printed once for all that fail one after the other."""
        details = f": {error.found or error.what}" if "failed save" in self._warned else f"\n{error}"
        self._warned.add("failed save")
        self._print(f"warning: {name} is not saved{details}")

    def _compare_with_lead(self) -> None:
        """Warn if the time between the stop signal and the end of the job is too short for a step and a save."""
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
        """Report saves that take much of the time of a training."""
        between = self.every * self._agreement.step_seconds
        share = seconds / (seconds + between) if between else 1.0
        is_reported = self.asynchronous or not between or "interval" in self._warned
        if not is_reported and seconds > _LONG_SAVE and share > _LARGE_SHARE:
            self._warned.add("interval")
            self._print(
                f"note    saves take {share:.0%} of the time; less with every={5 * self.every} or asynchronous=True"
            )

    def _note_step(self, name: str, done: int) -> None:
        """Tell the batch script about a stop or a save. torchrun hides the exit code of its workers."""
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
        SpecError: The list cannot be read.
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
