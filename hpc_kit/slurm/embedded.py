"""Sets up the embedded Slurm (the program `pocketslurm`), and returns the environment of its commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from hpc_kit.errors import AnswerNo, HpcKitError, SpecError

VERSION = "22.05.8"
"""The release of Slurm that the embedded one behaves like. Known here, so that `check` need not ask for it."""

STATE_VARIABLE = "HPC_KIT_SLURM_STATE"
"""The state directory of the queue. Its folder `bin` contains the commands."""

FIRST_ID_VARIABLE = "HPC_KIT_SLURM_FIRST_ID"
"""Lowest id of the job that sbatch submits."""

_SETTINGS_VARIABLE = "HPC_KIT_SLURM_CONF"
_NAMING_QUEUE = (STATE_VARIABLE, "XDG_STATE_HOME", "HOME")


_prepared: dict[tuple[str | None, ...], tuple[str, str]] = {}
"""The queues that this process has set up, each with its latest settings and the folder of its commands."""


def environment(settings: Mapping[str, object], queue: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the embedded Slurm's commands first on PATH.

    The queue "" is the default one. HPC_KIT_SLURM_STATE in `environ` is stronger.

    Raises:
        SpecError: The settings cannot be used.
        AnswerNo: The state directory cannot be made, or active jobs need other settings.
    """
    import json

    text = json.dumps(settings)
    key = (queue, *(environ.get(name) for name in _NAMING_QUEUE))
    settings_before, folder = _prepared.get(key, ("", ""))
    if settings_before != text or not os.access(f"{folder}/sbatch", os.X_OK):
        folder = _ask_for_folder(text, queue, environ)
        _prepared[key] = text, folder
    paths = [path for path in environ.get("PATH", os.defpath).split(os.pathsep) if path != folder]
    state = os.path.dirname(folder)  # noqa: PTH120
    found = {**environ, "PATH": os.pathsep.join([folder, *paths]), STATE_VARIABLE: state}
    found.pop(_SETTINGS_VARIABLE, None)
    return found


def _ask_for_folder(settings: str, queue: str, environ: Mapping[str, str]) -> str:
    import subprocess

    # Without `site`, an interpreter starts in half the time; PYTHONPATH then names the folder of both packages.
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    argv = [sys.executable, "-S", "-P", "-m", "pocketslurm", "path", "--settings", "-"]
    if queue:
        argv += ["--queue", queue]
    done = subprocess.run(
        argv,
        input=settings,
        capture_output=True,
        env={**environ, "PYTHONPATH": root},
        check=False,
        encoding="utf-8",
        errors="surrogateescape",
    )
    if done.returncode != 0:
        raise _read_error(done.stderr.strip().removeprefix("pocketslurm: error: "), done.returncode)
    return done.stdout.removesuffix("\n")


def _read_error(text: str, status: int) -> HpcKitError:
    """Return the error that `pocketslurm path` has printed."""
    import re

    parts = dict(re.findall(r"^  (found|do) +(.*(?:\n {9}.*)*)", text, re.MULTILINE))
    found, remedy = (
        parts[label].replace("\n" + " " * 9, "\n") if label in parts else None for label in ("found", "do")
    )
    return (SpecError if status == 2 else AnswerNo)(text.partition("\n")[0], found=found, remedy=remedy)
