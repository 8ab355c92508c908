"""Layers on two devices: what idle halves cost and what splitting the batch gains; schedules against their promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.bench import local_ranks as ranks
from hpc_kit.bench import room
from hpc_kit.bench.results import Column
from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Sheet

TITLE = "Layers on two devices, and the schedules of a pipeline"
COLUMNS = {
    "seconds": Column(unit="s"),
    "gain": Column(unit="%", better="higher", title="quicker than one device"),
    "tutorial": Column(unit="%", better="none", title="in the tutorial", kind="reckoned"),
    "efficiency": Column(better="higher"),
    "ideal": Column(better="none", title="m / (m + p - 1)", kind="reckoned"),
    "ideal_of_stages": Column(better="none", title="v m / (v m + p - 1)", kind="reckoned"),
}
SPLITS, SCHEDULES = "splits", "schedules"
SWEEPS = (SPLITS, SCHEDULES)

_TIMEOUT = 86_400.0
"""Seconds: --full takes hours where there is no GPU."""
_SMALLEST_IMAGE = 33
"""The last blocks see 1 x 1 of a smaller one, of which a split of one image has no variance to normalise by."""
_BYTES_PER_PIXEL = 2048
"""What forward keeps for backward."""


class Question(NamedTuple):
    """What is to be measured."""

    sweeps: tuple[str, ...] = SWEEPS
    image: int = 40
    """Pixels along a side."""
    batch: int = 120
    batches: int = 1
    """Of a repeat."""
    repeats: int = 3
    splits: tuple[int, ...] = (1, 3, 5, 8, 10, 12, 20, 40, 60)
    schedules: tuple[str, ...] = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
    """torch's names."""
    micro_batches: tuple[int, ...] = (2, 4, 8, 16)
    ranks: int = 2


FULL = {"image": 128, "batches": 3, "repeats": 10}
"""The tutorial's own size: hours on two cores."""


def measure(asked: Question, sheet: Sheet) -> None:
    """Both sweeps.

    Raises:
        SpecError: A number is out of range, or the batch does not fit into memory.
        JobFailed: A rank failed.
    """
    refuse(asked)
    ranks.measure("hpc_kit.bench.pipeline_rank", asked._asdict(), sheet, ranks=asked.ranks, timeout=_TIMEOUT)


def refuse(asked: Question) -> None:
    """Say what cannot be measured before anything is.

    Raises:
        SpecError: A number is out of range, or the batch does not fit into memory.
    """
    if unknown := [name for name in asked.sweeps if name not in SWEEPS]:
        raise SpecError(f"unknown sweep {unknown[0]!r}", found=",".join(asked.sweeps), remedy=",".join(SWEEPS))
    if asked.ranks < 2:
        raise SpecError("a pipeline needs two ranks", found=f"--ranks {asked.ranks}", remedy="--ranks 2")
    if SCHEDULES in asked.sweeps and (few := min(asked.micro_batches)) < asked.ranks:
        raise SpecError(
            "there are fewer micro-batches than stages in a row",
            found=f"--micro-batches {few}, --ranks {asked.ranks}",
            remedy=f"--micro-batches {asked.ranks} or more",
        )
    if SPLITS in asked.sweeps:
        _refuse_splits(asked)


def batch_bytes(asked: Question) -> int:
    """What one device keeps of a batch for backward, about."""
    return _BYTES_PER_PIXEL * asked.image**2 * asked.batch


def _refuse_splits(asked: Question) -> None:
    if asked.ranks != 2:
        raise SpecError(
            "two halves need two ranks", found=f"--ranks {asked.ranks}", remedy="--ranks 2, or --sweeps schedules"
        )
    if asked.image < _SMALLEST_IMAGE:
        raise SpecError(
            "the images are too small for ResNet-50 in splits of one",
            found=f"--image {asked.image}",
            remedy=f"--image {_SMALLEST_IMAGE} or more",
        )
    if (largest := max(asked.splits)) > asked.batch:
        raise SpecError(
            "a split is larger than the batch",
            found=f"--splits {largest}, --batch {asked.batch}",
            remedy=f"splits of at most {asked.batch}, or a larger --batch",
        )
    room.refuse_beyond(
        2 * batch_bytes(asked),
        f"a batch of {asked.batch} images of {asked.image} x {asked.image}",
        "a smaller --image or --batch",
    )
