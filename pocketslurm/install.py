"""Laying the embedded Slurm into a state directory, and the environment that finds it there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import AnswerNo
from pocketslurm import installation
from pocketslurm.settings import CONF_NAME, CONF_VARIABLE, STATE_VARIABLE, Settings, encode, state_directory

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
        _configure(directory, encode(settings._replace(state=None)), environ)
        folder = str(installation.make(directory))
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


def _configure(directory: Path, text: str, environ: Mapping[str, str]) -> None:
    """Write the settings whole or not at all, and only where something changes: running commands read them.

    Raises:
        AnswerNo: Jobs that were submitted under other settings are not over yet.
    """
    path = directory / CONF_NAME
    before = path.read_text() if path.exists() else None
    if before == text:
        return
    if before is not None and (going := _going(directory, environ)):
        raise AnswerNo(
            "the embedded Slurm here has other settings, and jobs that are not over",
            found=f"{path}, from another cluster file or before this one was edited; jobs {', '.join(going[:8])}",
            remedy=f"wait for them, or end them: {directory}/bin/scancel --me\n"
            f"or another queue: {STATE_VARIABLE}=FOLDER, or another `name` in the cluster file",
        )
    _write(path, text)


def _going(directory: Path, environ: Mapping[str, str]) -> list[str]:
    """The ids of jobs that are not over."""
    from pocketslurm.queue.state import State

    state = State.open({**environ, STATE_VARIABLE: str(directory), CONF_VARIABLE: ""})
    try:
        return [str(job.job_id) for job in state.active_jobs()]
    finally:
        state.close()


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)
