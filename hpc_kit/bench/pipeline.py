"""Options of `hpc-kit bench pipeline`: a network on two devices, and the schedules of pipelines."""

from __future__ import annotations

from typing import NamedTuple

from hpc_kit.bench import option_checks
from hpc_kit.bench.results import Column
from hpc_kit.errors import SpecError

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

_SMALLEST_IMAGE = 33
"""Smaller images shrink to 1 x 1 in the last blocks, where batch normalisation of one image fails."""
_BYTES_PER_PIXEL = 2048
"""Bytes of activations that ResNet-50 keeps for the backward pass, for each pixel of an image."""


class PipelineOptions(NamedTuple):
    """Options of `bench pipeline`."""

    sweeps: tuple[str, ...] = SWEEPS
    image: int = 64
    """Pixels along a side.

    64 is the smallest size at which both halves take equally long on a CPU. At 40 the second half takes twice as long,
    because its last images have 2 x 2 pixels, and the curve has no minimum inside.
    """
    batch: int = 120
    batches: int = 1
    """Batches in a repeat."""
    repeats: int = 3
    splits: tuple[int, ...] = (1, 3, 5, 8, 10, 12, 20, 40, 60)
    schedules: tuple[str, ...] = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
    micro_batches: tuple[int, ...] = (2, 4, 8, 16)
    ranks: int = 2

    def check(self) -> None:
        """Check the options before anything is measured.

        Raises:
            SpecError: A number is out of range, or the batch does not fit into memory.
        """
        option_checks.check_known_names("sweep", self.sweeps, SWEEPS)
        option_checks.check_several_ranks(self.ranks, "a pipeline needs two ranks")
        if SCHEDULES in self.sweeps and (few := min(self.micro_batches)) < self.ranks:
            raise SpecError(
                "there are fewer micro-batches than stages in a row",
                found=f"--micro-batches {few}, --ranks {self.ranks}",
                remedy=f"--micro-batches {self.ranks} or more",
            )
        if SPLITS in self.sweeps:
            _check_splits(self)


FULL = {"image": 128, "batches": 3, "repeats": 10}
"""Sizes of the PyTorch tutorial: hours on two cores."""


def batch_bytes(options: PipelineOptions) -> int:
    """Return roughly the bytes that one device keeps of a batch for the backward pass."""
    return _BYTES_PER_PIXEL * options.image**2 * options.batch


def _check_splits(options: PipelineOptions) -> None:
    if options.ranks != 2:
        raise SpecError(
            "two halves need two ranks", found=f"--ranks {options.ranks}", remedy="--ranks 2, or --sweeps schedules"
        )
    if options.image < _SMALLEST_IMAGE:
        raise SpecError(
            "the images are too small for ResNet-50 in splits of one",
            found=f"--image {options.image}",
            remedy=f"--image {_SMALLEST_IMAGE} or more",
        )
    if (largest := max(options.splits)) > options.batch:
        raise SpecError(
            "a split is larger than the batch",
            found=f"--splits {largest}, --batch {options.batch}",
            remedy=f"splits of at most {options.batch}, or a larger --batch",
        )
    option_checks.check_memory(
        2 * batch_bytes(options),  # both devices are ranks on this host
        f"a batch of {options.batch} images of {options.image} x {options.image}",
        "a smaller --image or --batch",
    )
