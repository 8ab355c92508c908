"""Folders that other users may write to, such as those of a project of a group: its files have the umask 002.

Each member can create runs there, and no member can replace those of another one. The owner of a folder is trusted, as
root is for /tmp: only the owner can rename and delete the entries of the others.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_ISVTX, S_IWGRP, S_IWOTH

from hpc_kit.errors import RecordError


def make_folder(folder: Path, mode: int = 0o777) -> list[Path]:
    """Create a folder and its parents, with protected entries; returns the created folders, outermost first.

    Raises:
        RecordError: A folder cannot be created.
    """
    made: list[Path] = []
    try:
        missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
        for each in reversed(missing):
            each.mkdir(mode, exist_ok=True)
            made.append(each)
            protect_entries(each)
    except OSError as error:
        remove_empty_folders(made)
        raise RecordError(
            f"cannot make the folder {folder}",
            found=error.strerror or str(error),
            remedy="choose one that you may write to: runs = '/path' in the cluster file, or --set cluster.runs=/path",
        ) from error
    return made


def protect_entries(folder: Path) -> None:
    """Set the sticky bit of a folder that others may write to: they cannot rename or delete entries of this user."""
    with suppress(OSError):  # it is another user's folder
        mode = folder.stat().st_mode
        if mode & (S_IWGRP | S_IWOTH) and not mode & S_ISVTX:
            folder.chmod(S_IMODE(mode) | S_ISVTX)


def remove_empty_folders(made: list[Path]) -> None:
    """Remove the folders that `make_folder` created, as far as they are still empty."""
    for folder in reversed(made):
        try:
            folder.rmdir()
        except OSError:
            continue


def belongs_to_user(path: Path) -> bool:
    """Return whether a file or folder is this user's or root's. A link is judged itself, not its target.

    Raises:
        OSError: There is no such file.
    """
    return path.lstat().st_uid in {os.getuid(), 0}


def own_folder(folder: Path) -> Path:
    """Return the folder, or, if it is another user's, one beside it whose name ends with this user's id."""
    with suppress(OSError):
        if folder.lstat().st_uid != os.getuid():
            return folder.with_name(f"{folder.name}-{os.getuid()}")
    return folder
