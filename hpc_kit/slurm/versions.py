"""Releases of Slurm: facts that depend on them, and the release that is installed here.

`option_table` marks options that newer releases added. This module contains the other differences. Each fact comes from
Slurm's release notes and man pages, or was seen on the release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from hpc_kit.errors import SlurmUnavailable, UnitError


class SlurmVersion(NamedTuple):
    """A release, `22.05.8`; a missing patch number counts as 0."""

    year: int
    month: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02}" + (f".{self.patch}" if self.patch else "")


class ReleaseFact(NamedTuple):
    """A fact that is true from release `first` on and before release `until`. None removes that limit."""

    first: SlurmVersion | None
    until: SlurmVersion | None

    def holds(self, version: SlurmVersion | None) -> bool | None:
        """Return whether the fact is true for a release; None if that depends on an unknown release."""
        if version is None:
            return True if self.first is None and self.until is None else None
        return (self.first is None or version >= self.first) and (self.until is None or version < self.until)

    @property
    def releases(self) -> str:
        """The releases as text: `22.05 to 23.02`, `23.02.0 to 23.02.4`, `before 23.02`, `from 21.08 on`."""
        if self.until is None:
            return "every release" if self.first is None else f"from {self.first} on"
        if self.first is None:
            return f"before {self.until}"
        same = self.first[:2] == self.until[:2]
        first = f"{self.first}.0" if same and not self.first.patch else str(self.first)
        return f"{first} to {_before(self.until)}"


RELEASES = tuple(
    SlurmVersion(year, month)
    for year, month in (
        (20, 2), (20, 11), (21, 8), (22, 5), (23, 2), (23, 11), (24, 5), (24, 11), (25, 5), (25, 11), (26, 5),
    )
)  # fmt: skip
"""The releases, oldest first."""

CPUS_NOT_HANDED_ON = ReleaseFact(SlurmVersion(22, 5), SlurmVersion(23, 11))
"""srun does not inherit the job's --cpus-per-task; only SRUN_CPUS_PER_TASK counts. So every srun has the option."""

MIG_SHARED = ReleaseFact(None, SlurmVersion(23, 11, 4))
"""With --gpus-per-task all tasks of a node get the same MIG device."""

LOGLESS_JOBS_VANISH = ReleaseFact(None, SlurmVersion(23, 2))
"""A job whose log folder is missing ends without any message."""

REQUEUE_EXPEDITE = ReleaseFact(SlurmVersion(25, 11), None)
"""--requeue=expedite exists."""

NEWER_VALUES: dict[tuple[str, str], ReleaseFact] = {("requeue", "expedite"): REQUEUE_EXPEDITE}
"""Values that newer releases added to old options."""


def parse_version(text: str) -> SlurmVersion:
    """Read `22.05.8`, `slurm-wlm 22.05.8`, `23.11.4-1`, `24.05`.

    Raises:
        UnitError: The text contains no release number.
    """
    match = re.search(r"(?<![\d.])(\d\d)\.(\d\d)(?:\.(\d+))?(?![\d.]*\d)", text)
    if match is None:
        raise UnitError(
            "not a version of Slurm", found=repr(text), remedy="write it as `sinfo --version` prints it: 22.05.8"
        )
    return SlurmVersion(int(match[1]), int(match[2]), int(match[3] or 0))


def first_release_with(version: SlurmVersion, option: str, since: str | None, value: str) -> str | None:
    """Return the release that added an option or this value of it, if `version` is older; else None."""
    if since is not None and version < parse_version(since):
        return since
    newer = NEWER_VALUES.get((option, value))
    return str(newer.first) if newer is not None and not newer.holds(version) else None


def _before(version: SlurmVersion) -> str:
    """Return the last release before this one."""
    if version.patch:
        return str(version._replace(patch=version.patch - 1))
    return str(RELEASES[RELEASES.index(version) - 1])


def detect_version(environ: Mapping[str, str]) -> SlurmVersion | None:
    """Return the release of the Slurm on PATH; None if there is none, or sinfo gives no answer."""
    from hpc_kit.slurm.client import PROBE_SECONDS, run_command

    try:
        answer = run_command(["sinfo", "--version"], timeout=PROBE_SECONDS, environ=environ)
        return parse_version(answer.stdout) if answer.returncode == 0 else None
    except (SlurmUnavailable, UnitError):
        return None
