"""The shell files that rendered scripts call: from templates/shell they are copied to the runs folder of the project.

A job may wait for days while hpc_kit is upgraded. Therefore a hash of the content names the folder, and the files in it
never change. Jobs execute them, so each user of a common project has a folder of their own.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path, PurePath
from typing import NamedTuple

from hpc_kit.errors import RecordError, explain_file_errors
from hpc_kit.run_files import write_whole
from hpc_kit.script.context import working_folder
from hpc_kit.shared_folders import belongs_to_user, make_folder, own_folder, protect_entries
from hpc_kit.spec import search_path
from hpc_kit.spec.resolve import Resolved

FOLDER = ".shell"
"""The folder inside the runs folder."""


class ShellFiles(NamedTuple):
    """The shell files of one rendering.

    Attributes:
        texts: Their texts by name.
        folder: The folder of the copies, relative to the folder that the script runs in.
    """

    texts: dict[str, str]
    folder: str

    @property
    def code(self) -> dict[str, str]:
        """The texts for a standalone script: without the comment at the head of each file."""
        return {name: _without_head(text) for name, text in self.texts.items()}


def read_shell_files(resolved: Resolved, root: Path) -> ShellFiles:
    """Return the shell files for the script of a job; a file of the project replaces the shipped one of its name."""
    folders = [folder / "shell" for folder in reversed(search_path.search_folders("templates", root))]
    paths = {path.name: path for folder in folders for path in sorted(folder.glob("*.sh"))}
    # The scripts of other jobs stay as they are when these files change.
    unused = {"restart.sh", "spares.sh"} if resolved.job.restart is None else set()
    unused |= set() if resolved.job.preflight.enabled else {"preflight.sh"}
    unused |= {"history.sh"} if {"restart.sh", "preflight.sh"} <= unused else set()
    paths = {name: path for name, path in paths.items() if name not in unused}
    texts = {name: paths[name].read_text(encoding="utf-8") for name in sorted(paths)}
    digest = hashlib.sha256("\0".join(word for item in texts.items() for word in item).encode()).hexdigest()
    # The name starts with a letter, because folders below `runs` that are named by a number are jobs.
    own = own_folder(working_folder(resolved, root) / resolved.cluster.runs / FOLDER)
    return ShellFiles(texts, f"{resolved.cluster.runs}/{own.name}/h{digest[:8]}")


def write_shell_files(text: str, resolved: Resolved, root: Path) -> None:
    """Write the shell files that a script calls, unless they exist; a standalone script calls none."""
    files = read_shell_files(resolved, root)
    # The beginning of the path may be quoted in the script; its end never is.
    if "/".join(PurePath(files.folder).parts[-2:]) not in text:
        return
    project = working_folder(resolved, root)
    folder = project / files.folder
    what = f"cannot write the shell files of the script to {folder}"
    remedy = "choose another folder: --set cluster.runs=/path; or use --standalone, which needs no files"
    try:
        make_folder(folder)
    except RecordError as error:
        raise RecordError(what, found=error.found, remedy=remedy) from error
    with explain_file_errors(RecordError, what, remedy):
        for parent in (folder.parent, folder.parent.parent):
            if parent != project:
                protect_entries(parent)
        if not belongs_to_user(folder):
            raise RecordError(what, found="it belongs to another user, who could change your jobs", remedy=remedy)
        # Other members of the project may submit the script. The files contain no values of a job.
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o755)
        for name, content in files.texts.items():
            _write_shared(folder / name, content.encode())


def _write_shared(path: Path, content: bytes) -> None:
    with suppress(FileNotFoundError):
        if path.read_bytes() == content and belongs_to_user(path) and not path.stat().st_mode & 0o022:
            return
    write_whole(path, content, 0o644, lasting=False)
    path.chmod(0o644)  # whatever the umask


def _without_head(text: str) -> str:
    lines = text.splitlines(keepends=True)
    head = next(index for index, line in enumerate(lines) if not line.startswith("#"))
    return "".join(lines[head:]).lstrip("\n")
