"""The folder of a training's checkpoints: `step-500/`, `step-1000/`, and the link `latest`.

A checkpoint is written under a hidden name and renamed when all of it is on the disk. So each `step-N` is complete, and
a kill at any moment loses none. `about.json` in a checkpoint contains the sizes and checksums of its files.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypedDict, cast

from hpc_kit.errors import SpecError
from hpc_kit.runtime.restart.attempts import write_error

INFO_FILE = "about.json"
"""The last file that is written into a checkpoint. It describes the files before."""

LATEST = "latest"
"""Link to the checkpoint that was written last."""

_PREFIX, _PART, _OLD, _DAMAGED = "step-", ".part", ".old", ".damaged"
_READ_BYTES = 1 << 24


class CheckpointInfo(TypedDict, total=False):
    """The content of `about.json`."""

    step: int
    """Steps that are done."""
    number: int
    """Checkpoints of this folder are numbered in the order in which they were written."""
    time: float
    """Unix time at which it was written."""
    seconds: float
    """Seconds that the slowest rank needed to write it."""
    ranks: int
    shared: list[str]
    """Names of the objects whose state is the same on all ranks."""
    options: dict[str, str]
    """Values that describe the training."""
    files: dict[str, int]
    """Sizes of the files of the checkpoint in bytes."""
    checksums: dict[str, int]
    """CRC-32 of the files."""
    run: str
    """The training that wrote it, see `job_identity`."""
    attempt: int


class Saved(NamedTuple):
    """A checkpoint that was found."""

    path: Path
    info: CheckpointInfo


class Damage(NamedTuple):
    """The fault of a checkpoint that cannot be used."""

    text: str
    is_permanent: bool
    """False if another attempt to read it may succeed."""


def prepare_folder(folder: Path) -> None:
    """Create the folder of checkpoints, and check that it can be written.

    Raises:
        SpecError: It cannot, or it contains something else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_checkpoint = (folder / INFO_FILE).is_file()
    except OSError as error:
        raise write_error(folder, error.strerror or str(error)) from None
    if is_checkpoint:
        raise write_error(folder, "this is a single checkpoint, not a folder of checkpoints")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise write_error(folder, "the folder is not writable for you")


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed save left, and bring back a checkpoint that it was about to replace."""
    for draft in folder.glob(f".{_PREFIX}*{_PART}"):
        shutil.rmtree(draft, ignore_errors=True)
    for old in folder.glob(f".{_PREFIX}*{_OLD}"):
        path = folder / old.name.removeprefix(".").removesuffix(_OLD)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            with suppress(OSError):
                old.rename(path)


def draft_of(path: Path) -> Path:
    """Return the hidden path under which a checkpoint, folder or file, is written before it is renamed."""
    return path.with_name(f".{path.name}{_PART}")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"{_PREFIX}{step}"


def find_checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the paths of the checkpoints of a folder, in no order; a path that is a checkpoint itself yields itself."""
    if (folder / INFO_FILE).is_file():
        yield folder
        return
    for path in folder.glob(f"{_PREFIX}*"):
        if path.name.removeprefix(_PREFIX).isdigit():
            yield path


def list_checkpoints(folder: Path) -> tuple[list[Saved], dict[Path, Damage]]:
    """Return the checkpoints of a folder, the newest first, and the faults of those that cannot be used."""
    saved, damages = [], {}
    for path in find_checkpoints(folder):
        found = read_info(path)
        if isinstance(found, Damage):
            damages[path] = found
        else:
            saved.append(Saved(path, found))
    return sorted(saved, key=lambda each: each.info.get("number", 0), reverse=True), damages


def read_info(path: Path) -> CheckpointInfo | Damage:
    """Return the info of a checkpoint whose files are all there in their full length."""
    try:
        info = json.loads((path / INFO_FILE).read_text())
        for name, size in info["files"].items():
            if (found := (path / name).stat().st_size) != size:
                return Damage(f"{name} has {found} bytes of {size}", is_permanent=True)
        if not isinstance(info["step"], int) or not isinstance(info.get("number", 0), int):
            return Damage(f"{INFO_FILE} contains no step", is_permanent=True)
        return cast("CheckpointInfo", info)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        is_transient = isinstance(error, OSError) and not isinstance(error, FileNotFoundError | NotADirectoryError)
        return Damage(f"{type(error).__name__}: {error}", is_permanent=not is_transient)


def verify_checksums(path: Path, info: CheckpointInfo, rank: int, ranks: int) -> Damage | None:
    """Check one rank's share of the files, because torch loads changed bits without an error."""
    written = info.get("checksums", {})
    for name in sorted(written)[rank::ranks]:
        try:
            found = compute_checksum(path / name)
        except OSError as error:
            return Damage(f"{name}: {error.strerror or error}", is_permanent=False)
        if found != written[name]:
            return Damage(f"{name} has checksum {found:08x}, {written[name]:08x} was written", is_permanent=True)
    return None


def compute_checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def compute_own_checksums(draft: Path, rank: int) -> dict[str, int]:
    """Return the checksums of the files that this rank wrote. Another host may not see them yet.

    Raises:
        SpecError: A file cannot be read back.
    """
    files = [*draft.glob(f"__{rank}_*"), *([draft / ".metadata"] if rank == 0 else [])]
    try:
        return {file.name: compute_checksum(file) for file in files}
    except OSError as error:
        raise write_error(draft, error.strerror or str(error)) from None


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint of a folder, so that it no longer counts as one; returns the new path."""
    target = path.with_name(path.name + _DAMAGED)
    with suppress(OSError):
        shutil.rmtree(target, ignore_errors=True)
        path.rename(target)
        return target
    return path


def publish(draft: Path, path: Path, info: CheckpointInfo) -> None:
    """Rename a complete draft to the checkpoint, when all of it is on the disk; `about.json` is written last.

    Raises:
        OSError: The disk is full or gone. What was at `path` before is still there.
    """
    info["files"] = {file.name: file.stat().st_size for file in sorted(draft.iterdir())}
    with (draft / INFO_FILE).open("w") as file:
        json.dump(info, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(draft)
    old = path.with_name(f".{path.name}{_OLD}")
    if path.exists():  # rename() replaces no folder that contains files
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    try:
        draft.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise
    _sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def point_latest_to(path: Path) -> None:
    """Let the link `latest` point to a checkpoint. A file system without links is accepted."""
    link = path.with_name(LATEST)
    draft = draft_of(link)
    with suppress(OSError):
        draft.unlink(missing_ok=True)
        draft.symlink_to(path.name)
        draft.replace(link)
        _sync_folder(path.parent)


def remove_old(folder: Path, keep: int) -> None:
    """Remove all but the newest checkpoints of a folder."""
    saved, _ = list_checkpoints(folder)
    for path, _ in saved[keep:]:
        # Renamed first: a kill in the middle of the removal must not leave a damaged checkpoint.
        gone = draft_of(path)
        with suppress(OSError):
            path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot do this for a folder
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def damage_error(path: Path, damage: str) -> SpecError:
    """Return the error of a checkpoint that was requested and cannot be used."""
    return SpecError(
        "the checkpoint is damaged",
        found=f"{path}: {damage}",
        remedy="resume from an earlier one; without one, start from the beginning in another folder",
    )
