"""Writes a checkpoint of all ranks with torch.distributed.checkpoint. It gets its name when it is complete."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch import distributed as dist

from hpc_kit.errors import HpcKitError
from hpc_kit.runtime.first_failure import is_peer_loss
from hpc_kit.runtime.restart import checkpoint_folder
from hpc_kit.runtime.restart.all_ranks import gather, own_rank, run_on_all, world_size
from hpc_kit.runtime.restart.attempts import ATTEMPT_VARIABLE, job_identity, write_error
from hpc_kit.runtime.restart.checkpoint_folder import CheckpointInfo

_WRITE_TIMEOUT = timedelta(minutes=30)
"""Ranks may need very different times to write their parts to a busy disk."""


class Written(NamedTuple):
    """The end of a save."""

    path: Path
    done: int
    """Steps of the training."""

    seconds: float


class CheckpointWriter:
    """Writes checkpoints into a folder, in this thread or in another one."""

    def __init__(
        self, folder: Path, keep: int, options: dict[str, str], group: dist.ProcessGroup | None, *, own_group: bool
    ) -> None:
        self.folder, self.keep, self.options = folder, keep, options
        self.group = new_cpu_group() if own_group else group
        self.path = folder
        """The checkpoint that is written in the thread."""

        self._executor: ThreadPoolExecutor | None = None
        self._running: Future[Written] | None = None
        self._stager: Any = None
        self._staged: dict[str, tuple[torch.Size, torch.dtype]] = {}

    @property
    def is_busy(self) -> bool:
        """True while a save runs in the thread."""
        return self._running is not None and not self._running.done()

    def start(self, done: int, state: dict[str, Tensor], digests: Callable[[Mapping[str, Tensor]], Any]) -> None:
        """Copy the state, and write the copy in a thread."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="hpc_kit_save")
        self.path = checkpoint_folder.checkpoint_path(self.folder, done)
        self._running = self._executor.submit(self.write, done, self._copy(state), digests)

    def _copy(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a copy of the tensors in the memory of the host."""
        from torch.distributed.checkpoint.staging import BlockingAsyncStager

        # Bytes of encoded objects are new in each call, and may have another length.
        tensors = {name: value for name, value in state.items() if value.dtype != torch.uint8 or value.is_cuda}
        shapes = {name: (value.shape, value.dtype) for name, value in tensors.items()}
        if shapes != self._staged:
            # On a GPU, the same pinned memory is used again: copies to it are several times faster.
            self._stager = BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
            self._staged = shapes
        return {**state, **self._stager.stage(tensors)}

    def result(self) -> Written | None:
        """Wait for the save in the thread, and return its end; None if there was none."""
        running, self._running = self._running, None
        return running.result() if running else None

    def close(self) -> None:
        """End the thread."""
        if self._executor:
            self._executor.shutdown()
            self._executor = None

    def write(self, done: int, state: dict[str, Tensor], digests: Callable[[Mapping[str, Tensor]], Any]) -> Written:
        """Write a checkpoint, and remove old ones.

        Raises:
            SpecError: It cannot be written, on every rank.
        """
        from torch.distributed import checkpoint as dcp

        begun, is_main = time.monotonic(), own_rank() == 0
        path = checkpoint_folder.checkpoint_path(self.folder, done)
        draft = checkpoint_folder.draft_of(path)
        if is_main:
            shutil.rmtree(draft, ignore_errors=True)
        gather(None, self.group)  # no rank writes before rank 0 has removed what a failed save left
        try:
            with without_warning():
                dcp.state_dict_saver.save(
                    state,
                    storage_writer=dcp.filesystem.FileSystemWriter(draft),
                    # Of equal copies, the lowest rank's counts: with DistributedDataParallel, its buffers do.
                    planner=dcp.default_planner.DefaultSavePlanner(dedup_save_to_lowest_rank=True),
                    process_group=self.group,
                )
        except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
            if isinstance(error, RuntimeError) and is_peer_loss(error):
                raise  # not a problem of the disk: another rank did not come or has died
            shutil.rmtree(draft, ignore_errors=True)
            raise write_error(path, last_line(error)) from error
        try:
            checksums = run_on_all(partial(checkpoint_folder.compute_own_checksums, draft, own_rank()), self.group)
            own = digests(state)
            parts = gather((checksums, own, time.monotonic() - begun), self.group)
            info = CheckpointInfo(
                step=done,
                time=time.time(),
                seconds=round(max(seconds for *_, seconds in parts), 3),
                ranks=world_size(),
                shared=[name for name in own if all(each[name] == own[name] for _, each, _ in parts)],
                options=self.options,
                checksums={name: value for each, _, _ in parts for name, value in each.items()},
                run=job_identity(os.environ),
                attempt=int(os.environ.get(ATTEMPT_VARIABLE, "") or 1),
            )
            run_on_all(lambda: self._publish(draft, path, info) if is_main else None, self.group)
        except HpcKitError:
            if is_main:
                shutil.rmtree(draft, ignore_errors=True)
            raise
        return Written(path, done, time.monotonic() - begun)

    def _publish(self, draft: Path, path: Path, info: CheckpointInfo) -> None:
        try:
            saved, _ = checkpoint_folder.list_checkpoints(self.folder)
            info["number"] = 1 + max((each.info.get("number", 0) for each in saved), default=0)
            checkpoint_folder.publish(draft, path, info)
            checkpoint_folder.point_latest_to(path)
            checkpoint_folder.remove_old(self.folder, self.keep)
        except OSError as error:
            raise write_error(path, error.strerror or str(error)) from error


def new_cpu_group() -> dist.ProcessGroup | None:
    """Return a group of all ranks for messages between CPUs; None without a process group.

    While one rank writes to a slow disk, the ranks wait longer than the time-out of the training may allow.
    """
    if not dist.is_initialized():
        return None
    return cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=_WRITE_TIMEOUT))


@contextmanager
def without_warning() -> Iterator[None]:
    """Silence torch's remark that a single process saves or loads, which is on purpose here."""
    if dist.is_initialized():
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def last_line(error: BaseException) -> str:
    """Return the last line of an error: torch puts the messages of all ranks below a heading."""
    return str(error).strip().rpartition("\n")[2] or type(error).__name__
