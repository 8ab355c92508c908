"""What changes with Slurm's version, for templates, checks and messages.

`option_table` marks the options that came later; here is what else a script must know. Each fact was read in
Slurm's release notes and man pages, or seen on the release.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hpc_kit.errors import UnitError


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
