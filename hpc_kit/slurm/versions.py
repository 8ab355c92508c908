"""What changes with Slurm's version, for templates, checks and messages.

`option_table` marks the options that came later; here is what else a script must know. Each fact was read in
Slurm's release notes and man pages, or seen on the release.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SlurmUnavailable, UnitError
from hpc_kit.slurm.presence import PROBE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.slurm.client import Runner


class Version(NamedTuple):
    """A release, `22.05.8`; a patch that is not told counts as 0."""

    year: int
    month: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02}" + (f".{self.patch}" if self.patch else "")


class Fact(NamedTuple):
    """Something that holds for the releases from `first` up to, but without, `until`; None: on that side for all."""

    first: Version | None
    until: Version | None
    what: str
    so: str
    """What is done about it."""

    def holds(self, version: Version | None) -> bool | None:
        """Whether it holds for a release; None where the release is not known and it holds for some only."""
        if version is None:
            return True if self.first is None and self.until is None else None
        return (self.first is None or version >= self.first) and (self.until is None or version < self.until)

    @property
    def span(self) -> str:
        """The releases in words: `22.05 to 23.02`, `23.02.0 to 23.02.4`, `before 23.02`, `from 21.08 on`."""
        if self.until is None:
            return "every release" if self.first is None else f"from {self.first} on"
        if self.first is None:
            return f"before {self.until}"
        same = self.first[:2] == self.until[:2]
        first = f"{self.first}.0" if same and not self.first.patch else str(self.first)
        return f"{first} to {_before(self.until)}"


RELEASES = (
    Version(20, 2), Version(20, 11), Version(21, 8), Version(22, 5), Version(23, 2), Version(23, 11), Version(24, 5),
    Version(24, 11), Version(25, 5), Version(25, 11), Version(26, 5),
)  # fmt: skip
"""The releases, oldest first."""

CPUS_NOT_HANDED_ON = Fact(
    Version(22, 5), Version(23, 11),
    "srun does not take the job's --cpus-per-task along; only SRUN_CPUS_PER_TASK counts",
    "every srun says --cpus-per-task, and nothing reads either variable",
)  # fmt: skip
MIG_SHARED = Fact(
    None, Version(23, 11, 4),
    "with --gpus-per-task all tasks of a node get the same MIG device",
    "check warns; --gpus-per-node serves",
)  # fmt: skip
LOGLESS_JOBS_VANISH = Fact(
    None, Version(23, 2),
    "a job whose log folder is missing ends without a word in any file",
    "submit and render make the folders; check names them",
)  # fmt: skip
REQUEUE_EXPEDITE = Fact(Version(25, 11), None, "--requeue=expedite exists", "it may be asked for from there on")

NEWER_VALUES: dict[tuple[str, str], Fact] = {("requeue", "expedite"): REQUEUE_EXPEDITE}
"""Values of old options that came later."""


def parse_version(text: str) -> Version:
    """Read `22.05.8`, `slurm-wlm 22.05.8`, `23.11.4-1`, `24.05`.

    Raises:
        UnitError: There is no version in it.
    """
    match = re.search(r"(?<![\d.])(\d\d)\.(\d\d)(?:\.(\d+))?(?![\d.]*\d)", text)
    if match is None:
        raise UnitError(
            "not a version of Slurm", found=repr(text), remedy="write it as `sinfo --version` prints it: 22.05.8"
        )
    return Version(int(match[1]), int(match[2]), int(match[3] or 0))


def missing_in(version: Version, option: str, since: str | None, value: str) -> str | None:
    """Since when there is an option, or this value of it, where a release does not have it; else None.

    Args:
        version: The release.
        option: The option's long name.
        since: The release that brought it, as `option_table` has it.
        value: Its value.
    """
    if since is not None and version < parse_version(since):
        return since
    newer = NEWER_VALUES.get((option, value))
    return str(newer.first) if newer is not None and not newer.holds(version) else None


def _before(version: Version) -> str:
    """The last release before one."""
    if version.patch:
        return str(version._replace(patch=version.patch - 1))
    return str(RELEASES[RELEASES.index(version) - 1])


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
