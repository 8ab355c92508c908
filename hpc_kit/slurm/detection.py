"""Which release of Slurm is here: asked once of `sinfo --version`, and kept in the user's cache."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import SlurmUnavailable, UnitError
from hpc_kit.slurm.presence import PROBE_SECONDS
from hpc_kit.slurm.versions import Version, parse_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.slurm.client import Runner

CACHE = "slurm-version.json"


def detect_version(environ: Mapping[str, str], runner: Runner | None = None) -> Version | None:
    """The release of the Slurm on PATH; None where there is none, or it does not tell.

    The answer is kept by the path, time and size of `sinfo`: an upgrade is seen, and nothing is asked twice.
    """
    program = shutil.which("sinfo", path=environ.get("PATH", os.defpath))
    if program is None:
        return None
    try:
        stat = Path(program).stat()
    except OSError:
        return None
    key = f"{program}:{stat.st_mtime_ns}:{stat.st_size}"
    cache = _cache(environ)
    known = _read(cache)
    if key not in known:
        asked = _ask(environ, runner)
        if asked is None:
            return None
        # One Slurm is here at a time, or a few by module.
        known = {**dict(list(known.items())[-9:]), key: asked}
        _write(cache, known)
    return parse_version(known[key])


def _ask(environ: Mapping[str, str], runner: Runner | None) -> str | None:
    from hpc_kit.slurm.client import run

    try:
        answer = (runner or run)(["sinfo", "--version"], timeout=PROBE_SECONDS, environ=environ)
        return str(parse_version(answer.stdout)) if answer.returncode == 0 else None
    except (SlurmUnavailable, UnitError):
        return None


def _cache(environ: Mapping[str, str]) -> Path | None:
    """The file; None for a user without a home."""
    named = environ.get("XDG_CACHE_HOME")
    home = environ.get("HOME")
    if not named and not home:
        return None
    return Path(named or f"{home}/.cache", "hpc_kit", CACHE)


def _read(cache: Path | None) -> dict[str, str]:
    if cache is None:
        return {}
    try:
        found = json.loads(cache.read_text())
        return {key: str(parse_version(value)) for key, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, UnitError):
        return {}


def _write(cache: Path | None, known: Mapping[str, str]) -> None:
    """Whole, and readable by its owner alone; a cache that cannot be written only costs the question."""
    if cache is None:
        return
    draft = cache.with_name(f".{cache.name}.{os.getpid()}")
    try:
        cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(known, file)
        draft.replace(cache)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
