"""What a checkpoint says of itself, and whether that is so."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TypedDict

from hpc_kit.errors import SpecError
from restart import ABOUT, moved

CHUNK = 1 << 24
"""Bytes that are read at once."""


class About(TypedDict):
    """What is said of a checkpoint beside its numbers."""

    step: int
    shape: dict[str, int]
    options: dict[str, str]
    """Those that decide which numbers come next."""
    files: dict[str, int]
    """Sizes in bytes."""
    checksums: dict[str, int]
    """CRC-32 of each."""
    run: str
    """Whose it is: `restart.identity`."""


def whole(path: Path) -> About:
    """What a checkpoint says of itself, if all of it is there.

    Raises:
        SpecError: it is missing, cut short, or no checkpoint at all.
    """
    if not path.exists():
        old = moved(path)
        back = f"mv {old} {path}: a kill while writing left it there"
        found, remedy = f"--resume {path}", back if old.exists() else "a path that every node sees"
        raise SpecError("there is no checkpoint", found=found, remedy=remedy)
    try:
        about: About = json.loads((path / ABOUT).read_text())
        sizes = {name: (path / name).stat().st_size for name in about["files"]}
        wrong = [
            f"{name} has {sizes[name]} bytes of {size}" for name, size in about["files"].items() if sizes[name] != size
        ]
        trouble = ", ".join(wrong) or ("" if {"step", "shape"} <= about.keys() else f"{ABOUT} says no step or shape")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        trouble = f"{type(error).__name__}: {error}"
    if trouble:
        raise SpecError(
            "this is not a whole checkpoint",
            found=f"--resume {path}: {trouble}",
            remedy="an earlier one: this was cut short, or another program wrote it",
        )
    return about


def compare_shapes(path: Path, theirs: dict[str, int], ours: dict[str, int]) -> None:
    different = [name for name in ours if theirs.get(name) != ours[name]]
    if different:
        raise SpecError(
            "the checkpoint is another model's",
            found=", ".join(f"{name} {theirs.get(name)} in {path}, {ours[name]} asked for" for name in different),
            remedy=" ".join(f"--{name} {theirs.get(name)}" for name in different),
        )


def checksum(path: Path) -> int:
    """CRC-32 of a file's content."""
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found = zlib.crc32(chunk, found)
    return found


def compare_checksums(path: Path, about: About, rank: int, ranks: int) -> None:
    """Read this rank's share of the files: torch takes whatever bits lie where numbers are expected.

    Raises:
        SpecError: one is not what was written.
    """
    written = about.get("checksums", {})
    for name in sorted(written)[rank::ranks]:
        if (found := checksum(path / name)) != written[name]:
            raise SpecError(
                "the checkpoint is damaged",
                found=f"--resume {path}: {name} has checksum {found:08x}, {written[name]:08x} was written",
                remedy=f"an earlier one; where there is none, from the beginning: rm -r {path}",
            )
