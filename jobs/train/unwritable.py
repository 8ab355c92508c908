"""The error of a checkpoint that cannot be written."""

from __future__ import annotations

from pathlib import Path

from hpc_kit.errors import SpecError


def unwritable(path: Path, trouble: str) -> SpecError:
    found, remedy = f"--checkpoint {path}: {trouble}", "a new folder on a disk with room, in a folder of your own"
    return SpecError("the checkpoint cannot be written", found=found, remedy=remedy)
