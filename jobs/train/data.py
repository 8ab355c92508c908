"""The data: the source text of Python's standard library, as bytes. It needs torch alone and downloads nothing.

The windows of text in a global batch follow from (seed, step) alone, and each rank takes its share of them. So there is
no sampler to keep in step and no `set_epoch` to forget, and the loss curve does not depend on the number of ranks.
"""

from __future__ import annotations

import os
import pickle
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist

HELD_BACK = 16  # one file in 16 is held back for evaluation
LARGEST = 1 << 20  # bytes; a larger file is a generated table
# Installed packages, and tests, which some distributions of Python leave out.
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
# Generated on installation, with paths of that machine: they would differ between nodes.
SKIPPED_NAMES = ("_sysconfigdata", "python-config", "sitecustomize", "usercustomize")


@dataclass(frozen=True)
class Text:
    """The text to train on and the text held back for evaluation, each as one row of bytes."""

    training: Tensor
    held_back: Tensor
    files: int
    checksum: int

    def __str__(self) -> str:
        """Return a line that differs between ranks if their texts differ."""
        size = self.training.numel() + self.held_back.numel()
        return f"{self.files} files, {size} bytes, crc {self.checksum:08x}"


def read_text(folder: Path | None = None) -> Text:
    """Read every Python file below `folder` (default: the standard library), in one order on every machine."""
    root = folder or Path(sysconfig.get_path("stdlib"))
    training, held_back, files, checksum = bytearray(), bytearray(), 0, 0
    for name in sorted(find_python_files(root)):
        path = root / name
        try:
            if not path.is_file() or path.stat().st_size > LARGEST:
                continue
            content = path.read_bytes()
        except OSError:
            continue  # not readable for this user
        # Split by the hash of the name: a file that only one version of Python has moves no other file.
        part = held_back if zlib.crc32(os.fsencode(name)) % HELD_BACK == 0 else training
        part.extend(content)
        checksum = zlib.crc32(content, checksum)
        files += 1
    return Text(as_tensor(training), as_tensor(held_back), files, checksum)


def find_python_files(root: Path) -> Iterator[str]:
    """Yield names relative to `root`."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        for name in names:
            if name.endswith(".py") and not name.startswith(SKIPPED_NAMES):
                yield Path(folder, name).relative_to(root).as_posix()


def as_tensor(text: bytearray) -> Tensor:
    """Return the bytes themselves as a tensor, not a copy."""
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def read_text_once_per_node(folder: Path | None, *, local_rank: int, node_rank: int) -> Text:
    """Return the text. One rank of each node reads the files, and the other ranks of the node map its memory."""
    text = read_text(folder) if local_rank == 0 else None
    with share_in_memory(text) as shared_path:
        paths: list[tuple[int, str] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(paths, (node_rank, shared_path))
        if text is None:
            found = [path for node, path in filter(None, paths) if node == node_rank and path]
            text = map_text(found[0] if found else "") or read_text(folder)
        dist.all_gather_object(paths, None)  # a barrier: all ranks have mapped the memory before it is freed
    return text


@contextmanager
def share_in_memory(text: Text | None) -> Iterator[str]:
    """Yield a path by which other processes of this host can map the text."""
    if text is None:
        yield ""
        return
    # A file without a name in any folder: a kill cannot leave it behind.
    with os.fdopen(os.memfd_create("text"), "wb") as file:
        torch.save(vars(text), file)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def map_text(path: str) -> Text | None:
    """Return the text at this path without copying it; None if processes may not see each other's files."""
    try:
        return Text(**torch.load(path, mmap=True))
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError):
        return None


def count_windows(text: Tensor, sequence: int) -> int:
    """Return the number of windows of `sequence` bytes in the text, each followed by one more byte."""
    return max(0, text.numel() - 1) // sequence


def cut_windows(text: Tensor, sequence: int, numbers: Tensor) -> Tensor:
    """Return windows of `sequence` + 1 bytes: `[:, :-1]` are the inputs, `[:, 1:]` the targets."""
    return text[numbers[:, None] * sequence + torch.arange(sequence + 1)].long()


def choose_windows(windows: int, global_batch: int, *, seed: int, step: int) -> Tensor:
    """Return the numbers of the windows of one step. An epoch has each window once, in its own order."""
    if windows < global_batch:
        raise ValueError(f"the text has {windows} windows, fewer than a global batch of {global_batch}")
    first = step * global_batch
    places = torch.arange(first, first + global_batch)
    epochs = range(first // windows, (first + global_batch - 1) // windows + 1)
    return torch.cat(
        [shuffle_epoch(windows, seed, epoch)[places[places // windows == epoch] % windows] for epoch in epochs]
    )


@lru_cache(maxsize=2)  # a batch may begin in one epoch and end in the next
def shuffle_epoch(windows: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the windows in an epoch."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/epoch {epoch}".encode()))
    return torch.randperm(windows, generator=generator)


def take_share(numbers: Tensor, rank: int, ranks: int) -> Tensor:
    """Return a rank's share of a global batch. Shares are equally long, so the mean of their means is the mean."""
    if numbers.numel() % ranks:
        raise ValueError(f"{ranks} ranks do not divide a global batch of {numbers.numel()}")
    return numbers.chunk(ranks)[rank]


def choose_evaluation_windows(windows: int, wanted: int, rank: int, ranks: int) -> Tensor:
    """Return a rank's share of `wanted` evenly spread windows. The shares differ by one window at most."""
    wanted = min(wanted, windows)
    return (torch.arange(wanted) * windows // max(1, wanted))[rank::ranks]


@dataclass
class Prefetcher:
    """Copies the windows of each step to the device, those of the next step while a GPU computes."""

    windows_of_step: Callable[[int], Tensor]
    device: torch.device
    fetched: tuple[int, Tensor] | None = None

    def take(self, step: int) -> Tensor:
        """Return the windows of a step on the device."""
        number, windows = self.fetched or (-1, None)
        return windows if windows is not None and number == step else self.move(step)

    def fetch(self, step: int) -> None:
        """Start to copy the windows of the next step. Call this when the work of this step is queued on the GPU."""
        if self.device.type == "cuda":
            self.fetched = step, self.move(step)

    def move(self, step: int) -> Tensor:
        windows = self.windows_of_step(step)
        if self.device.type == "cuda":
            windows = windows.pin_memory()  # only copies from pinned memory are asynchronous
        return windows.to(self.device, non_blocking=True)
