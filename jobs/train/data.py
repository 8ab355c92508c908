"""The data: the source text of Python's own standard library, as bytes. Plain torch, nothing is downloaded.

Which windows of text make the global batch of a step follows from (seed, step) alone, and a rank takes its slice of it.
There is no sampler to keep in step and none to forget `set_epoch` on; the loss curve does not depend on the ranks.
"""

from __future__ import annotations

import os
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

HELD_BACK = 16  # one file in so many is kept for evaluation
LARGEST = 1 << 20  # bytes; a larger file is a table that a program wrote
# What others installed, and tests, which not every distribution of Python brings.
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
# Written on installing, with the paths of that machine in them: they would differ between nodes.
SKIPPED_NAMES = ("_sysconfigdata", "python-config", "sitecustomize", "usercustomize")


@dataclass(frozen=True)
class Text:
    """What is trained on and what is held back, each as one row of bytes."""

    training: Tensor
    held_back: Tensor
    files: int
    checksum: int

    def __str__(self) -> str:
        """Ranks that print the same line have read the same text."""
        size = self.training.numel() + self.held_back.numel()
        return f"{self.files} files, {size} bytes, crc {self.checksum:08x}"


def read_text(folder: Path | None = None) -> Text:
    """Every Python file below `folder` (the standard library's), in one order on every machine."""
    root = folder or Path(sysconfig.get_path("stdlib"))
    training, held_back, files, checksum = bytearray(), bytearray(), 0, 0
    for name in sorted(python_files(root)):
        path = root / name
        try:
            if not path.is_file() or path.stat().st_size > LARGEST:
                continue
            content = path.read_bytes()
        except OSError:
            continue  # not ours to read
        # By the hash of its name: a file more, in another version of Python, moves no other file across.
        chosen = held_back if zlib.crc32(os.fsencode(name)) % HELD_BACK == 0 else training
        chosen.extend(content)
        checksum = zlib.crc32(content, checksum)
        files += 1
    return Text(as_tensor(training), as_tensor(held_back), files, checksum)


def python_files(root: Path) -> Iterator[str]:
    """Names relative to `root`."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        for name in names:
            if name.endswith(".py") and not name.startswith(SKIPPED_NAMES):
                yield Path(folder, name).relative_to(root).as_posix()


def as_tensor(text: bytearray) -> Tensor:
    """The bytes themselves, not a copy of them."""
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def window_count(text: Tensor, sequence: int) -> int:
    """How many windows of `sequence` bytes lie side by side in the text, each followed by one byte more."""
    return max(0, text.numel() - 1) // sequence


def cut(text: Tensor, sequence: int, numbers: Tensor) -> Tensor:
    """The windows of these numbers, `sequence` + 1 bytes each: inputs are `[:, :-1]`, targets `[:, 1:]`."""
    return text[numbers[:, None] * sequence + torch.arange(sequence + 1)].long()


def batch_numbers(windows: int, global_batch: int, *, seed: int, step: int) -> Tensor:
    """The windows of one step, for all ranks: each window once an epoch, every epoch in an order of its own."""
    if windows < global_batch:
        raise ValueError(f"the text has {windows} windows, fewer than a global batch of {global_batch}")
    first = step * global_batch
    places = torch.arange(first, first + global_batch)
    epochs = range(first // windows, (first + global_batch - 1) // windows + 1)
    return torch.cat(
        [epoch_order(windows, seed, epoch)[places[places // windows == epoch] % windows] for epoch in epochs]
    )


@lru_cache(maxsize=2)  # a batch may begin in one epoch and end in the next
def epoch_order(windows: int, seed: int, epoch: int) -> Tensor:
    stream = torch.Generator().manual_seed(zlib.crc32(f"{seed}/epoch {epoch}".encode()))
    return torch.randperm(windows, generator=stream)


def rank_slice(numbers: Tensor, rank: int, ranks: int) -> Tensor:
    """A rank's part of a global batch. All parts are equally long: the mean of their means is the batch's mean."""
    if numbers.numel() % ranks:
        raise ValueError(f"{ranks} ranks do not divide a global batch of {numbers.numel()}")
    return numbers.chunk(ranks)[rank]


def evaluation_numbers(windows: int, wanted: int, rank: int, ranks: int) -> Tensor:
    """A rank's held-back windows: `wanted` of all, evenly spread, each on one rank; parts may differ by one."""
    wanted = min(wanted, windows)
    return (torch.arange(wanted) * windows // max(1, wanted))[rank::ranks]


@dataclass
class Feed:
    """A rank's windows, step by step, on its device. A GPU gets those of the next step while it computes."""

    windows: Callable[[int], Tensor]
    """Those of a step, in the host's memory."""
    device: torch.device
    coming: tuple[int, Tensor] | None = None

    def take(self, step: int) -> Tensor:
        known, windows = self.coming or (-1, None)
        return windows if windows is not None and known == step else self.sent(step)

    def ahead(self, step: int) -> None:
        """To be called when the work of the step before has been handed to the GPU, which is busy with it now."""
        if self.device.type == "cuda":
            self.coming = step, self.sent(step)

    def sent(self, step: int) -> Tensor:
        windows = self.windows(step)
        if self.device.type == "cuda":
            windows = windows.pin_memory()  # only from there does the copy leave the host free
        return windows.to(self.device, non_blocking=True)
