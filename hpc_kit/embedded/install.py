"""Laying the embedded Slurm into a state directory, and the environment that finds it there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.embedded import commands_folder
from hpc_kit.embedded.settings import CONF_NAME, CONF_VARIABLE, STATE_VARIABLE, Settings, encode, state_directory
from hpc_kit.errors import AnswerNo

if TYPE_CHECKING:
    from collections.abc import Mapping


def install(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Write the configuration and the commands; the environment that uses them.

    Raises:
        AnswerNo: The state directory cannot be made.
    """
    directory = Path(settings.state) if settings.state else state_directory(environ)
    directory = directory.expanduser().absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(directory / CONF_NAME, encode(settings._replace(state=None)))
        folder = str(commands_folder.make(directory))
    except OSError as error:
        raise AnswerNo(
            "the embedded Slurm's state directory cannot be made",
            found=f"{directory}: {error.strerror}",
            remedy=f"set {STATE_VARIABLE} to a directory that you may write",
        ) from error
    paths = [path for path in environ.get("PATH", os.defpath).split(os.pathsep) if path != folder]
    found = {**environ, "PATH": os.pathsep.join([folder, *paths]), STATE_VARIABLE: str(directory)}
    found.pop(CONF_VARIABLE, None)
    return found


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and only where something changes: running commands read it."""
    if path.exists() and path.read_text() == text:
        return
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)
